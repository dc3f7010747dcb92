//! `tidegate regions`: shares of regions, shown and moved.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tidegate_core::regions::{RegionShare, Share, ShareLedger};
use tidegate_redis::Settings;
use tidegate_redis::fleet::{FleetControl, FleetError, RegionRecord, RegionsControl, RegionsError, TransferOutcome};

use super::{ERROR, FAINT, GOOD, OutputFormat, STRONG, WARNING, failed, plain, print_json};

const EXAMPLES: &str = "\
Examples:
  export TIDEGATE_REGIONS=eu=redis://cache.eu.internal,us=redis://cache.us.internal
  tidegate regions init rules.yaml
  tidegate regions
  tidegate regions set eu=70 us=30
  tidegate regions move 10 --from eu --to us
  tidegate regions resume
  tidegate regions balance
  tidegate regions retire us --it-is-down

Exit status: 0 on success, 1 if a region does not answer, shares do not add up or one is parked, 2 on a usage error.";

/// Show and move the shares of limits that regions own.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<RegionsCommand>,

    #[command(flatten)]
    access: Access,

    /// Output format.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    format: OutputFormat,
}

/// The Redis servers of all regions.
#[derive(clap::Args)]
struct Access {
    /// Name of a region and the URL of its Redis. Give one for each region, also separated by commas.
    #[arg(long = "region", global = true, value_name = "NAME=URL", env = "TIDEGATE_REGIONS", hide_env_values = true)]
    #[arg(value_delimiter = ',')]
    regions: Vec<String>,

    /// Prefix of all keys.
    #[arg(long, global = true, value_name = "PREFIX", default_value = "tidegate")]
    prefix: String,

