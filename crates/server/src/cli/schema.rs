//! `tidegate schema`: the shape of a rules file, for editors.

use std::io;
use std::process::ExitCode;

use super::print_json;

pub(super) const ABOUT: &str = "\
Print the JSON Schema of the rules file, for editors.

An editor that knows the schema completes names, shows their meaning and marks mistakes while you type. `tidegate check` \
finds more: it also parses limits, paths and addresses.";

pub(super) const EXAMPLES: &str = "\
Example: write the schema to a file
  tidegate schema > rules.schema.json

then refer to it in the first line of the rules file, which many editors support:
  # yaml-language-server: $schema=rules.schema.json";

pub(super) fn run() -> io::Result<ExitCode> {
    print_json(&tidegate_rules::schema())?;
    Ok(ExitCode::SUCCESS)
}
