//! Command line: parses arguments, calls the engine, prints results.

mod admin_server;
mod banner;
mod bench;
mod call;
mod check;
mod completions;
mod config;
mod explain;
mod fleet;
mod init;
mod keys;
mod lab;
mod man;
mod mode;
mod progress;
mod published;
mod redis;
mod region_report;
mod regions;
mod replay;
mod request;
mod rules;
mod schema;
mod secret;
mod serve;
mod settings_args;
mod simulate;
mod state;
mod test;
mod top;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::version;

/// Runs the program with the arguments that it was started with.
///
/// Exits with 0 on success, 1 if it found errors, 2 on a usage error.
#[must_use]
pub fn run() -> ExitCode {
    let Cli { color, command } = Cli::parse();
    color.apply();
    let done = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Call(args) => call::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Fleet(args) => fleet::run(&args),
        Command::Keys(command) => keys::run(&command),
        Command::Lab(args) => lab::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Mode(args) => mode::run(&args),
        Command::Regions(args) => regions::run(&args),
        Command::Rules(command) => rules::run(&command),
        Command::Replay(args) => replay::run(&args),
        Command::Schema => schema::run(),
        Command::Simulate(args) => simulate::run(&args),
        Command::State(command) => state::run(&command),
        Command::Test(args) => test::run(&args),
        Command::Top(args) => top::run(&args),
    };
    match done {
        Ok(code) => code,
        // The reader closed the pipe, as in `tidegate schema | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        // If printing the error fails too, nothing can be reported.
        Err(error) => failed(&error).unwrap_or(ExitCode::FAILURE),
    }
}

/// Rate limiter for HTTP, Envoy and Redis clients, with rules in files.
#[derive(Parser)]
#[command(version = version::short(), long_version = version::long(), after_help = EXAMPLES, disable_help_subcommand = true, subcommand_required = true)]
struct Cli {
    /// Coloured output.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    color: Color,

    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Color {
    /// Colours on terminals only, subject to NO_COLOR and CLICOLOR.
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// Applies the choice to all further output. Only output through `anstream` has colours.
    fn apply(self) {
        match self {
            Color::Auto => {}
            Color::Always => anstream::ColorChoice::Always.write_global(),
            Color::Never => anstream::ColorChoice::Never.write_global(),
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve
  tidegate init && tidegate serve --config tidegate.yaml
  tidegate check rules.yaml
  tidegate test rules.test.yaml
  tidegate explain rules.yaml --request 'POST /login' --ip 203.0.113.7
  tidegate rules push rules.yaml --redis redis://cache.internal
  tidegate mode login off --redis redis://cache.internal
  tidegate fleet --redis redis://cache.internal
  tidegate keys set k_7f3a paid --redis redis://cache.internal
  tidegate regions set eu=70 us=30 --region eu=redis://cache.eu --region us=redis://cache.us
  tidegate replay --rules rules.yaml access.log
  tidegate simulate '20/s burst 50' --traffic 'poisson 30/s'
  tidegate lab
  tidegate call https://api.example.com/v1/things -n 100 -c 10
  tidegate bench --seconds 10
  tidegate schema > rules.schema.json
  tidegate top --token 0123456789abcdef

See `tidegate COMMAND --help` for the options of a command.";

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Init(init::Args),
    Config(Box<config::Args>),
    Check(check::Args),
    Test(test::Args),
    Explain(Box<explain::Args>),
    #[command(subcommand)]
    Rules(Box<rules::RulesCommand>),
    Mode(Box<mode::Args>),
    Fleet(Box<fleet::Args>),
    #[command(subcommand)]
    Keys(Box<keys::KeysCommand>),
    Regions(Box<regions::Args>),
    Replay(Box<replay::Args>),
    /// Print the JSON Schema of the rules file, for editors.
    #[command(long_about = schema::ABOUT, after_help = schema::EXAMPLES)]
    Schema,
    Simulate(Box<simulate::Args>),
    #[command(subcommand)]
    State(state::StateCommand),
    Lab(lab::Args),
    Call(Box<call::Args>),
    Bench(bench::Args),
    Top(Box<top::Args>),
    Completions(completions::Args),
    Man(man::Args),
}

/// Arguments shared by commands that read rules.
#[derive(Args)]
struct Rules {
    /// Rules files, or folders of them: all are read together.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document, for programs.
    Json,
}

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default().bold();
const STRONG: Style = Style::new().bold();
const FAINT: Style = Style::new().dimmed();

fn print_json(document: &impl serde::Serialize) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    serde_json::to_writer_pretty(&mut out, document)?;
    writeln!(out)
}

/// Prints an error that is not a usage error.
fn failed(error: &dyn std::fmt::Display) -> io::Result<ExitCode> {
    writeln!(anstream::stderr(), "{ERROR}error{ERROR:#}: {}", plain_text(&error.to_string()))?;
    Ok(ExitCode::FAILURE)
}

/// End of a sentence that says that a name is unknown, with the name that was probably meant.
fn meant(closest: &Option<String>) -> String {
    closest.as_ref().map_or_else(|| ".".to_owned(), |meant| format!(": did you mean `{meant}`?"))
}

/// Text from outside as part of a line, such as a cell of a table: without control characters, line breaks among them.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Text from outside that may have several lines, without other control characters.
fn plain_text(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_hang_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain_text("a\u{1b}[31mb\r\nc"), "a\u{fffd}[31mb\u{fffd}\nc");
        assert_eq!(plain("a\u{1b}[31mb\r\nc"), "a\u{fffd}[31mb\u{fffd}\u{fffd}c");
    }
}