    /// Timeout for a reply, in seconds.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

#[derive(Subcommand)]
enum RegionsCommand {
    /// Create the records of regions with the shares of the rules. Existing records stay; a lost one gets what the others leave.
    Init {
        /// Rules files, or folders of them.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Set the shares of all regions, in percent.
    Set {
        /// Shares, such as `eu=70 us=30`.
        #[arg(value_name = "REGION=PERCENT", required = true)]
        shares: Vec<String>,
        #[command(flatten)]
        rule: RuleArg,
    },
    /// Move a share from one region to another, in percent of the whole.
    Move {
        /// The share, such as `10` or `2.5%`.
        #[arg(value_name = "PERCENT")]
        amount: String,
        /// Region that gives it.
        #[arg(long, value_name = "REGION")]
        from: String,
        /// Region that receives it.
        #[arg(long, value_name = "REGION")]
        to: String,
        #[command(flatten)]
        rule: RuleArg,
    },
    /// Continue transfers that were interrupted.
    Resume,
    /// Move shares after demand, until it is stopped: half of the gap at a time, every 5 seconds at most. Run one of it.
    Balance {
        /// Moves once, if shares are off by 5 points or more, and stops.
        #[arg(long)]
        once: bool,
    },
    /// Give the shares of a region that is down for good to another one.
    Retire {
        /// The region.
        #[arg(value_name = "REGION")]
        region: String,
        /// Region that gets the shares. Default: the one with the largest share.
        #[arg(long, value_name = "REGION")]
        to: Option<String>,
        /// Confirms that no server of the region decides requests any more. If one does, its share is handed out twice.
        #[arg(long)]
        it_is_down: bool,
    },
}

#[derive(clap::Args)]
struct RuleArg {
    /// Rule with shares of its own. Default: the shares of all other rules.
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    rule: String,
}

pub(super) fn run(args: &Args) -> io::Result<ExitCode> {
    let control = match args.access.control() {
        Ok(control) => control,
        Err(problem) => {
            failed(&problem)?;
            return Ok(ExitCode::from(2));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match &args.command {
        None => status(&runtime.block_on(control.records()), args.format),
        Some(RegionsCommand::Init { files }) => init(&runtime, &control, files),
        Some(RegionsCommand::Set { shares, rule }) => match targets(shares) {
            Ok(targets) => delivered(runtime.block_on(control.set(&rule.rule, &targets)), args.format),
            Err(problem) => failed(&problem),
        },
        Some(RegionsCommand::Move { amount, from, to, rule }) => match amount.parse::<Share>() {
            Ok(amount) => delivered(runtime.block_on(control.move_share(from, to, &rule.rule, amount)), args.format),
            Err(problem) => failed(&problem),
        },
        Some(RegionsCommand::Resume) => delivered(runtime.block_on(control.resume()), args.format),
        Some(RegionsCommand::Balance { once: true }) => delivered(runtime.block_on(control.balance()), args.format),
        Some(RegionsCommand::Balance { once: false }) => runtime.block_on(balance(&control)),
        Some(RegionsCommand::Retire { region, it_is_down: false, .. }) => failed(&format!(
            "only you can know that `{region}` is down: its shares are handed out twice if a server there still decides; \
             repeat with `--it-is-down` once all of them have stopped"
        )),
        Some(RegionsCommand::Retire { region, to, it_is_down: true }) => {
            match runtime.block_on(control.retire(region, to.as_deref())) {
                Ok(retirement) => {
                    let mut out = anstream::stdout().lock();
                    for (rule, share) in &retirement.inherited {
                        writeln!(out, "{GOOD}retired{GOOD:#}: {} has {share} more{}", retirement.heir, of_rule(rule))?;
                    }
                    Ok(ExitCode::SUCCESS)
                }
                Err(error) => failed(&error),
            }
        }
    }
}

impl Access {
    fn control(&self) -> Result<RegionsControl, String> {
        if self.regions.is_empty() {
            return Err("no region is given: write `--region NAME=URL` for each, or set TIDEGATE_REGIONS".to_owned());
        }
        let mut regions = BTreeMap::new();
        for text in &self.regions {
            // The text is not shown whole: it may have a password in it.
            let Some((name, url)) = text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('/'))
            else {
                return Err("`--region` has no name: write one such as `eu=redis://cache.eu.internal`".to_owned());
            };
            let control = self.control_of(url).map_err(|problem| format!("region `{name}`: {problem}"))?;
            if regions.insert(name.to_owned(), control).is_some() {
                return Err(format!("region `{name}` is given twice"));
            }
        }
        Ok(RegionsControl::new(regions))
    }

    fn control_of(&self, url: &str) -> Result<FleetControl, String> {
        let timeout = Duration::from_secs(self.timeout);
        let mut settings = Settings::from_urls([url]).map_err(|error| error.to_string())?;
        settings.connect_timeout = timeout;
        let control = FleetControl::new(&settings).map_err(|error| error.to_string())?.with_timeout(timeout);
        control.with_prefix(&self.prefix).map_err(|error| error.to_string())
    }
}

fn targets(shares: &[String]) -> Result<BTreeMap<String, Share>, String> {
    let mut targets = BTreeMap::new();
    for text in shares {
        let (region, share) =
            text.split_once('=').ok_or_else(|| format!("`{text}` has no share: write `eu=70 us=30`"))?;
        let share: Share = share.parse().map_err(|error| format!("`{region}`: {error}"))?;
        if targets.insert(region.to_owned(), share).is_some() {
            return Err(format!("`{region}` is given twice"));
        }
    }
    Ok(targets)
}

fn init(runtime: &tokio::runtime::Runtime, control: &RegionsControl, files: &[PathBuf]) -> io::Result<ExitCode> {
    let rules = match tidegate_rules::load(files) {
        Ok(loaded) => loaded.rules,
        Err(findings) => return failed(&findings),
    };
    let named: Vec<&str> = control.names().collect();
    let mut all: BTreeMap<String, BTreeMap<String, RegionShare>> = BTreeMap::new();
    for (_, regions) in rules.each_regions() {
        if let Some(region) = regions.shares.keys().find(|region| !named.contains(&region.as_str())) {
            return failed(&format!("the rules have a region `{region}`: give its Redis with `--region {region}=URL`"));
        }
        for region in regions.shares.keys() {
            all.insert(region.clone(), rules.region_shares(region));
        }
    }
    if all.values().all(BTreeMap::is_empty) {
        return failed(&"the rules have no `regions` whose shares can move: there is nothing to record");
    }
    match runtime.block_on(control.init(&all)) {
        Ok(changed) if changed.is_empty() => {
            writeln!(anstream::stdout(), "all regions have their records")?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(changed) => {
            writeln!(anstream::stdout(), "{GOOD}recorded{GOOD:#}: {}", changed.join(", "))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => failed(&error),
    }
}

fn of_rule(rule: &str) -> String {
    if rule.is_empty() { String::new() } else { format!(" of rule {}", plain(rule)) }
}

/// Moves shares after demand until the process is stopped. Errors are reported once, until they are over.
async fn balance(control: &RegionsControl) -> io::Result<ExitCode> {
    let mut told = None;
    loop {
        match control.balance().await {
            Ok(deliveries) => {
                told = None;
                if !deliveries.is_empty() {
                    delivered(Ok(deliveries), OutputFormat::Text)?;
                }
            }
            Err(error) => {
                let problem = error.to_string();
                if told.as_ref() != Some(&problem) {
                    failed(&error)?;
                    told = Some(problem);
                }
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// A transfer and its outcome.
#[derive(Serialize)]
struct ShownOutcome<'d> {
    from: &'d str,
    to: &'d str,
    rule: &'d str,
    share: String,
    parked: Option<&'d str>,
}

fn delivered(done: Result<Vec<TransferOutcome>, RegionsError>, format: OutputFormat) -> io::Result<ExitCode> {
    let deliveries = match done {
        Ok(deliveries) => deliveries,
        Err(error) => return failed(&error),
    };
    let shown: Vec<ShownOutcome<'_>> = deliveries
        .iter()
        .map(|TransferOutcome { transfer, parked }| ShownOutcome {
            from: &transfer.from,
            to: &transfer.to,
            rule: &transfer.rule,
            share: transfer.amount.to_string(),
            parked: parked.as_deref(),
        })
        .collect();
    if format == OutputFormat::Json {
        print_json(&shown)?;
    } else {
        let mut out = anstream::stdout().lock();
        for ShownOutcome { from, to, rule, share, parked } in &shown {
            let of = of_rule(rule);
            match parked {
                None => writeln!(out, "{GOOD}moved{GOOD:#}: {share} from {from} to {to}{of}")?,
                Some(reason) => {
                    writeln!(out, "{WARNING}parked{WARNING:#}: {share} from {from} to {to}{of}: {}", plain(reason))?;
                }
            }
        }
        if shown.is_empty() {
            writeln!(out, "nothing to move")?;
        }
    }
    let is_parked = shown.iter().any(|delivery| delivery.parked.is_some());
    Ok(if is_parked { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The state of all regions.
#[derive(Serialize)]
struct ShownRegions {
    regions: Vec<ShownRegion>,
    /// Problems, such as shares that are more than the whole.
    problems: Vec<String>,
}

#[derive(Serialize)]
struct ShownRegion {
    region: String,
    version: Option<u64>,
    shares: Vec<ShownShare>,
    outgoing: Vec<ShownTransfer>,
    error: Option<String>,
}

#[derive(Serialize)]
struct ShownShare {
    rule: String,
    share: String,
    floor: String,
    parked: String,
}

#[derive(Serialize)]
struct ShownTransfer {
    to: String,
    rule: String,
    share: String,
}

fn status(records: &BTreeMap<String, Result<RegionRecord, FleetError>>, format: OutputFormat) -> io::Result<ExitCode> {
    let shown = ShownRegions { regions: records.iter().map(shown).collect(), problems: problems(records) };
    if format == OutputFormat::Json {
        print_json(&shown)?;
    } else {
        print(&mut anstream::stdout().lock(), &shown)?;
    }
    let is_well = shown.problems.is_empty() && shown.regions.iter().all(|region| region.error.is_none());
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown((region, record): (&String, &Result<RegionRecord, FleetError>)) -> ShownRegion {
    let mut shown =
        ShownRegion { region: region.clone(), version: None, shares: Vec::new(), outgoing: Vec::new(), error: None };
    let ledger = match record {
        Ok(RegionRecord { ledger: Some(ledger), .. }) => ledger,
        Ok(RegionRecord { ledger: None, .. }) => {
            shown.error = Some("no record: its servers apply the floor; `tidegate regions init` creates it".to_owned());
            return shown;
        }
        Err(error) => {
            shown.error = Some(error.to_string());
            return shown;
        }
    };
    shown.version = Some(ledger.version);
    shown.shares = ledger
        .shares
        .iter()
        .map(|(rule, share)| ShownShare {
            rule: rule.clone(),
            share: share.share.to_string(),
            floor: share.floor.to_string(),
            parked: ledger.parked(rule).to_string(),
        })
        .collect();
    shown.outgoing = ledger
        .outgoing
        .iter()
        .map(|transfer| ShownTransfer {
            to: transfer.to.clone(),
            rule: transfer.rule.clone(),
            share: transfer.amount.to_string(),
        })
        .collect();
    shown
}

/// Contradictions between the records that could be read.
fn problems(records: &BTreeMap<String, Result<RegionRecord, FleetError>>) -> Vec<String> {
    let known = |(region, record): (&'_ String, &'_ Result<RegionRecord, FleetError>)| {
        record.as_ref().ok().and_then(|record| record.ledger.clone()).map(|ledger| (region.clone(), ledger))
    };
    let ledgers: Vec<(String, ShareLedger)> = records.iter().filter_map(known).collect();
    let mut problems = Vec::new();
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (region, ledger) in &ledgers {
        if ledger.region != *region {
            problems.push(format!("the Redis of `{region}` has the record of `{}`", ledger.region));
        }
        for (_, other) in ledgers.iter().filter(|(_, other)| ledger.is_behind(other)) {
            problems.push(format!(
                "the record of `{region}` is older than it was: `{}` has received a share that it does not know of",
                other.region
            ));
        }
        for (rule, share) in &ledger.shares {
            *sums.entry(rule).or_default() += u64::from(share.share.parts_per_million());
        }
        for transfer in &ledger.outgoing {
            // It is counted where it has arrived.
            let to = ledgers.iter().find(|(name, _)| *name == transfer.to);
            let has_arrived = to
                .and_then(|(_, to)| to.received.get(&transfer.from))
                .is_some_and(|received| received.born == transfer.born && received.number >= transfer.number);
            if !has_arrived {
                *sums.entry(&transfer.rule).or_default() += u64::from(transfer.amount.parts_per_million());
            }
        }
    }
    let whole = u64::from(Share::WHOLE.parts_per_million());
    for (rule, sum) in sums.into_iter().filter(|(_, sum)| *sum > whole) {
        let percent = sum as f64 / 10_000.0;
        problems.push(format!("the regions have {percent}% together{}", of_rule(rule)));
    }
    problems
}

fn print(out: &mut impl Write, shown: &ShownRegions) -> io::Result<()> {
    let width = shown.regions.iter().map(|region| region.region.len()).max().unwrap_or(0);
    for region in &shown.regions {
        let name = &region.region;
        if let Some(error) = &region.error {
            writeln!(out, "{STRONG}{name:width$}{STRONG:#}  {ERROR}error{ERROR:#}: {}", plain(error))?;
            continue;
        }
        for ShownShare { rule, share, floor, .. } in &region.shares {
            let rule = if rule.is_empty() { "(all rules)".to_owned() } else { plain(rule) };
            writeln!(out, "{STRONG}{name:width$}{STRONG:#}  {share:>8}  {rule}  {FAINT}floor {floor}{FAINT:#}")?;
        }
        for ShownTransfer { to, rule, share } in &region.outgoing {
            let of = of_rule(rule);
            writeln!(
                out,
                "{name:width$}  {WARNING}parked{WARNING:#}: {share} on the way to {to}{of}; `tidegate regions resume`"
            )?;
        }
    }
    for problem in &shown.problems {
        writeln!(out, "{ERROR}error{ERROR:#}: {problem}")?;
    }
    Ok(())
}
