//! `tidegate init`: files to start from.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::serve::refuse;
use super::{GOOD, STRONG};
use crate::config::commented_file;
use crate::serve::EXAMPLE_RULES;

const EXAMPLES: &str = "\
Examples:
  tidegate init                  tidegate.yaml and rules.yaml in this folder
  tidegate init /etc/tidegate    in another one

Rules that are there are kept. Exit status: 0 if the files were written, 1 if not (a configuration that is there is left alone), 2 if the
command was not understood.";

/// Write a configuration and rules to start from.
///
/// Both explain themselves. The configuration sets nothing but where the rules are; what it could set is there as comments,
/// each with its default.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The folder to write to. It is made if it is not there.
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let (configuration, rules) = (args.folder.join("tidegate.yaml"), args.folder.join("rules.yaml"));
    if configuration.exists() {
        let there = configuration.display();
        return refuse(&format!("`{there}` is there already, and is left alone: write to another folder"));
    }
    // Rules that are there are what the configuration is for.
    let has_rules = rules.exists();
    let written = std::fs::create_dir_all(&args.folder)
        .and_then(|()| write(&configuration, &commented_file()))
        .and_then(|()| if has_rules { Ok(()) } else { write(&rules, EXAMPLE_RULES) });
    if let Err(error) = written {
        return refuse(&format!("`{}` cannot be written to: {error}", args.folder.display()));
    }
    let mut out = anstream::stdout().lock();
    writeln!(out, "{GOOD}written{GOOD:#}: {}", configuration.display())?;
    if has_rules {
        writeln!(out, "{STRONG}kept{STRONG:#}: {}", rules.display())?;
    } else {
        writeln!(out, "{GOOD}written{GOOD:#}: {}", rules.display())?;
    }
    writeln!(out, "\nStart with {STRONG}tidegate serve --config {}{STRONG:#}", configuration.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Never writes over anything, even if it came there a moment ago.
fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}
