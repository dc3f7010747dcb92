//! The published rules and modes that a node has applied to its limiter.

use tidegate_core::{Clock, Timestamp};
use tidegate_rules::{Diagnostics, Limiter, Loaded, Mode, RuleSet, Severity, Switches};

use super::mode_change::ModeChange;
use super::published::{Edition, Head, PublishedModes, RulesHead, Switched};
use super::session::Contents;

/// Maximum length of a refusal's reason, in characters.
const LONGEST_REASON: usize = 500;

/// The published configuration that a node has applied or refused.
#[derive(Debug, Default)]
pub(super) struct AppliedState {
    /// The last edition that was applied.
    pub(super) edition: Option<Edition>,
    /// When the edition was applied, by the clock of Redis.
    pub(super) since: Timestamp,
    /// The published rules that are in force; `None` if the node has rules of its own.
    rules: Option<InForce>,
    /// The published rules that cannot be applied.
    refused: Option<RefusedRules>,
    /// The published modes that have not ended.
    modes: PublishedModes,
    /// Changes of modes that are not reported yet.
    changes: Vec<ModeChange>,
}

#[derive(Debug)]
struct InForce {
    edition: Edition,
    rules: RuleSet,
}

#[derive(Debug)]
struct RefusedRules {
    rules: Edition,
    reason: String,
}

impl AppliedState {
    /// Whether this edition is applied already.
    pub(super) fn has(&self, head: &Head) -> bool {
        self.edition.as_ref() == Some(&head.edition)
    }

    /// Whether the head names rules that were neither applied nor refused.
    pub(super) fn wants_rules(&self, head: &Head) -> bool {
        head.rules.as_ref().is_some_and(|rules| self.is_new(rules))
    }

    fn is_new(&self, rules: &RulesHead) -> bool {
        let refused = self.refused.as_ref().map(|refusal| &refusal.rules);
        !self.is_in_force(rules) && refused != Some(&rules.edition)
    }

    fn is_in_force(&self, rules: &RulesHead) -> bool {
        self.rules.as_ref().is_some_and(|present| present.edition == rules.edition)
    }

    /// The version that published the rules; 0 if they are the node's own.
    pub(super) fn rules_version(&self) -> u64 {
        self.rules.as_ref().map_or(0, |rules| rules.edition.version)
    }

    /// Starts over if the limiter's rules are no longer the published ones, for example because a file was reloaded.
    pub(super) fn notice<S, C: Clock>(&mut self, limiter: &Limiter<S, C>) {
        let present = limiter.rules();
        if self.rules.as_ref().is_some_and(|ours| !ours.rules.shares_rules_with(&present.rules)) {
            *self = AppliedState::default();
        }
    }

    /// Why the published rules are refused.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_ref().map(|refusal| refusal.reason.as_str())
    }

    /// Applies the contents: rules and modes together, or the modes alone if the rules are already applied or refused.
    /// Returns `false` if the text of the rules is needed but missing.
    pub(super) async fn apply<S, C: Clock>(
        &mut self,
        contents: Contents,
        now: Timestamp,
        limiter: &Limiter<S, C>,
    ) -> bool {
        let Contents { head, text, mut modes } = contents;
        // Switches end by the clock of this node, so that they also end while Redis is unavailable.
        let present = limiter.clock().now();
        modes.take_ended(present);
        let switches = modes.switches_at(present);
        let mut new = None;
        match (&head.rules, text) {
            (Some(rules), Some(text)) if self.is_new(rules) => {
                self.refused = None;
                match parse(rules.name.clone(), text).await {
                    Ok(loaded) => new = Some((loaded.rules, rules.edition.clone())),
                    Err(findings) => {
                        let reason = in_brief(&findings);
                        self.refused = Some(RefusedRules { rules: rules.edition.clone(), reason });
                    }
                }
            }
            (Some(rules), None) if self.is_new(rules) => return false,
            // An older version with rules that are in force may be published again.
            (Some(rules), _) if self.is_in_force(rules) => self.refused = None,
            (Some(_) | None, _) => {}
        }
        if let Some((rules, edition)) = new {
            let rules = rules.with_switches(switches);
            limiter.replace_switched(rules.clone());
            self.rules = Some(InForce { edition, rules });
        } else if *limiter.rules().rules.switches() != switches {
            limiter.switch(|present| present.clone_from(&switches));
        }
        self.edition = Some(head.edition);
        self.since = now;
        self.changes.extend(self.modes.changes_to(&modes, &head.signed.who));
        self.modes = modes;
        true
    }

    /// The switches that were put into force or reverted since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<ModeChange> {
        std::mem::take(&mut self.changes)
    }

    /// Reverts the published switches that have ended, and returns them. Keeps switches that were changed at this limiter
    /// since.
    pub(super) fn expire<S, C: Clock>(&mut self, limiter: &Limiter<S, C>) -> Vec<(Option<String>, Mode)> {
        let mut over = self.modes.take_ended(limiter.clock().now());
        let holds = |switches: &Switches, rule: Option<&str>, switched: &Switched| switches.end(rule) == switched.until;
        let present = limiter.rules();
        over.retain(|(rule, switched)| holds(present.rules.switches(), rule.as_deref(), switched));
        if !over.is_empty() {
            limiter.switch(|switches| {
                for (rule, switched) in &over {
                    match rule {
                        _ if !holds(switches, rule.as_deref(), switched) => {}
                        None => switches.switch_all(None),
                        Some(rule) => switches.switch(rule, None),
                    }
                }
            });
        }
        over.into_iter().map(|(rule, switched)| (rule, switched.mode)).collect()
    }
}

