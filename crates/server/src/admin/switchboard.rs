//! Switches that expire.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_core::{Clock, Timestamp};
use tidegate_rules::{Limiter, Mode, Switches};

use super::caller::AdminCaller;

/// The target of a switch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SwitchTarget {
    /// All rules.
    All,
    /// The rule with this id.
    Rule(String),
}

impl SwitchTarget {
    fn get(&self, switches: &Switches) -> Option<Mode> {
        match self {
            SwitchTarget::All => switches.all(),
            SwitchTarget::Rule(id) => switches.rules().find(|(rule, _)| rule == id).map(|(_, mode)| mode),
        }
    }

    fn set(&self, switches: &mut Switches, mode: Option<Mode>, end: Option<Timestamp>) {
        match self {
            SwitchTarget::All => switches.switch_all(mode),
            SwitchTarget::Rule(id) => switches.switch(id, mode),
        }
        if let Some(end) = end {
            switches.set_end(self.rule(), end);
        }
    }

    /// Id of the rule; `None` for all rules.
    pub(super) const fn rule(&self) -> Option<&str> {
        match self {
            SwitchTarget::All => None,
            SwitchTarget::Rule(id) => Some(id.as_str()),
        }
    }

    const fn name(&self) -> &str {
        match self {
            SwitchTarget::All => "(all)",
            SwitchTarget::Rule(id) => id.as_str(),
        }
    }
}

/// Switches that expire, and their expiry times.
#[derive(Debug, Default)]
pub(super) struct Switchboard(Mutex<BTreeMap<SwitchTarget, TimedSwitch>>);

#[derive(Clone, Copy, Debug)]
struct TimedSwitch {
    /// Mode set by the switch.
    mode: Option<Mode>,
    /// Mode to return to, and when that mode ends itself.
    before: (Option<Mode>, Option<Timestamp>),
    until: Timestamp,
}

impl Switchboard {
    fn timed(&self) -> MutexGuard<'_, BTreeMap<SwitchTarget, TimedSwitch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches `target`; `None` restores the mode written in the rules. When the switch expires, the mode from before
    /// the first of consecutive timed switches returns. `by` is the caller, for the log. Returns the generation.
    pub(super) fn switch<S, C: Clock>(
        &self,
        limiter: &Limiter<S, C>,
        target: SwitchTarget,
        mode: Option<Mode>,
        until: Option<Timestamp>,
        by: &AdminCaller,
    ) -> u64 {
        let mut timed = self.timed();
        let rules = limiter.rules();
        let present = target.get(rules.rules.switches());
        let end = rules.rules.switches().end(target.rule());
        // If the mode was changed by other means meanwhile, the new switch returns to that mode.
        let running = timed.remove(&target).filter(|running| running.mode == present);
        let before = running.map_or((present, end), |running| running.before);
        let generation = limiter.switch(|switches| target.set(switches, mode, until));
        let until_unix = until.map(|until| until.as_micros().div_ceil(1_000_000));
        // Logged even without an end, so that a missing field needs no interpretation.
        let ends = if until.is_some() { "by itself" } else { "when it is removed" };
        tracing::info!(rule = target.name(), mode = word(mode), until_unix, ends, by = %by, generation, "switched");
        if let Some(until) = until {
            timed.insert(target, TimedSwitch { mode, before, until });
        }
        generation
    }

    /// Removes expired switches. A rule whose mode was changed by other means meanwhile keeps it. Returns the targets
    /// that have their previous modes again.
    pub(super) fn expire<S, C: Clock>(&self, limiter: &Limiter<S, C>, now: Timestamp) -> Vec<SwitchTarget> {
        let mut timed = self.timed();
        // One change for all expired switches, so that no request sees only some of them.
        let over: Vec<(SwitchTarget, TimedSwitch)> = timed.extract_if(.., |_, timed| timed.until <= now).collect();
        if over.is_empty() {
            return Vec::new();
        }
        let restored = RefCell::new(Vec::new());
        let generation = limiter.switch(|switches| {
            let mut restored = restored.borrow_mut();
            // The change is made again if another one came first.
            restored.clear();
            for (target, TimedSwitch { mode, before, until }) in &over {
                if target.get(switches) == *mode && switches.end(target.rule()) == Some(*until) {
                    let (mode, end) = before_that(*before, now);
                    target.set(switches, mode, end);
                    restored.push((target.clone(), mode));
                }
            }
        });
        let log = |(target, mode): (SwitchTarget, Option<Mode>)| {
            tracing::info!(rule = target.name(), mode = word(mode), generation, "a mode switch has expired");
            target
        };
        restored.into_inner().into_iter().map(log).collect()
    }
}

