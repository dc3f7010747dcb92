//! `tidegate keys`: tiers of API keys in Redis.

mod tier_check;

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use tidegate_redis::fleet::FleetControl;
use tidegate_rules::{FoundTier, LONGEST_TIER, Secret, TierLookup, counted};

use self::tier_check::{TierCheckArgs, TierError};
use super::redis::RedisArgs;
use super::secret::SecretArgs;
use super::serve::refuse;
use super::{FAINT, GOOD, OutputFormat, WARNING, failed, plain, print_json};

const EXAMPLES: &str = "\
Examples:
  tidegate keys set k_7f3a paid --redis redis://cache.internal --config tidegate.yaml
  tidegate keys get k_7f3a --redis redis://cache.internal --config tidegate.yaml
  tidegate keys import keys.csv --redis redis://cache.internal --config tidegate.yaml
  tidegate keys remove k_7f3a --redis redis://cache.internal --config tidegate.yaml
  tidegate keys list --redis redis://cache.internal

Redis keeps hashes of API keys, under `secrets.key` of the servers: give the same configuration file or key.
Exit status: 0 on success, 1 if it failed or the API key has no tier, 2 on a usage error.";

/// Manage the tiers of API keys, for rules with `tiers: { from: store }`.
#[derive(clap::Subcommand)]
pub(super) enum KeysCommand {
    /// Set the tier of an API key. Servers apply it within `store.redis.tiers_ttl`.
    #[command(after_help = EXAMPLES)]
    Set(Set),
    /// Show the tier of an API key.
    #[command(after_help = EXAMPLES)]
    Get(One),
    /// Remove the tier of an API key. The default tier applies then.
    #[command(after_help = EXAMPLES)]
    Remove(One),
    /// List all entries: hashes of API keys, and their tiers.
    #[command(after_help = EXAMPLES)]
    List(List),
    /// Set the tiers of many API keys, from a file with lines such as `k_7f3a,paid`.
    #[command(after_help = EXAMPLES)]
    Import(Import),
}

#[derive(clap::Args)]
pub(super) struct Set {
    /// The API key.
    #[arg(value_name = "API_KEY")]
    api_key: String,
    /// Tier of the API key.
    #[arg(value_name = "TIER")]
    tier: String,
    #[command(flatten)]
    check: TierCheckArgs,
    #[command(flatten)]
    access: KeysAccess,
}

#[derive(clap::Args)]
pub(super) struct One {
    /// The API key.
    #[arg(value_name = "API_KEY")]
    api_key: String,
    #[command(flatten)]
    access: KeysAccess,
}

#[derive(clap::Args)]
pub(super) struct List {
    /// Output format.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,
    #[command(flatten)]
    redis: RedisArgs,
}

#[derive(clap::Args)]
pub(super) struct Import {
    /// File to import, or `-` for standard input. Each line has an API key, a comma and a tier. Empty lines and those that begin with `#`
    /// are skipped.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    check: TierCheckArgs,
    #[command(flatten)]
    access: KeysAccess,
}

/// Redis connection, and the key of the hashes.
#[derive(clap::Args)]
struct KeysAccess {
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    redis: RedisArgs,
}

pub(super) fn run(command: &KeysCommand) -> io::Result<ExitCode> {
    match command {
        KeysCommand::Set(args) => match tier_problem(&args.tier) {
            Some(problem) => failed(&problem),
            None => set(&args.access, &args.check, &[(args.api_key.clone(), args.tier.clone())]),
        },
        KeysCommand::Get(args) => get(args),
        KeysCommand::Remove(args) => remove(args),
        KeysCommand::List(args) => list(args),
        KeysCommand::Import(args) => match read(&args.file)? {
            Ok(entries) => set(&args.access, &args.check, &entries),
            Err(problem) => failed(&problem),
        },
    }
}

/// Reason why a text is not a valid tier name.
fn tier_problem(tier: &str) -> Option<String> {
    let is_wrong = tier.is_empty() || tier.len() > LONGEST_TIER || tier.chars().any(char::is_control);
    is_wrong.then(|| format!("`{}` cannot name a tier: write 1 to {LONGEST_TIER} bytes of plain text", plain(tier)))
}

/// Runs `work` with the key of hashes.
fn with_secret(access: &KeysAccess, work: impl FnOnce(&Secret) -> io::Result<ExitCode>) -> io::Result<ExitCode> {
    match access.secret.secret() {
        Ok(secret) => work(&secret.unwrap_or_default()),
        Err(faults) => refuse(&faults),
    }
}

fn name(api_key: &str, secret: &Secret) -> String {
    secret.hide(api_key)
}