/// Parses rules on a blocking thread.
pub(super) async fn parse(name: String, text: String) -> Result<Loaded, Diagnostics> {
    let reading = tokio::task::spawn_blocking(move || RuleSet::parse(&name, &text));
    // Fails only if the runtime shuts down.
    reading.await.unwrap_or_else(|_| Err(Diagnostics::default()))
}

/// The first error with its place, and the number of further ones.
fn in_brief(findings: &Diagnostics) -> String {
    let errors = findings.errors();
    let first = findings.0.iter().find(|finding| finding.severity == Severity::Error);
    let text = match first {
        Some(error) if errors > 1 => format!("{}: {} (and {} more)", error.place, error.problem, errors - 1),
        Some(error) => format!("{}: {}", error.place, error.problem),
        None => "they could not be read".to_owned(),
    };
    text.chars().take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_core::{ManualClock, MemoryStore, Micros};
    use tidegate_rules::Request;

    use super::super::signature::Signature;
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn signed() -> Signature {
        Signature { who: "ann".to_owned(), at: NOW }
    }

    fn limiter() -> Limiter<MemoryStore> {
        let own = RuleSet::parse("own", "rules: [{ id: own, limit: 1/day }]").unwrap();
        Limiter::new(own.rules, MemoryStore::new())
    }

    fn rules(version: u64) -> RulesHead {
        RulesHead { edition: Edition::new(version), name: "r.yaml".to_owned(), signed: signed() }
    }

    fn contents(version: u64, rules: Option<&RulesHead>, text: Option<&str>, all: Option<Mode>) -> Contents {
        let modes = PublishedModes {
            all: all.map(|mode| Switched { mode, until: None, signed: signed() }),
            ..PublishedModes::default()
        };
        let head = Head::new(Edition::new(version), signed(), rules.cloned());
        Contents { head, text: text.map(str::to_owned), modes }
    }

    fn ids(limiter: &Limiter<MemoryStore>) -> Vec<String> {
        limiter.rules().rules.rules().iter().map(|rule| rule.id().to_owned()).collect()
    }

    const GOOD: &str = "rules: [{ id: theirs, limit: 1/day }]";
    const BROKEN: &str = "rules:\n- { id: theirs, limit: 1/parsec }\n- { id: more, limt: 1/day }";

    #[tokio::test]
    async fn rules_and_modes_come_into_force_at_once() {
        let (limiter, mut applied) = (limiter(), AppliedState::default());
        let new = contents(1, Some(&rules(1)), Some(GOOD), Some(Mode::Shadow));
        assert!(applied.wants_rules(&new.head));
        let head = new.head.clone();
        assert!(applied.apply(new, NOW, &limiter).await);
        assert!(applied.has(&head) && !applied.wants_rules(&head));
        let present = limiter.rules();
        assert_eq!((present.number, present.rules.mode_of("theirs")), (2, Some(Mode::Shadow)));
    }

    #[tokio::test]
    async fn modes_are_switched_without_the_rules() {
        let (limiter, mut applied) = (limiter(), AppliedState::default());
        assert!(applied.apply(contents(1, None, None, Some(Mode::Off)), NOW, &limiter).await);
        assert_eq!((ids(&limiter), limiter.rules().rules.mode_of("own")), (vec!["own".to_owned()], Some(Mode::Off)));
        let change = |mode| ModeChange { rule: None, mode, until: None, who: "ann".to_owned() };
        assert_eq!(applied.take_changes(), [change(Some(Mode::Off))]);
        // Applying the same contents again changes nothing.
        assert!(applied.apply(contents(2, None, None, Some(Mode::Off)), NOW, &limiter).await);
        assert_eq!((limiter.rules().number, applied.take_changes()), (2, vec![]));
    }

    #[tokio::test]
    async fn a_switch_ends_by_the_clock_of_the_node() {
        let clock = ManualClock::at(NOW);
        let own = RuleSet::parse("own", "rules: [{ id: own, limit: 1/day }]").unwrap().rules;
        let limiter = Limiter::with_clock(own, MemoryStore::new(), clock.clone());
        let mode = || limiter.rules().rules.mode_of("own").unwrap();
        let timed = |version| {
            let mut contents = contents(version, None, None, Some(Mode::Off));
            contents.modes.all.as_mut().unwrap().until = Some(NOW + Micros::from_secs(900));
            contents
        };
        let mut applied = AppliedState::default();
        assert!(applied.apply(timed(1), NOW, &limiter).await);
        clock.advance(Micros::from_secs(899));
        assert_eq!((applied.expire(&limiter), mode()), (Vec::new(), Mode::Off));
        clock.advance(Micros::from_secs(1));
        assert_eq!((applied.expire(&limiter), mode()), (vec![(None, Mode::Off)], Mode::Enforce));
        assert_eq!(applied.expire(&limiter), []);
        // A node that starts later does not apply the ended switch.
        let mut late = AppliedState::default();
        assert!(late.apply(timed(1), NOW, &limiter).await);
        assert_eq!(mode(), Mode::Enforce);
    }

    #[tokio::test]
    async fn local_switches_outlive_the_end() {
        let clock = ManualClock::at(NOW);
        let own = RuleSet::parse("own", "rules: [{ id: own, limit: 1/day }]").unwrap().rules;
        let limiter = Limiter::with_clock(own, MemoryStore::new(), clock.clone());
        let mut contents = contents(1, None, None, Some(Mode::Off));
        contents.modes.all.as_mut().unwrap().until = Some(NOW + Micros::from_secs(900));
        let mut applied = AppliedState::default();
        assert!(applied.apply(contents, NOW, &limiter).await);
        limiter.switch(|switches| switches.switch_all(Some(Mode::Shadow)));
        clock.advance(Micros::from_secs(900));
        assert_eq!(applied.expire(&limiter), []);
        assert_eq!(limiter.rules().rules.mode_of("own"), Some(Mode::Shadow));
    }

    #[tokio::test]
    async fn broken_rules_are_refused_once_and_modes_are_switched_all_the_same() {
        let (limiter, mut applied) = (limiter(), AppliedState::default());
        let bad = rules(1);
        assert!(applied.apply(contents(1, Some(&bad), Some(BROKEN), Some(Mode::Off)), NOW, &limiter).await);
        let reason = applied.refused().unwrap();
        assert!(reason.starts_with("r.yaml:2:") && reason.ends_with("(and 1 more)"), "{reason}");
        assert_eq!((ids(&limiter), limiter.rules().rules.mode_of("own")), (vec!["own".to_owned()], Some(Mode::Off)));
        // Rules that were refused are not parsed again with the next switch, but are still refused.
        let next = contents(2, Some(&bad), None, None);
        assert!(!applied.wants_rules(&next.head));
        assert!(applied.apply(next, NOW, &limiter).await);
        assert!(applied.refused().is_some() && limiter.check_now(&Request::new("GET", "/")).is_allowed());
        assert!(applied.apply(contents(3, Some(&rules(3)), Some(GOOD), None), NOW, &limiter).await);
        assert_eq!((applied.refused(), ids(&limiter)), (None, vec!["theirs".to_owned()]));
    }

    #[tokio::test]
    async fn rules_that_come_back_are_in_force_already() {
        let (limiter, mut applied) = (limiter(), AppliedState::default());
        let good = rules(1);
        assert!(applied.apply(contents(1, Some(&good), Some(GOOD), None), NOW, &limiter).await);
        assert!(applied.apply(contents(2, Some(&rules(2)), Some(BROKEN), None), NOW, &limiter).await);
        assert!(applied.refused().is_some());
        // A replica without version 2 has become the primary.
        assert!(applied.apply(contents(1, Some(&good), None, None), NOW, &limiter).await);
        assert_eq!((applied.refused(), limiter.rules().number), (None, 2));
    }

    #[tokio::test]
    async fn rules_that_took_the_place_of_the_published_ones_are_noticed() {
        let (limiter, mut applied) = (limiter(), AppliedState::default());
        let head = rules(1);
        assert!(applied.apply(contents(1, Some(&head), Some(GOOD), None), NOW, &limiter).await);
        let next = contents(2, Some(&head), None, Some(Mode::Off));
        assert!(applied.apply(next, NOW, &limiter).await);
        applied.notice(&limiter);
        assert_eq!(applied.rules_version(), 1, "modes do not matter");
        limiter.replace(RuleSet::parse("own", "rules: [{ id: own, limit: 1/day }]").unwrap().rules);
        applied.notice(&limiter);
        let again = contents(2, Some(&head), Some(GOOD), Some(Mode::Off));
        assert_eq!(applied.rules_version(), 0);
        assert!(!applied.has(&again.head) && applied.wants_rules(&again.head));
        assert!(applied.apply(again, NOW, &limiter).await);
        assert_eq!((ids(&limiter), applied.rules_version()), (vec!["theirs".to_owned()], 1));
    }

    #[tokio::test]
    async fn rules_without_their_text_are_not_taken_in() {
        let (limiter, mut applied) = (limiter(), AppliedState::default());
        assert!(!applied.apply(contents(1, Some(&rules(1)), None, Some(Mode::Off)), NOW, &limiter).await);
        assert_eq!((applied.edition.is_none(), limiter.rules().number), (true, 1));
    }
}
