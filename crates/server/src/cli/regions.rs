//! `tidegate regions`: shares of regions, shown and moved.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use tidegate_core::regions::{RegionShare, Share};
use tidegate_redis::fleet::{RegionsControl, RegionsError, TransferOutcome};

use super::settings_args::variables;
use super::{ERROR, FAINT, GOOD, OutputFormat, STRONG, WARNING, failed, plain, print_json};
use crate::config::{Configuration, FILE_VARIABLE, RegionServers, StartupArgs};
use crate::region_records::{RegionRecords, ShownOutcome, ShownShare, ShownTransfer};

/// The prefix of keys that a fleet has unless it is told another.
const DEFAULT_PREFIX: &str = "tidegate";

const EXAMPLES: &str = "\
Examples:
  export TIDEGATE_REGIONS=eu=redis://cache.eu.internal,us=redis://cache.us.internal
  tidegate regions init rules.yaml
  tidegate regions
  tidegate regions --config tidegate.yaml                    servers from the file
  tidegate regions set eu=70 us=30
  tidegate regions move 10 --from eu --to us --rules rules.yaml
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

    /// Configuration file of the server, with `store.redis.regions`. `--region` takes precedence.
    #[arg(long, short = 'c', global = true, value_name = "FILE", env = FILE_VARIABLE)]
    config: Option<PathBuf>,

    /// Rules files, or folders of them: rights of running windows move with shares. Default: those of the configuration file.
    #[arg(long, global = true, value_name = "FILE")]
    rules: Vec<PathBuf>,

    /// Prefix of all keys. Default: that of the configuration file, or `tidegate`.
    #[arg(long, global = true, value_name = "PREFIX")]
    prefix: Option<String>,

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
        None => status(&runtime.block_on(RegionRecords::read(&control)), args.format),
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
        let (servers, rules) = self.servers()?;
        if servers.is_empty() {
            return Err("no region is given: write `--region NAME=URL` for each, set TIDEGATE_REGIONS, or name a configuration \
                        file that has `store.redis.regions` with `--config`"
                .to_owned());
        }
        let control = servers.control(Duration::from_secs(self.timeout)).map_err(|error| error.to_string())?;
        if rules.is_empty() {
            return Ok(control);
        }
        let loaded = tidegate_rules::load(&rules).map_err(|findings| findings.to_string())?;
        Ok(control.with_windows(loaded.rules.shared_windows()))
    }

    /// The servers, and the rules files that come with them.
    fn servers(&self) -> Result<(RegionServers, Vec<PathBuf>), String> {
        if !self.regions.is_empty() || self.config.is_none() {
            let prefix = self.prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
            let servers = RegionServers::parse(&self.regions, prefix);
            let servers = servers.map_err(|(_, wrong)| format!("`--region`: {}: {}", wrong.problem, wrong.help))?;
            return Ok((servers, self.rules.clone()));
        }
        let prefix = self.prefix.iter().map(|prefix| ("store.redis.prefix".to_owned(), vec![prefix.clone()]));
        let given = StartupArgs { file: self.config.clone(), flags: prefix.collect() };
        let configuration = Configuration::load(&given, &variables()).map_err(|errors| errors.to_string())?;
        let rules = if self.rules.is_empty() { configuration.rules } else { self.rules.clone() };
        Ok((configuration.regions, rules))
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

fn delivered(done: Result<Vec<TransferOutcome>, RegionsError>, format: OutputFormat) -> io::Result<ExitCode> {
    let deliveries = match done {
        Ok(deliveries) => deliveries,
        Err(error) => return failed(&error),
    };
    let shown: Vec<ShownOutcome> = deliveries.iter().map(ShownOutcome::of).collect();
    if format == OutputFormat::Json {
        print_json(&shown)?;
    } else {
        let mut out = anstream::stdout().lock();
        for ShownOutcome { from, to, rule, share, parked, stranded } in &shown {
            let of = of_rule(rule);
            match parked {
                None => {
                    writeln!(out, "{GOOD}moved{GOOD:#}: {share} from {from} to {to}{of}")?;
                    if let Some(reason) = stranded {
                        let stay = "rights of running windows stay behind";
                        writeln!(out, "{WARNING}warning{WARNING:#}: {stay}: {}", plain(reason))?;
                    }
                }
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

fn status(shown: &RegionRecords, format: OutputFormat) -> io::Result<ExitCode> {
    if format == OutputFormat::Json {
        print_json(shown)?;
    } else {
        print(&mut anstream::stdout().lock(), shown)?;
    }
    let is_parked = shown.regions.iter().any(|region| !region.outgoing.is_empty());
    Ok(if shown.are_well() && !is_parked { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(out: &mut impl Write, shown: &RegionRecords) -> io::Result<()> {
    let width = shown.regions.iter().map(|region| region.region.len()).max().unwrap_or(0);
    for region in &shown.regions {
        let name = &region.region;
        if let Some(error) = &region.error {
            writeln!(out, "{STRONG}{name:width$}{STRONG:#}  {ERROR}error{ERROR:#}: {}", plain(error))?;
            continue;
        }
        for ShownShare { rule, share, floor, demand, .. } in &region.shares {
            let rule = if rule.is_empty() { "(all rules)".to_owned() } else { plain(rule) };
            let demand = demand.filter(|demand| *demand >= 0.5);
            let demand = demand.map(|demand| format!("  demand {demand:.0}/s")).unwrap_or_default();
            writeln!(
                out,
                "{STRONG}{name:width$}{STRONG:#}  {share:>8}  {rule}  {FAINT}floor {floor}{FAINT:#}{demand}"
            )?;
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
        writeln!(out, "{ERROR}error{ERROR:#}: {}", plain(problem))?;
    }
    Ok(())
}
