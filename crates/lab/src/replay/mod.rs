//! Replay: an access log, checked against rules before they are deployed.
//!
//! Each line of the log becomes a request, and the engine decides it as a server would have at that time. The log is read
//! once, in constant memory.
//!
//! ```
//! use tidegate_rules::RuleSet;
//! use tidegate_lab::replay::{Input, Replay};
//!
//! let rules = RuleSet::parse("rules.yaml", "rules: [{ id: login, key: address, limit: log 2/min }]");
//! let log = "time,address\n0,192.0.2.1\n1,192.0.2.1\n2,192.0.2.1\n61,192.0.2.1\n";
//!
//! let mut replay = Replay::of(rules.map_err(|findings| findings.to_string())?.rules);
//! replay.read(Input::from_reader("log", log.as_bytes())?, |_| {})?;
//! let outcome = replay.report(10).outcome;
//! assert_eq!((outcome.admitted, outcome.denied), (3, 1));
//! assert_eq!(outcome.keys[0].key, "192.0.2.1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod heavy_hitters;
mod histogram;
mod input;
mod log;
mod log_reader;
mod render;
mod report;
mod rule_run;
mod similar_traffic;
mod suggest;
mod timeline;

pub use histogram::Waits;
pub use input::{Input, ReadError};
pub use log::{AccessEntry, LineError, LineReader, LogFormat, NoSuchFormat};
pub use log_reader::{LogProgress, LogReader, LogSummary, MalformedLine};
pub use render::{csv, html, text};
pub use report::{AffectedKey, Comparison, DeniedKey, LimitReport, ReplayReport, RuleReport, Streak, UnkeyedRequests};
pub use similar_traffic::SimilarTraffic;
pub use suggest::{Alternative, Headroom, LimitedKey, Suggestion};
pub use timeline::Bin;

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::RuleSet;

use self::heavy_hitters::HeavyHitters;
use self::rule_run::{ReplayedOutcome, RuleRun};
use self::suggest::SuggestionForm;

/// The default of [`ReplaySettings::max_keys`]. State for that many keys takes about 200 MB.
pub const DEFAULT_MAX_KEYS: usize = 1 << 22;

/// Rules, and the outcome of the logs so far.
pub struct Replay {
    reader: LogReader,
    run: RuleRun,
    change: Option<RulesChange>,
    suggesting: Option<SuggestionSettings>,
}

/// A second set of rules, and the keys that it affects.
struct RulesChange {
    new: RuleRun,
    both_admit: u64,
    both_deny: u64,
    newly_denied: u64,
    newly_admitted: u64,
    losers: HeavyHitters,
    gainers: HeavyHitters,
}

/// Settings of a replay.
#[derive(Clone, Copy, Debug)]
pub struct ReplaySettings {
    /// The format of the logs. `None` detects it from their first lines.
    pub format: Option<LogFormat>,
    /// Spread lines whose time is known only to the second evenly over that second.
    pub spread: bool,
    /// The latest plausible time of a line, such as a day from now: later lines are malformed. `None` takes every time as it is.
    pub not_after: Option<Timestamp>,
    /// The number of keys with state of their own.
    pub max_keys: usize,
    /// Suggest limits.
    pub suggest: Option<SuggestionSettings>,
}

/// Settings for suggested limits.
#[derive(Clone, Copy, Debug)]
pub struct SuggestionSettings {
    /// The share of keys that a limit never denies.
    pub share: f64,
    /// The span in which a suggested limit admits as little as possible.
    pub within: Micros,
    /// The rules only provide keys; their decisions are not reported.
    pub only: bool,
}

impl Default for ReplaySettings {
    fn default() -> ReplaySettings {
        ReplaySettings { format: None, spread: true, not_after: None, max_keys: DEFAULT_MAX_KEYS, suggest: None }
    }
}

impl Replay {
    /// A replay of these rules.
    #[must_use]
    pub fn of(rules: RuleSet) -> Replay {
        Replay::with(rules, None, &ReplaySettings::default())
    }