fn set(access: &KeysAccess, check: &TierCheckArgs, entries: &[(String, String)]) -> io::Result<ExitCode> {
    let check = match check.open(&access.secret)? {
        Ok(check) => check,
        Err(code) => return Ok(code),
    };
    with_secret(access, |secret| {
        let hidden: Vec<(String, String)> =
            entries.iter().map(|(api_key, tier)| (name(api_key, secret), tier.clone())).collect();
        let done = access.redis.with(async |control: FleetControl| {
            let was_checked = check.check(&control, entries.iter().map(|(_, tier)| tier.as_str())).await?;
            control.set_tiers(&hidden).await?;
            Ok::<_, TierError>(was_checked)
        })?;
        let was_checked = match done {
            Ok(was_checked) => was_checked,
            Err(code) => return Ok(code),
        };
        writeln!(anstream::stdout(), "{GOOD}set{GOOD:#}: {}", counted(entries.len(), "API key"))?;
        if !was_checked {
            let note = "the tier was not checked, because no rules are published: give the rules with --rules";
            writeln!(anstream::stderr(), "{WARNING}note{WARNING:#}: {note}")?;
        }
        if *secret == Secret::default() {
            let note = "hashed without a key: servers that set `secrets.key` do not find it. If yours do, give their configuration with --config";
            writeln!(anstream::stderr(), "{WARNING}note{WARNING:#}: {note}")?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn get(args: &One) -> io::Result<ExitCode> {
    with_secret(&args.access, |secret| {
        let lookup = TierLookup::of(&args.api_key, secret);
        let found = match args.access.redis.with(async |control: FleetControl| control.tier(&lookup).await)? {
            Ok(found) => found,
            Err(code) => return Ok(code),
        };
        match found {
            FoundTier::Entry(bytes) => {
                let tier = String::from_utf8_lossy(&bytes).into_owned();
                writeln!(anstream::stdout(), "{}", plain(&tier))?;
                match String::from_utf8(bytes).ok().filter(|tier| tier_problem(tier).is_none()) {
                    Some(_) => Ok(ExitCode::SUCCESS),
                    None => failed(&"this is not the name of a tier: servers use the default"),
                }
            }
            FoundTier::Missing | FoundTier::Failed => failed(&"the API key has no tier: servers use the default"),
        }
    })
}

fn remove(args: &One) -> io::Result<ExitCode> {
    with_secret(&args.access, |secret| {
        let names: Vec<String> = TierLookup::of(&args.api_key, secret).names().collect();
        match args.access.redis.with(async |control: FleetControl| control.remove_tiers(&names).await)? {
            Ok(0) => failed(&"the API key has no tier"),
            Ok(_) => {
                writeln!(anstream::stdout(), "{GOOD}removed{GOOD:#}")?;
                Ok(ExitCode::SUCCESS)
            }
            Err(code) => Ok(code),
        }
    })
}

#[derive(Serialize)]
struct ListedKey<'l> {
    hash: &'l str,
    tier: &'l str,
}

fn list(args: &List) -> io::Result<ExitCode> {
    let mut all = match args.redis.with(async |control: FleetControl| control.all_tiers().await)? {
        Ok(all) => all,
        Err(code) => return Ok(code),
    };
    all.sort();
    all.dedup();
    match args.format {
        OutputFormat::Json => {
            print_json(&all.iter().map(|(hash, tier)| ListedKey { hash, tier }).collect::<Vec<_>>())?;
        }
        OutputFormat::Text => {
            let mut out = anstream::stdout().lock();
            for (hash, tier) in &all {
                writeln!(out, "{FAINT}{}{FAINT:#}  {}", plain(hash), plain(tier))?;
            }
            writeln!(anstream::stderr(), "{}", counted(all.len(), "API key"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads API keys and tiers from a file. On the first error, nothing is set.
fn read(file: &Path) -> io::Result<Result<Vec<(String, String)>, String>> {
    let (name, text) = if file == Path::new("-") {
        ("standard input".to_owned(), io::stdin().lock().lines().collect::<io::Result<Vec<String>>>())
    } else {
        let text = std::fs::read_to_string(file).map(|text| text.lines().map(str::to_owned).collect());
        (format!("`{}`", file.display()), text)
    };
    let lines = match text {
        Ok(lines) => lines,
        Err(error) => return Ok(Err(format!("{name} cannot be read: {error}"))),
    };
    let mut entries = Vec::new();
    for (number, line) in lines.iter().enumerate().map(|(number, line)| (number + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line is not shown, because it contains an API key.
        let Some((api_key, tier)) = line.rsplit_once(',') else {
            return Ok(Err(format!("line {number} has no comma: write lines such as `k_7f3a,paid`")));
        };
        let (api_key, tier) = (api_key.trim(), tier.trim());
        if api_key.is_empty() {
            return Ok(Err(format!("line {number} has no API key: write lines such as `k_7f3a,paid`")));
        }
        if let Some(problem) = tier_problem(tier) {
            return Ok(Err(format!("line {number}: {problem}")));
        }
        entries.push((api_key.to_owned(), tier.to_owned()));
    }
    if entries.is_empty() {
        return Ok(Err(format!("{name} contains no API keys")));
    }
    Ok(Ok(entries))
}
