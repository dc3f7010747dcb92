//! Replay: an access log held against rules, before they are deployed.
//!
//! Each line of the log becomes a request, and the engine decides it as a server would have at that time. The log is read
//! once, in constant memory, however long it is.
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

mod frequent;
mod judge;
mod log;
mod reading;
mod render;
mod report;
mod spread;
mod suggest;
mod timeline;

pub use log::{Entry, LineError, LineReader, LogFormat, NoSuchFormat};
pub use reading::{Input, Malformed, Progress, ReadError, Reader, Reading};
pub use render::{csv, html, text};
pub use report::{Changed, Comparison, DeniedKey, JudgeReport, LimitReport, Report, Streak};
pub use spread::Waits;
pub use suggest::{Alternative, Suggestion};
pub use timeline::Bin;

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::RuleSet;

use self::frequent::Frequent;
use self::judge::{Judge, Judged};

/// How many keys a replay keeps apart unless told otherwise: about 200 MB if all of them owe something at once.
pub const DEFAULT_MAX_KEYS: usize = 1 << 22;

/// Rules, and what they have made of the logs so far.
pub struct Replay {
    reader: Reader,
    judge: Judge,
    change: Option<Change>,
    suggesting: Option<Suggesting>,
}

/// Other rules beside the first, and who notices.
struct Change {
    new: Judge,
    both_admit: u64,
    both_deny: u64,
    newly_denied: u64,
    newly_admitted: u64,
    losers: Frequent,
    gainers: Frequent,
}

/// How a replay is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What the logs are written in; `None` looks at their first lines.
    pub format: Option<LogFormat>,
    /// Whether lines of which only the second is known are spread over it.
    pub spread: bool,
    /// How many keys are kept apart.
    pub max_keys: usize,
    /// Whether to suggest limits, and which.
    pub suggest: Option<Suggesting>,
}

/// Which limits to suggest.
#[derive(Clone, Copy, Debug)]
pub struct Suggesting {
    /// The share of keys that a limit leaves alone.
    pub share: f64,
    /// Of those that leave as many alone, the one that admits the least within this span.
    pub within: Micros,
    /// Whether the rules are there for their keys alone, so that nobody wants to know whom they limit.
    pub only: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { format: None, spread: true, max_keys: DEFAULT_MAX_KEYS, suggest: None }
    }
}

impl Replay {
    /// Of these rules.
    #[must_use]
    pub fn of(rules: RuleSet) -> Replay {
        Replay::with(rules, None, &Settings::default())
    }

    /// Of these rules, and if wanted of new ones beside them.
    #[must_use]
    pub fn with(rules: RuleSet, new: Option<RuleSet>, settings: &Settings) -> Replay {
        let reader = Reader::new(settings.format);
        let change = |rules| Change {
            new: Judge::new(rules, settings.max_keys, false),
            both_admit: 0,
            both_deny: 0,
            newly_denied: 0,
            newly_admitted: 0,
            losers: Frequent::new(Frequent::CAPACITY),
            gainers: Frequent::new(Frequent::CAPACITY),
        };
        Replay {
            reader: if settings.spread { reader } else { reader.without_spreading() },
            judge: Judge::new(rules, settings.max_keys, settings.suggest.is_some()),
            change: new.map(change),
            suggesting: settings.suggest,
        }
    }

    /// Reads a log to its end. Logs follow each other in the order of their times.
    ///
    /// # Errors
    /// If the log cannot be read, or is in no format that is known.
    pub fn read(&mut self, input: Input, progress: impl FnMut(Progress)) -> Result<(), ReadError> {
        self.read_and_tell(input, progress, |_, _, _| {})
    }

    /// As [`Replay::read`], and tells of each request whether the rules would have let it through.
    ///
    /// # Errors
    /// As [`Replay::read`].
    pub fn read_and_tell(
        &mut self,
        input: Input,
        progress: impl FnMut(Progress),
        mut each: impl FnMut(&Entry<'_>, Timestamp, bool),
    ) -> Result<(), ReadError> {
        let Replay { reader, judge, change, .. } = self;
        let take = |entry: &Entry<'_>, at: Timestamp| {
            let judged = judge.take(entry, at);
            if let Some(change) = change {
                change.take(entry, at, judge, &judged);
            }
            each(entry, at, judged.admitted);
        };
        reader.read(input, take, progress)
    }

    /// What came of it so far, with so many keys in each list.
    #[must_use]
    pub fn report(&self, top: usize) -> Report {
        Report {
            reading: self.reader.reading().clone(),
            outcome: self.judge.report(top),
            comparison: self.change.as_ref().map(|change| change.report(&self.judge, top)),
            suggestions: self
                .suggesting
                .map_or_else(Vec::new, |Suggesting { share, within, .. }| self.judge.suggestions(share, within)),
            suggestions_only: self.suggesting.is_some_and(|suggesting| suggesting.only),
        }
    }
}

impl Change {
    fn take(&mut self, entry: &Entry<'_>, at: Timestamp, old: &Judge, before: &Judged) {
        let after = self.new.take(entry, at);
        let count = |judge: &Judge, judged: &Judged, keys: &mut Frequent| {
            if let Some(denier) = judged.denier {
                keys.count(denier.1, denier.0, at, || judge.name(entry, denier));
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

    fn report(&self, old: &Judge, top: usize) -> Comparison {
        let list = |judge: &Judge, keys: &Frequent| {
            let changed = |known: &frequent::Frequented| Changed {
                limit: judge.limit_id(known.limit).to_owned(),
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