    /// A replay of these rules, optionally compared with new ones.
    #[must_use]
    pub fn with(rules: RuleSet, new: Option<RuleSet>, settings: &ReplaySettings) -> Replay {
        let reader = LogReader::new(settings.format);
        let reader = match settings.not_after {
            Some(instant) => reader.not_after(instant),
            None => reader,
        };
        let change = |rules| RulesChange {
            new: RuleRun::new(rules, settings.max_keys, false),
            both_admit: 0,
            both_deny: 0,
            newly_denied: 0,
            newly_admitted: 0,
            losers: HeavyHitters::new(HeavyHitters::CAPACITY),
            gainers: HeavyHitters::new(HeavyHitters::CAPACITY),
        };
        Replay {
            reader: if settings.spread { reader } else { reader.without_spreading() },
            run: RuleRun::new(rules, settings.max_keys, settings.suggest.is_some()),
            change: new.map(change),
            suggesting: settings.suggest,
        }
    }

    /// Reads a log to its end. Logs must be passed in the order of their times.
    ///
    /// # Errors
    /// The log cannot be read, or its format is unknown.
    pub fn read(&mut self, input: Input, progress: impl FnMut(LogProgress)) -> Result<(), ReadError> {
        self.read_each(input, progress, |_, _, _| {})
    }

    /// Reads a log like [`Replay::read`], and reports for each request whether the rules admit it.
    ///
    /// # Errors
    /// The same as for [`Replay::read`].
    pub fn read_each(
        &mut self,
        input: Input,
        progress: impl FnMut(LogProgress),
        mut each: impl FnMut(&AccessEntry<'_>, Timestamp, bool),
    ) -> Result<(), ReadError> {
        let Replay { reader, run, change, .. } = self;
        let take = |entry: &AccessEntry<'_>, at: Timestamp| {
            let outcome = run.take(entry, at);
            if let Some(change) = change {
                change.take(entry, at, run, &outcome);
            }
            each(entry, at, outcome.admitted);
        };
        reader.read(input, take, progress)
    }

    /// The report so far, with at most `top` keys in each list.
    #[must_use]
    pub fn report(&self, top: usize) -> ReplayReport {
        ReplayReport {
            reading: self.reader.summary().clone(),
            outcome: self.run.report(top),
            comparison: self.change.as_ref().map(|change| change.report(&self.run, top)),
            suggestions: self.suggesting.map_or_else(Vec::new, |SuggestionSettings { share, within, only }| {
                self.run.suggestions(&SuggestionForm { share, within, is_rule: only, top })
            }),
            suggestions_only: self.suggesting.is_some_and(|suggesting| suggesting.only),
        }
    }
}

impl RulesChange {
    fn take(&mut self, entry: &AccessEntry<'_>, at: Timestamp, old: &RuleRun, before: &ReplayedOutcome) {
        let after = self.new.take(entry, at);
        let count = |run: &RuleRun, outcome: &ReplayedOutcome, keys: &mut HeavyHitters| {
            if let Some(denier) = outcome.denier {
                keys.count(denier.1, denier.0, at, || run.name(entry, denier));
            }
        };
        match (before.admitted, after.admitted) {
            (true, true) => self.both_admit += 1,
            (false, false) => self.both_deny += 1,
            (true, false) => {
                self.newly_denied += 1;
                count(&self.new, &after, &mut self.losers);
            }
            (false, true) => {
                self.newly_admitted += 1;
                count(old, before, &mut self.gainers);
            }
        }
    }

    fn report(&self, old: &RuleRun, top: usize) -> Comparison {
        let list = |run: &RuleRun, keys: &HeavyHitters| {
            let changed = |known: &heavy_hitters::KeyCount| AffectedKey {
                limit: run.limit_id(known.limit).to_owned(),
                key: known.key.clone(),
                requests: known.count,
                first: known.first.as_micros(),
                last: known.last.as_micros(),
            };
            keys.top(top).into_iter().map(changed).collect()
        };
        Comparison {
            new: self.new.report(top),
            both_admit: self.both_admit,
            both_deny: self.both_deny,
            newly_denied: self.newly_denied,
            newly_admitted: self.newly_admitted,
            losing_keys: self.losers.seen(),
            gaining_keys: self.gainers.seen(),
            losers: list(&self.new, &self.losers),
            gainers: list(old, &self.gainers),
        }
    }
}
