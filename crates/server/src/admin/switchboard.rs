//! Switches that end by themselves.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::rules::{Mode, Switches};
use tidegate_core::{Clock, Limiter, Timestamp};

/// What is switched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// All rules.
    All,
    /// The rule of this id.
    Rule(String),
}

impl Target {
    fn get(&self, switches: &Switches) -> Option<Mode> {
        match self {
            Target::All => switches.all(),
            Target::Rule(id) => switches.rules().find(|(rule, _)| rule == id).map(|(_, mode)| mode),
        }
    }

    fn set(&self, switches: &mut Switches, mode: Option<Mode>) {
        match self {
            Target::All => switches.switch_all(mode),
            Target::Rule(id) => switches.switch(id, mode),
        }
    }

    const fn name(&self) -> &str {
        match self {
            Target::All => "(all)",
            Target::Rule(id) => id.as_str(),
        }
    }
}

/// Remembers which switches end, and when.
#[derive(Debug, Default)]
pub(super) struct Switchboard(Mutex<BTreeMap<Target, Timed>>);

#[derive(Clone, Copy, Debug)]
struct Timed {
    /// What it was switched to.
    mode: Option<Mode>,
    /// What it goes back to.
    before: Option<Mode>,
    until: Timestamp,
}

impl Switchboard {
    fn timed(&self) -> MutexGuard<'_, BTreeMap<Target, Timed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches `target`; `None` is as written. When the end comes it is again what it was before the first of the
    /// switches that end. Says the generation.
    pub(super) fn switch<S, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        target: Target,
        mode: Option<Mode>,
        until: Option<Timestamp>,
    ) -> u64 {
        let mut timed = self.timed();
        let present = target.get(limiter.rules().rules.switches());
        // If somebody else has switched it since, that is what it goes back to.
        let running = timed.remove(&target).filter(|running| running.mode == present);
        let before = running.map_or(present, |running| running.before);
        let generation = limiter.switch(|switches| target.set(switches, mode));
        tracing::info!(target = target.name(), mode = word(mode), generation, "switched");
        if let Some(until) = until {
            timed.insert(target, Timed { mode, before, until });
        }
        generation
    }

    /// Takes back the switches whose time is over. One that somebody has switched otherwise since stays.
    pub(super) fn expire<S, C: Clock>(&self, limiter: &Limiter<S, C>, now: Timestamp) {
        let mut timed = self.timed();
        // All at once, so that nobody sees the one without the other.
        let over: Vec<(Target, Timed)> = timed.extract_if(.., |_, timed| timed.until <= now).collect();
        if over.is_empty() {
            return;
        }
        let generation = limiter.switch(|switches| {
            for (target, Timed { mode, before, .. }) in &over {
                if target.get(switches) == *mode {
                    target.set(switches, *before);
                }
            }
        });
        for (target, Timed { before, .. }) in &over {
            tracing::info!(target = target.name(), mode = word(*before), generation, "a switch has come to its end");
        }
    }

    /// When a switch ends, if it does and nobody has switched it otherwise since.
    pub(super) fn until(&self, target: &Target, present: Option<Mode>) -> Option<Timestamp> {
        self.timed().get(target).filter(|timed| timed.mode == present).map(|timed| timed.until)
    }
}

pub(super) const fn word(mode: Option<Mode>) -> &'static str {
    match mode {
        Some(Mode::Enforce) => "enforce",
        Some(Mode::Shadow) => "shadow",
        Some(Mode::Off) => "off",
        None => "as_written",
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::MemoryStore;
    use tidegate_core::rules::RuleSet;

    use super::*;

    fn limiter() -> Limiter<MemoryStore> {
        let rules = RuleSet::parse("test", "rules: [{ id: a, limit: 1/h }, { id: b, limit: 1/h }]").unwrap().rules;
        Limiter::new(rules, MemoryStore::new())
    }

    const fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn mode(limiter: &Limiter<MemoryStore>, rule: &str) -> Mode {
        limiter.rules().rules.mode_of(rule).unwrap()
    }

    fn a() -> Target {
        Target::Rule("a".to_owned())
    }

    #[test]
    fn a_switch_lasts_until_its_end_and_not_longer() {
        let (limiter, board) = (limiter(), Switchboard::default());
        board.switch(&limiter, Target::All, Some(Mode::Off), Some(at(100)));
        board.switch(&limiter, a(), Some(Mode::Shadow), None);
        board.expire(&limiter, at(99));
        assert_eq!((mode(&limiter, "a"), mode(&limiter, "b")), (Mode::Off, Mode::Off));
        assert_eq!(board.until(&Target::All, Some(Mode::Off)), Some(at(100)));
        board.expire(&limiter, at(100));
        assert_eq!((mode(&limiter, "a"), mode(&limiter, "b")), (Mode::Shadow, Mode::Enforce));
        board.expire(&limiter, at(1_000_000));
        assert_eq!(mode(&limiter, "a"), Mode::Shadow);
    }

    #[test]
    fn of_several_switches_in_a_row_the_end_goes_back_before_the_first() {
        let (limiter, board) = (limiter(), Switchboard::default());
        board.switch(&limiter, a(), Some(Mode::Shadow), None);
        board.switch(&limiter, a(), Some(Mode::Off), Some(at(10)));
        board.switch(&limiter, a(), Some(Mode::Enforce), Some(at(20)));
        board.expire(&limiter, at(10));
        assert_eq!(mode(&limiter, "a"), Mode::Enforce);
        board.expire(&limiter, at(20));
        assert_eq!(mode(&limiter, "a"), Mode::Shadow);
    }

    #[test]
    fn what_somebody_has_switched_since_is_left_alone() {
        let (limiter, board) = (limiter(), Switchboard::default());
        board.switch(&limiter, a(), Some(Mode::Off), Some(at(10)));
        limiter.switch(|switches| switches.switch("a", Some(Mode::Shadow)));
        assert_eq!(board.until(&a(), Some(Mode::Shadow)), None);
        board.expire(&limiter, at(10));
        assert_eq!(mode(&limiter, "a"), Mode::Shadow);
    }

    #[test]
    fn a_switch_without_end_takes_the_end_away() {
        let (limiter, board) = (limiter(), Switchboard::default());
        board.switch(&limiter, a(), Some(Mode::Off), Some(at(10)));
        board.switch(&limiter, a(), Some(Mode::Off), None);
        board.expire(&limiter, at(10));
        assert_eq!(mode(&limiter, "a"), Mode::Off);
        board.switch(&limiter, a(), None, None);
        assert_eq!(mode(&limiter, "a"), Mode::Enforce);
    }
}
