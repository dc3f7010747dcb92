//! `tidegate regions`: shows and moves shares of regions.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use tidegate_core::regions::{RegionShare, Share};
use tidegate_redis::fleet::{RegionsControl, RegionsError, Resumption, TakenBack};

use super::region_report::{self, StandingReports};
use super::settings_args::variables;
use super::{GOOD, OutputFormat, WARNING, failed};
use crate::config::{Configuration, FILE_VARIABLE, RegionServers, StartupArgs};
use crate::region_records::RegionRecords;

/// Default prefix of a fleet's keys.
const DEFAULT_PREFIX: &str = "tidegate";
/// The interval at which demand is read.
const BALANCE_PAUSE: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
Examples:
  export TIDEGATE_REGIONS=eu=redis://cache.eu.internal,us=redis://cache.us.internal
  tidegate regions init rules.yaml
  tidegate regions
  tidegate regions --config tidegate.yaml                    servers from the file
  tidegate regions set eu=70 us=30
  tidegate regions move 10 --from eu --to us --rules rules.yaml
  tidegate regions resume
  tidegate regions cancel 7 --from eu --to us
  tidegate regions balance --config tidegate.yaml
  tidegate regions retire us --it-is-down

Exit status: 0 on success, 1 if a region does not answer, shares do not add up or one is parked, 2 on a usage error.";

/// Show and move the regions' shares of limits.
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
    /// Name of a region and the URL of its Redis. Repeat it for each region, or separate regions by commas.
    #[arg(long = "region", global = true, value_name = "NAME=URL", env = "TIDEGATE_REGIONS", hide_env_values = true)]
    #[arg(value_delimiter = ',')]
    regions: Vec<String>,

    /// Configuration file of the server, with `store.redis.regions`, the prefix and the rules. `--region` overrides its servers.
    #[arg(long, short = 'c', global = true, value_name = "FILE", env = FILE_VARIABLE)]
    config: Option<PathBuf>,

    /// Rules files, or folders of them. Rights in running windows move with the shares. Default: the rules of the configuration file.
    #[arg(long, global = true, value_name = "FILE")]
    rules: Vec<PathBuf>,

    /// Prefix of all keys. Default: the prefix in the configuration file, or `tidegate`.
    #[arg(long, global = true, value_name = "PREFIX")]
    prefix: Option<String>,

    /// Timeout for a reply, in seconds.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
}

#[derive(Subcommand)]
enum RegionsCommand {
    /// Create the records of regions with the shares of the rules. Existing records are kept. A lost one gets the share that the others leave.
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
        /// Share to move, such as `10` or `2.5%`.
        #[arg(value_name = "PERCENT")]
        amount: String,
        /// Region that gives the share.
        #[arg(long, value_name = "REGION")]
        from: String,
        /// Region that receives the share.
        #[arg(long, value_name = "REGION")]
        to: String,
        #[command(flatten)]
        rule: RuleArg,
    },
    /// Continue transfers that were interrupted.
    Resume,
    /// Take back a parked share: this returns it to the sending region; the receiving region will reject it. If that one cannot be asked, this
    /// works while delivery has not started.
    Cancel {
        /// Number of the transfer, as `tidegate regions` shows it.
        #[arg(value_name = "TRANSFER")]
        number: u64,
        /// Region that gave the share.
        #[arg(long, value_name = "REGION")]
        from: String,
        /// Region that has not received it.
        #[arg(long, value_name = "REGION")]
        to: String,
        /// Confirm that transfer TRANSFER is not in the record of the region `--to`, for a share whose delivery has started and a region that
        /// cannot be asked. Nothing checks it: if the region has received the share, both decide by it until `tidegate regions resume`
        /// reaches that region, which gives it up here again. Until then it cannot move on. Waits up to 11 seconds, after which it can no
        /// longer be delivered.
        #[arg(long)]
        never_applied: bool,
    },
    /// Rebalance shares by demand until stopped: half of the gap per step, at most one step in 5 seconds. Run a single instance.
    Balance {
        /// Make at most one step, if shares are off by 5 points or more, and exit.
        #[arg(long)]
        once: bool,
    },
    /// Retire a region that is down for good: give its shares to another region.
    Retire {
        /// Region to retire.
        #[arg(value_name = "REGION")]
        region: String,
        /// Region that receives the shares. Default: the one with the largest share.
        #[arg(long, value_name = "REGION")]
        to: Option<String>,
        /// Confirm that no server of the region decides requests any more. If one does, both regions have its share.
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
    let (control, has_rules) = match args.access.control() {
        Ok(found) => found,
        Err(problem) => {
            failed(&problem)?;
            return Ok(ExitCode::from(2));
        }
    };
    if let Some(command) = args.command.as_ref().filter(|command| !has_rules && command.begins_transfers()) {
        warn_without_rules(command)?;
    }
    let (runtime, format) = (tokio::runtime::Builder::new_current_thread().enable_all().build()?, args.format);
    match &args.command {
        None => region_report::status(&runtime.block_on(RegionRecords::read(&control)), format),
        Some(RegionsCommand::Init { files }) => init(&runtime, &control, files),
        Some(RegionsCommand::Set { shares, rule }) => match targets(shares) {
            Ok(targets) => moved(runtime.block_on(control.set(&rule.rule, &targets)), format),
            Err(problem) => failed(&problem),
        },
        Some(RegionsCommand::Move { amount, from, to, rule }) => match amount.parse::<Share>() {
            Ok(amount) => moved(runtime.block_on(control.move_share(from, to, &rule.rule, amount)), format),
            Err(problem) => failed(&problem),
        },
        Some(RegionsCommand::Resume) => moved(Ok(runtime.block_on(control.resume())), format),
        Some(RegionsCommand::Cancel { number, from, to, never_applied }) => {
            cancel(runtime.block_on(control.cancel(from, to, *number, *never_applied)), to, *never_applied)
        }
        Some(RegionsCommand::Balance { once: true }) => {
            let step = runtime.block_on(control.balance());
            for rule in &step.settling {
                let of = region_report::of_rule(rule);
                writeln!(anstream::stderr(), "shares{of} are not moved: the last one has not settled")?;
            }
            moved(Ok(step.resumed), format)
        }
        Some(RegionsCommand::Balance { once: false }) => runtime.block_on(balance(&control)),
        Some(RegionsCommand::Retire { region, it_is_down: false, .. }) => failed(&format!(
            "only you can know that `{region}` is down: its shares are handed out twice if a server there still decides; \
             repeat with `--it-is-down` once all of them have stopped"
        )),
        Some(RegionsCommand::Retire { region, to, it_is_down: true }) => {
            match runtime.block_on(control.retire(region, to.as_deref())) {
                Ok(retired) => region_report::retirement(&retired),
                Err(error) => failed(&error),
            }
        }
    }
}

