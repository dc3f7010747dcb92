//! `tidegate config`: the settings in force.

use std::io::{self, Write};
use std::process::ExitCode;

use super::serve::refuse;
use super::settings_args::{SettingsArgs, variables};
use super::{FAINT, OutputFormat, STRONG, WARNING, check, plain_text, print_json};
use crate::config::{Configuration, ShownSetting, built_in_key_warning, reference, shown};

const EXAMPLES: &str = "\
Examples:
  tidegate config                            settings of `tidegate serve`
  tidegate config --config tidegate.yaml     settings with that file
  tidegate config --changed                  only settings that are set
  tidegate config --format json              for programs
  tidegate config --reference                reference of all settings, as Markdown

Exit status: 0 if the configuration is valid, 1 if not, 2 on a usage error.";

/// Show every setting of the server, its value and the origin of the value.
///
/// Takes the same flags and variables as `serve`, and checks them, including rules files. If there are errors, only
/// those are printed. Secrets are hidden.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    given: SettingsArgs,

    /// Show only settings that are set by a flag, a variable or the file.
    #[arg(long)]
    changed: bool,

    /// Print the reference of all settings instead, as Markdown: defaults, flags, variables and meanings.
    #[arg(long, conflicts_with_all = ["changed", "format"])]
    reference: bool,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    if args.reference {
        write!(anstream::stdout(), "{}", reference())?;
        return Ok(ExitCode::SUCCESS);
    }
    let variables = variables();
    let mut settings = match shown(&args.given.0, &variables) {
        Ok(settings) => settings,
        Err(faults) => return refuse(&faults),
    };
    settings.retain(|setting| !args.changed || setting.from != "default");
    // JSON output always includes the settings.
    if args.format == OutputFormat::Json {
        print_json(&settings)?;
    }
    let configuration = match Configuration::load(&args.given.0, &variables) {
        Ok(configuration) => configuration,
        Err(faults) => return refuse(&faults),
    };
    let may_be_absent = !configuration.rules_required && tidegate_rules::rules_files(&configuration.rules).is_empty();
    if !configuration.rules.is_empty()
        && !may_be_absent
        && let Err(findings) = tidegate_rules::load(&configuration.rules)
    {
        check::print(&mut anstream::stderr().lock(), &findings)?;
        return Ok(ExitCode::FAILURE);
    }
    if args.format == OutputFormat::Text {
        print(&settings)?;
    }
    let mut out = anstream::stderr().lock();
    let warnings = configuration.warnings.iter().cloned().chain(secrets_warning(&configuration));
    for warning in warnings {
        writeln!(out, "{WARNING}warning{WARNING:#}: {}", plain_text(&warning))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Warning about a missing `secrets.key`. Invalid rules are reported by `tidegate check`.
fn secrets_warning(configuration: &Configuration) -> Option<String> {
    let loaded = tidegate_rules::load(&configuration.rules).ok()?;
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
