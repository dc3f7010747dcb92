//! `tidegate config`: the settings in force.

use std::io::{self, Write};
use std::process::ExitCode;

use tidegate_core::rules;

use super::given::{GivenArgs, variables};
use super::serve::refuse;
use super::{FAINT, Format, STRONG, plain, print_json};
use crate::config::{Configuration, ShownSetting, built_in_key_warning, shown};

const EXAMPLES: &str = "\
Examples:
  tidegate config                            what `tidegate serve` would use
  tidegate config --config tidegate.yaml     what it would use with that file
  tidegate config --format json              for programs

Exit status: 0 if the server could use them, 1 if something is wrong, 2 if the command was not understood.";

/// Show every setting of the server, and where its value comes from.
///
/// Takes the same flags and variables as `serve`, and checks what it is given. Secrets are not shown.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    given: GivenArgs,

    /// How to print what comes out.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let variables = variables();
    let settings = match shown(&args.given.0, &variables) {
        Ok(settings) => settings,
        Err(faults) => return refuse(&faults),
    };
    match args.format {
        Format::Json => print_json(&settings)?,
        Format::Text => print(&settings)?,
    }
    match Configuration::load(&args.given.0, &variables) {
        Ok(configuration) => {
            let mut out = anstream::stderr().lock();
            configuration.warnings.iter().try_for_each(|warning| writeln!(out, "warning: {warning}"))?;
            if let Some(warning) = secrets_warning(&configuration) {
                writeln!(out, "warning: {}", plain(&warning))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(faults) => refuse(&faults),
    }
}

/// What is to be said of the key that secrets are hidden under. Rules that cannot be read are for `tidegate check`.
fn secrets_warning(configuration: &Configuration) -> Option<String> {
    let loaded = rules::load(&configuration.rules).ok()?;
    built_in_key_warning(&loaded.rules.with_secret(configuration.secret()))
}

fn print(settings: &[ShownSetting]) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    let width = settings.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
    let text = |setting: &ShownSetting| setting.value.join(", ");
    let room = settings.iter().map(|setting| text(setting).len()).max().unwrap_or(0).min(40);
    for setting in settings {
        let (name, value, from) = (setting.name, text(setting), &setting.from);
        let value = if value.is_empty() { "-".to_owned() } else { value };
        if from == "default" {
            writeln!(out, "{name:width$}  {value:room$}  {FAINT}{from}{FAINT:#}")?;
        } else {
            writeln!(out, "{STRONG}{name:width$}  {value:room$}{STRONG:#}  {from}")?;
        }
    }
    out.flush()
}