/// The mode that a switch returns to. As written if that mode has ended meanwhile.
fn before_that((mode, end): (Option<Mode>, Option<Timestamp>), now: Timestamp) -> (Option<Mode>, Option<Timestamp>) {
    if end.is_some_and(|end| end <= now) { (None, None) } else { (mode, end) }
}

pub(super) const fn word(mode: Option<Mode>) -> &'static str {
    match mode {
        Some(Mode::Enforce) => "enforce",
        Some(Mode::Shadow) => "shadow",
        Some(Mode::Off) => "off",
        None => "as-written",
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::MemoryStore;
    use tidegate_rules::RuleSet;

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

    fn switch(
        (limiter, board): (&Limiter<MemoryStore>, &Switchboard),
        target: SwitchTarget,
        mode: Option<Mode>,
        end: Option<Timestamp>,
    ) {
        board.switch(limiter, target, mode, end, &AdminCaller::default());
    }

    fn end(limiter: &Limiter<MemoryStore>, rule: Option<&str>) -> Option<Timestamp> {
        limiter.rules().rules.switches().end(rule)
    }

    fn a() -> SwitchTarget {
        SwitchTarget::Rule("a".to_owned())
    }

    #[test]
    fn a_switch_lasts_until_its_end_and_not_longer() {
        let (limiter, board) = (limiter(), Switchboard::default());
        switch((&limiter, &board), SwitchTarget::All, Some(Mode::Off), Some(at(100)));
        switch((&limiter, &board), a(), Some(Mode::Shadow), None);
        board.expire(&limiter, at(99));
        assert_eq!((mode(&limiter, "a"), mode(&limiter, "b")), (Mode::Off, Mode::Off));
        assert_eq!(end(&limiter, None), Some(at(100)));
        board.expire(&limiter, at(100));
        assert_eq!((mode(&limiter, "a"), mode(&limiter, "b")), (Mode::Shadow, Mode::Enforce));
        board.expire(&limiter, at(1_000_000));
        assert_eq!(mode(&limiter, "a"), Mode::Shadow);
    }

    #[test]
    fn of_several_switches_in_a_row_the_end_goes_back_before_the_first() {
        let (limiter, board) = (limiter(), Switchboard::default());
        switch((&limiter, &board), a(), Some(Mode::Shadow), None);
        switch((&limiter, &board), a(), Some(Mode::Off), Some(at(10)));
        switch((&limiter, &board), a(), Some(Mode::Enforce), Some(at(20)));
        board.expire(&limiter, at(10));
        assert_eq!(mode(&limiter, "a"), Mode::Enforce);
        board.expire(&limiter, at(20));
        assert_eq!(mode(&limiter, "a"), Mode::Shadow);
    }

    #[test]
    fn later_switches_are_left_alone() {
        let (limiter, board) = (limiter(), Switchboard::default());
        switch((&limiter, &board), a(), Some(Mode::Off), Some(at(10)));
        limiter.switch(|switches| switches.switch("a", Some(Mode::Shadow)));
        assert_eq!(end(&limiter, Some("a")), None);
        switch((&limiter, &board), SwitchTarget::All, Some(Mode::Shadow), Some(at(10)));
        assert_eq!(board.expire(&limiter, at(10)), [SwitchTarget::All]);
        assert_eq!(mode(&limiter, "a"), Mode::Shadow);
    }

    #[test]
    fn a_switch_goes_back_to_what_still_holds() {
        for (end, mode_after) in [(15, Mode::Enforce), (40, Mode::Off)] {
            let (limiter, board) = (limiter(), Switchboard::default());
            // A fleet's switches are applied in the same way.
            limiter.switch(|switches| {
                switches.switch("a", Some(Mode::Off));
                switches.set_end(Some("a"), at(end));
            });
            switch((&limiter, &board), a(), Some(Mode::Shadow), Some(at(20)));
            board.expire(&limiter, at(20));
            assert_eq!(mode(&limiter, "a"), mode_after);
        }
    }

    #[test]
    fn a_switch_without_end_takes_the_end_away() {
        let (limiter, board) = (limiter(), Switchboard::default());
        switch((&limiter, &board), a(), Some(Mode::Off), Some(at(10)));
        switch((&limiter, &board), a(), Some(Mode::Off), None);
        board.expire(&limiter, at(10));
        assert_eq!(mode(&limiter, "a"), Mode::Off);
        switch((&limiter, &board), a(), None, None);
        assert_eq!(mode(&limiter, "a"), Mode::Enforce);
    }
}