impl RegionsCommand {
    /// Whether the command begins transfers, with which rights of running windows move.
    const fn begins_transfers(&self) -> bool {
        matches!(self, RegionsCommand::Set { .. } | RegionsCommand::Move { .. } | RegionsCommand::Balance { .. })
    }
}

/// Warns that rules are not known.
fn warn_without_rules(command: &RegionsCommand) -> io::Result<()> {
    let more = if matches!(command, RegionsCommand::Balance { .. }) {
        ", and shares do not wait until the last ones have settled"
    } else {
        ""
    };
    writeln!(
        anstream::stderr(),
        "{WARNING}warning{WARNING:#}: no rules are given, so shares of fixed windows count from the next window on{more}: \
         give them with `--rules FILE`, or `--config`"
    )
}

fn cancel(done: Result<TakenBack, RegionsError>, to: &str, never_applied: bool) -> io::Result<ExitCode> {
    match done {
        Ok(TakenBack { transfer, is_reserved }) => {
            let of = region_report::of_rule(&transfer.rule);
            writeln!(
                anstream::stdout(),
                "{GOOD}taken back{GOOD:#}: {} has {} again{of}",
                transfer.from,
                transfer.amount
            )?;
            if is_reserved {
                writeln!(
                    anstream::stderr(),
                    "{WARNING}note{WARNING:#}: it cannot move on until `tidegate regions resume` has asked {to}: if {to} has received \
                     it, both regions have it until then"
                )?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error) if !never_applied && is_unreachable(&error, to) => failed(&format!(
            "{error}. Delivery of the share has begun, so only `{to}` knows whether it has arrived. If the region that gave it \
             answers, and you have made sure that `{to}` has not received it, repeat with `--never-applied`"
        )),
        Err(error) => failed(&error),
    }
}

fn is_unreachable(error: &RegionsError, asked: &str) -> bool {
    matches!(error, RegionsError::Region { region, .. } if region == asked)
}

impl Access {
    /// Access to all regions, and whether the rules are known.
    fn control(&self) -> Result<(RegionsControl, bool), String> {
        let (servers, rules) = self.servers()?;
        if servers.is_empty() {
            return Err("no region is given: write `--region NAME=URL` for each, set TIDEGATE_REGIONS, or name a configuration \
                        file that has `store.redis.regions` with `--config`"
                .to_owned());
        }
        let control = servers.control(Duration::from_secs(self.timeout)).map_err(|error| error.to_string())?;
        if rules.is_empty() {
            return Ok((control, false));
        }
        let loaded = tidegate_rules::load(&rules).map_err(|findings| findings.to_string())?;
        let limits = loaded.rules.shared_limits();
        Ok((control.with_windows(loaded.rules.shared_windows()).with_limits(limits), true))
    }

    /// The servers, and the rules files.
    fn servers(&self) -> Result<(RegionServers, Vec<PathBuf>), String> {
        let (servers, rules) = match &self.config {
            None => (self.given_servers(self.prefix.as_deref().unwrap_or(DEFAULT_PREFIX))?, Vec::new()),
            Some(file) => {
                let prefix = self.prefix.iter().map(|prefix| ("store.redis.prefix".to_owned(), vec![prefix.clone()]));
                let given = StartupArgs { file: Some(file.clone()), flags: prefix.collect() };
                let Configuration { regions, rules, .. } =
                    Configuration::load(&given, &variables()).map_err(|errors| errors.to_string())?;
                (if self.regions.is_empty() { regions } else { self.given_servers(regions.prefix())? }, rules)
            }
        };
        Ok((servers, if self.rules.is_empty() { rules } else { self.rules.clone() }))
    }

    /// The servers that `--region` names.
    fn given_servers(&self, prefix: &str) -> Result<RegionServers, String> {
        let servers = RegionServers::parse(&self.regions, prefix);
        servers.map_err(|(_, wrong)| format!("`--region`: {}: {}", wrong.problem, wrong.help))
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

/// Moves shares by demand until the process is stopped.
async fn balance(control: &RegionsControl) -> io::Result<ExitCode> {
    let mut reports = StandingReports::default();
    loop {
        reports.print(&control.balance().await)?;
        tokio::time::sleep(BALANCE_PAUSE).await;
    }
}

/// Prints the outcome of a command that moves shares.
fn moved(done: Result<Resumption, RegionsError>, format: OutputFormat) -> io::Result<ExitCode> {
    match done {
        Ok(resumed) => region_report::transfers(&resumed, format),
        Err(error) => failed(&error),
    }
}
