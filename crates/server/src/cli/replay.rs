//! `tidegate replay`: applies rules to the requests of a log.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use tidegate_core::{Clock, Micros, SystemClock};
use tidegate_lab::replay::{
    self, Input, LogFormat, LogSummary, ReadError, Replay, ReplayReport, ReplaySettings, SuggestionSettings,
};
use tidegate_rules::{RuleSet, Secret, Severity, counted};

use super::progress::progress_bar;
use super::secret::SecretArgs;
use super::serve::refuse;
use super::{ERROR, check, failed, print_json};

const EXAMPLES: &str = "\
Examples:
  tidegate replay --rules rules.yaml access.log               keys that would have been limited
  zcat old/*.gz | tidegate replay --rules rules.yaml          from a pipe
  tidegate replay --rules rules.yaml a.log.2.gz a.log.1 a.log several logs, oldest first
  tidegate replay --compare old.yaml new.yaml access.log      keys that a change affects
  tidegate replay --suggest --key user access.json            a limit that affects almost no key
  tidegate replay --rules rules.yaml --html report.html access.log

The format is detected from a log's first lines. Input compressed with gzip is decompressed. See `docs/replay.md`.

Exit status: 0 if the logs were read, 1 if they cannot be read or no line is a request, 2 on a usage error.";

/// Replay an access log against rules: the keys that would have been limited, with times and rules.
///
/// Each line becomes a request, which the engine decides at the time of the line. Nothing is sent over the network.
/// Memory use does not depend on the length of the logs.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    secret: SecretArgs,

    /// Rules files, or folders of them. May be given several times: all are read together.
    #[arg(long = "rules", short, value_name = "FILE", conflicts_with = "compare")]
    rules: Vec<PathBuf>,

    /// Rules to compare: the old ones and the new ones.
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"])]
    compare: Vec<PathBuf>,

    /// Suggest a rate and a burst for each limit that would have limited almost no key.
    #[arg(long, conflicts_with = "compare")]
    suggest: bool,

    /// Percentage of keys that a suggested limit does not affect, from 1 to 100. With a `%` it may be less than 1.
    #[arg(long, value_name = "PERCENT", default_value = "99.9", value_parser = percent, requires = "suggest")]
    share: f64,

    /// Among limits that affect equally few keys, suggest the one that admits the least in this time.
    #[arg(long, value_name = "SPAN", default_value = "1min", value_parser = span, requires = "suggest")]
    within: Micros,

    /// Key to suggest a limit for, if there are no rules; written as in rules, such as address or user.
    #[arg(long, value_name = "KEY", requires = "suggest", conflicts_with = "rules")]
    key: Option<String>,

    /// Format of the logs. Default: detected from their first lines.
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogKind>,

    /// Use timestamps in whole seconds as they are, instead of spreading the lines of a second over that second.
    #[arg(long)]
    no_spread: bool,

    /// Number of keys to list.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Maximum number of keys to track.
    #[arg(long, value_name = "N", default_value_t = replay::DEFAULT_MAX_KEYS)]
    max_keys: usize,

    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: ReplayFormat,

    /// Also write an HTML report, in one file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Logs, oldest first. `-` is standard input, which is also the default.
    #[arg(value_name = "LOG")]
    logs: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ReplayFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON document, for programs.
    Json,
    /// One table, for spreadsheets.
    Csv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogKind {
    /// Common or combined, as Apache and nginx write them.
    Combined,
    /// JSON objects named after nginx's variables.
    NginxJson,
    /// Caddy's JSON format.
    CaddyJson,
    /// Envoy's JSON format.
    EnvoyJson,
    /// A table with a header line: time, address, method, path …
    Csv,
    /// One JSON object per line, with the names of the table's columns.
    Jsonl,
}

impl From<LogKind> for LogFormat {
    fn from(written: LogKind) -> LogFormat {
        match written {
            LogKind::Combined => LogFormat::Combined,
            LogKind::NginxJson => LogFormat::NginxJson,
            LogKind::CaddyJson => LogFormat::CaddyJson,
            LogKind::EnvoyJson => LogFormat::EnvoyJson,
            LogKind::Csv => LogFormat::Csv,
            LogKind::Jsonl => LogFormat::Jsonl,
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim();
    let share: f64 = number.parse().map_err(|_| "write a percentage, such as 99.9".to_owned())?;
    if !(share > 0.0 && share <= 100.0) {
        return Err("write a percentage above 0 and up to 100, such as 99.9".to_owned());
    }
    if share < 1.0 && !text.ends_with('%') {
        let meant = format!("{:.6}", share * 100.0);
        let meant = meant.trim_end_matches('0').trim_end_matches('.');
        return Err(format!("it is a percentage: write {meant}, or {number}% to mean less than one percent"));
    }
    Ok(share / 100.0)
}

pub(super) fn span(text: &str) -> Result<Micros, String> {
    let span: Micros = text.parse().map_err(|error: tidegate_core::NotationError| error.problem().to_owned())?;
    if span.is_zero() { Err("write a duration above zero, such as 1min".to_owned()) } else { Ok(span) }
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    // Reports are shared, so a random key prevents tests of guesses against their hashes.
    let secret = match args.secret.secret() {
        Ok(secret) => secret.unwrap_or_else(Secret::random),
        Err(faults) => return refuse(&faults),
    };
    let (old, new) = match read_rules(args)? {
        Ok((old, new)) => (old.with_secret(secret.clone()), new.map(|new| new.with_secret(secret))),
        Err(code) => return Ok(code),
    };
    let settings = ReplaySettings {
        format: args.log_format.map(LogFormat::from),
        spread: !args.no_spread,
        // Clocks may differ, and zones may be written wrong.
        not_after: Some(SystemClock::new().now() + Micros::from_secs(86_400)),
        max_keys: args.max_keys,
        suggest: args.suggest.then_some(SuggestionSettings {
            share: args.share,
            within: args.within,
            only: args.rules.is_empty(),
        }),
    };
    let mut replay = Replay::with(old, new, &settings);
    if let Err(error) = read_logs(&mut replay, &args.logs) {
        writeln!(anstream::stderr(), "{ERROR}error{ERROR:#}: {}", super::plain_text(&error.to_string()))?;
        return Ok(ExitCode::FAILURE);
    }
    let report = replay.report(args.top);
    if let Some(problem) = no_requests(&report.reading) {
        return failed(&problem);
    }
    if let Some(path) = &args.html
        && let Err(error) = std::fs::write(path, replay::html(&report))
    {
        writeln!(anstream::stderr(), "{ERROR}error{ERROR:#}: `{}` cannot be written: {error}", path.display())?;
        return Ok(ExitCode::FAILURE);
    }
    print(args.format, &report)?;
    Ok(ExitCode::SUCCESS)
}

/// Error for logs in which no line is a request. `None` if one is, or if the logs are empty.
fn no_requests(reading: &LogSummary) -> Option<String> {
    let first = reading.shown.first().filter(|_| reading.malformed == reading.lines)?;
    let formats: Vec<&str> = reading.logs.iter().map(|(_, format)| format.as_str()).collect();
    Some(format!(
        "none of {} is a request in the format {}. `{}`, line {}: {}: {}\n  = name the format with --log-format if it is another",
        counted(usize::try_from(reading.lines).unwrap_or(usize::MAX), "line"),
        formats.join(", "),
        first.log,
        first.line,
        first.problem,
        first.text
    ))
}

fn print(format: ReplayFormat, report: &ReplayReport) -> io::Result<()> {
    match format {
        ReplayFormat::Json => print_json(report),
        ReplayFormat::Csv => write!(anstream::stdout().lock(), "{}", replay::csv(report)),
        ReplayFormat::Text => write!(anstream::stdout().lock(), "{}", replay::text(report)),
    }
}

/// The rules, and the rules to compare them with. If they are invalid, the exit code.
fn read_rules(args: &Args) -> io::Result<Result<(RuleSet, Option<RuleSet>), ExitCode>> {
    if let [old, new] = &args.compare[..] {
        return Ok(match (load(std::slice::from_ref(old))?, load(std::slice::from_ref(new))?) {
            (Some(old), Some(new)) => Ok((old, Some(new))),
            _ => Err(ExitCode::FAILURE),
        });
    }
    if !args.rules.is_empty() {
        return Ok(load(&args.rules)?.map(|rules| (rules, None)).ok_or(ExitCode::FAILURE));
    }
    if args.suggest {
        let key = args.key.as_deref().unwrap_or("address");
        let quoted = key.replace('\'', "''");
        let text = format!("rules: [{{ id: suggested, key: '{quoted}', limit: 10_000/s }}]");
        // Any limit will do: the rule only supplies the key.
        return match RuleSet::parse("--key", &text) {
            Ok(loaded) => Ok(Ok((loaded.rules, None))),
            Err(findings) => {
                // The user wrote only the key, so the generated text around it is not shown.
                for finding in findings.0.iter().filter(|finding| finding.severity == Severity::Error) {
                    let help = finding.help.as_ref().map(|help| format!("\n  = {help}")).unwrap_or_default();
                    let problem = super::plain_text(&format!("--key: {}{help}", finding.problem));
                    writeln!(anstream::stderr(), "{ERROR}error{ERROR:#}: {problem}")?;
                }
                Ok(Err(ExitCode::from(2)))
            }
        };
    }
    writeln!(
        anstream::stderr(),
        "{ERROR}error{ERROR:#}: the rules are missing: use --rules rules.yaml, --compare old.yaml new.yaml, or --suggest"
    )?;
    Ok(Err(ExitCode::from(2)))
}

fn load(paths: &[PathBuf]) -> io::Result<Option<RuleSet>> {
    match tidegate_rules::load(paths) {
        Ok(loaded) => Ok(Some(loaded.rules)),
        Err(findings) => {
            let mut err = anstream::stderr().lock();
            check::print(&mut err, &findings)?;
            for path in paths {
                if let Some(format) = log_format(path) {
                    let file = super::plain(&path.display().to_string());
                    writeln!(err, "`{file}` is a log ({format}), not rules: write --rules rules.yaml {file}")?;
                }
            }
            Ok(None)
        }
    }
}

/// The format of a log that was passed as a rules file.
fn log_format(path: &Path) -> Option<LogFormat> {
    const DETECTION_BYTES: u64 = 1 << 16;
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(DETECTION_BYTES).read_to_end(&mut bytes).ok()?;
    LogFormat::detect(String::from_utf8_lossy(&bytes).lines().take(20))
}

fn read_logs(replay: &mut Replay, logs: &[PathBuf]) -> Result<(), ReadError> {
    let size: Option<u64> = logs.iter().map(|log| std::fs::metadata(log).ok().map(|meta| meta.len())).sum();
    let size = size.filter(|size| *size > 0);
    let template = match size {
        Some(_) => "{wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left",
        None => "{spinner} {bytes}  {bytes_per_sec}",
    };
    let bar = progress_bar(size, template);
    let show = |progress: replay::LogProgress| bar.set_position(progress.bytes);
    let stdin = Path::new("-");
    let standard = [stdin.to_path_buf()];
    let logs = if logs.is_empty() { &standard[..] } else { logs };
    let mut read = || {
        logs.iter().try_for_each(|log| {
            let input = if log == stdin { standard_input()? } else { Input::open(log)? };
            replay.read(input, show)
        })
    };
    let done = read();
    bar.finish_and_clear();
    done
}

fn standard_input() -> Result<Input, ReadError> {
    let name = "standard input";
    Input::from_reader(name, io::stdin()).map_err(|error| ReadError::Unreadable { name: name.to_owned(), error })
}
