//! Checks of a log's requests against one set of rules.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use ahash::RandomState;
use tidegate_core::store::now_or_never;
use tidegate_core::{Charge, Key, ManualClock, MemoryStore, Micros, Outcome, Receipt, RuleId, Timestamp};
use tidegate_rules::{Generation, Limiter, Matched, MatchedRule, Mode, RuleSet, RuledCharge, Ruling};

use super::heavy_hitters::{HeavyHitters, HitterKey, KeyHasher};
use super::histogram::SpanHistogram;
use super::log::AccessEntry;
use super::report::{DeniedKey, LimitReport, RuleReport, Streak, UnkeyedRequests};
use super::suggest::{Gauge, Suggestion, SuggestionForm};
use super::timeline::Timeline;

/// Decides the requests of a log as a server with these rules would have, and counts the outcomes.
///
/// Uses a [`Limiter`] over a [`MemoryStore`] with a clock that follows the times of the lines.
pub(super) struct RuleRun {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>, ManualClock>,
    generation: Arc<Generation>,
    held: HeldSlots,
    tally: RunCounters,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplayedOutcome {
    pub(super) admitted: bool,
    /// The limit and the key that denied the request, if one did.
    pub(super) denier: Option<(usize, HitterKey)>,
}

/// Slots that requests hold until they end.
#[derive(Default)]
struct HeldSlots {
    ending: BinaryHeap<Reverse<(Timestamp, u64)>>,
    receipts: HashMap<u64, Receipt, RandomState>,
    given: u64,
    /// Requests that took slots and have no duration in the log.
    endless: u64,
}

struct RunCounters {
    limits: Vec<ReplayedLimit>,
    /// Index of each limit by its id, and by the id's address in the rules, which is faster to compare.
    numbers: HashMap<RuleId, usize, RandomState>,
    places: Vec<(usize, usize)>,
    hasher: KeyHasher,
    denied_keys: HeavyHitters,
    /// Keys that only limits in shadow mode would have denied.
    shadow_keys: HeavyHitters,
    waits: SpanHistogram,
    timeline: Timeline,
    gauges: Option<Vec<Gauge>>,
    requests: u64,
    admitted: u64,
    refused: HashMap<Arc<str>, u64, RandomState>,
    /// Requests without the key of a rule, by rule id.
    unkeyed: HashMap<String, u64, RandomState>,
    ungoverned: u64,
    first: Option<Timestamp>,
    last: Timestamp,
}

struct ReplayedLimit {
    id: RuleId,
    rule: String,
    mode: Mode,
    /// The notation. `None` if several limits have the same id.
    limit: Option<String>,
    /// The address of the id, for comparison only.
    place: usize,
    admitted: u64,
    denied: u64,
    too_large: u64,
}

impl RuleRun {
    /// A run of these rules with state for up to `max_keys` keys. `suggesting` records the keys for suggestions.
    pub(super) fn new(rules: RuleSet, max_keys: usize, suggesting: bool) -> RuleRun {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock_and_cap(clock.clone(), max_keys);
        let limiter = Limiter::with_clock(rules, store, clock.clone());
        RuleRun {
            clock,
            generation: limiter.rules(),
            limiter,
            held: HeldSlots::default(),
            tally: RunCounters {
                limits: Vec::new(),
                numbers: HashMap::default(),
                places: Vec::new(),
                hasher: KeyHasher::new(),
                denied_keys: HeavyHitters::new(HeavyHitters::CAPACITY),
                shadow_keys: HeavyHitters::new(HeavyHitters::CAPACITY),
                waits: SpanHistogram::new(),
                timeline: Timeline::new(),
                gauges: suggesting.then(Vec::new),
                requests: 0,
                admitted: 0,
                refused: HashMap::default(),
                unkeyed: HashMap::default(),
                ungoverned: 0,
                first: None,
                last: Timestamp::EPOCH,
            },
        }
    }

    /// Decides a request. Instants must be in order.
    pub(super) fn take(&mut self, entry: &AccessEntry<'_>, at: Timestamp) -> ReplayedOutcome {
        self.clock.set(at);
        self.held.end_until(at, self.limiter.store(), &self.clock);
        let matched = self.generation.rules.matching(entry);
        let ruling = now_or_never(self.limiter.decide(&self.generation, &matched));
        let ruling = ruling.expect("a store in memory answers now");
        let judged = self.tally.add(&matched, &ruling, at);
        if !ruling.receipts.is_empty() {
            self.held.hold(ruling.receipts, at, entry.took, self.limiter.store());
        }
        judged
    }

    /// The key that denied the last request, as text for people.
    pub(super) fn name(&self, entry: &AccessEntry<'_>, denier: (usize, HitterKey)) -> String {
        let matched = self.generation.rules.matching(entry);
        let found = matched.charges().find(|charge| self.tally.hasher.of(denier.0, charge.key) == denier.1);
        found.map_or_else(String::new, |charge| key_name(charge.key))
    }

    /// The id of the limit with this index.
    pub(super) fn limit_id(&self, number: usize) -> &str {
        self.tally.limits.get(number).map_or("", |limit| limit.id.as_str())
    }

    pub(super) fn suggestions(&self, form: &SuggestionForm) -> Vec<Suggestion> {
        let gauges = self.tally.gauges.iter().flatten().zip(&self.tally.limits);
        let rules = self.generation.rules.rules();
        let suggest = |(gauge, limit): (&Gauge, &ReplayedLimit)| {
            let rule = rules.iter().find(|rule| rule.id() == limit.rule);
            let key = rule.into_iter().flat_map(|rule| rule.key_parts().map(|part| part.name)).collect();
            gauge.suggest(limit.id.as_str(), key, form)
        };
        gauges.filter_map(suggest).collect()
    }

    pub(super) fn report(&self, top: usize) -> RuleReport {
        let tally = &self.tally;
        let mut limits: Vec<LimitReport> = tally.limits.iter().map(ReplayedLimit::report).collect();
        limits.sort_by(|one, other| other.denied.cmp(&one.denied).then_with(|| one.id.cmp(&other.id)));
        let rules = self.generation.rules.rules();
        let seen = |id: &str| {
            tally.limits.iter().any(|limit| limit.rule == id) || tally.refused.keys().any(|refused| **refused == *id)
        };
        let key = |known: &super::heavy_hitters::KeyCount| DeniedKey {
            limit: self.limit_id(known.limit).to_owned(),
            key: known.key.clone(),
            denied: known.count,
            first: known.first.as_micros(),
            last: known.last.as_micros(),
            longest_streak: known.longest.count,
        };
        let streak = tally.denied_keys.longest().map(|known| Streak {
            limit: self.limit_id(known.limit).to_owned(),
            key: known.key.clone(),
            denied: known.longest.count,
            from: known.longest.from.as_micros(),
            to: known.longest.to.as_micros(),
        });
        let mut refused: Vec<(String, u64)> =
            tally.refused.iter().map(|(rule, count)| (rule.to_string(), *count)).collect();
        refused.sort();
        RuleReport {
            requests: tally.requests,
            admitted: tally.admitted,
            denied: tally.requests - tally.admitted,
            refused,
            unkeyed: self.unkeyed(),
            ungoverned: tally.ungoverned,
            idle_rules: rules.iter().map(|rule| rule.id().to_owned()).filter(|id| !seen(id)).collect(),
            limits,
            denied_keys: tally.denied_keys.seen(),
            keys_short_by: tally.denied_keys.error().max(tally.shadow_keys.error()),
            keys: tally.denied_keys.top(top).into_iter().map(key).collect(),
            shadow_keys: tally.shadow_keys.seen(),
            keys_in_shadow: tally.shadow_keys.top(top).into_iter().map(key).collect(),
            streak,
            waits: tally.waits.waits(),
            from: tally.first.map(Timestamp::as_micros),
            to: tally.first.map(|_| tally.last.as_micros()),
            timeline: tally.timeline.bins(120),
            slots_without_duration: self.held.endless,
            shared_keys: self.limiter.store().stats().overflowed,
        }
    }
}

impl RuleRun {
    fn unkeyed(&self) -> Vec<UnkeyedRequests> {
        let rules = self.generation.rules.rules().iter();
        let unkeyed = rules.filter_map(|rule| {
            let of_rule = self.tally.limits.iter().filter(|limit| limit.rule == rule.id());
            Some(UnkeyedRequests {
                rule: rule.id().to_owned(),
                key: rule.key_parts().map(|part| part.name).collect(),
                requests: *self.tally.unkeyed.get(rule.id())?,
                of: of_rule.map(|limit| limit.admitted + limit.denied).max().unwrap_or_default(),
            })
        });
        unkeyed.collect()
    }
}

impl HeldSlots {
    fn end_until(&mut self, at: Timestamp, store: &MemoryStore<ManualClock>, clock: &ManualClock) {
        while let Some(&Reverse((ends, number))) = self.ending.peek()
            && ends <= at
        {
            self.ending.pop();
            if let Some(receipt) = self.receipts.remove(&number) {
                clock.set(ends);
                settle(store, &receipt);
                clock.set(at);
            }
        }
    }

    fn hold(
        &mut self,
        receipts: impl IntoIterator<Item = Receipt>,
        at: Timestamp,
        took: Option<Micros>,
        store: &MemoryStore<ManualClock>,
    ) {
        for receipt in receipts {
            let slots = receipt.held.iter().any(|held| held.limit.holds_slots());
            match took.filter(|_| slots) {
                Some(took) => {
                    self.given += 1;
                    self.ending.push(Reverse((at + took, self.given)));
                    self.receipts.insert(self.given, receipt);
                }
                None => {
                    self.endless += u64::from(slots);
                    settle(store, &receipt);
                }
            }
        }
    }
}

/// Settles at the estimate, because a log does not state the actual cost.
fn settle(store: &MemoryStore<ManualClock>, receipt: &Receipt) {
    let taken: Vec<u64> = receipt.held.iter().map(|held| held.taken).collect();
    store.settle(receipt, &taken);
}

impl RunCounters {
    fn add(&mut self, matched: &Matched<'_, '_>, ruling: &Ruling<'_>, at: Timestamp) -> ReplayedOutcome {
        let admitted = ruling.is_allowed();
        self.requests += 1;
        self.admitted += u64::from(admitted);
        self.first.get_or_insert(at);
        self.last = at;
        self.timeline.add(at, admitted);
        if let Some(refused) = &ruling.refused {
            *self.refused.entry(Arc::clone(&refused.rule)).or_default() += 1;
        } else if matched.rules.is_empty() {
            self.ungoverned += 1;
        }
        if !admitted && let Outcome::Deny { retry_after } = ruling.verdict.outcome {
            self.waits.add(retry_after);
        }
        for rule in matched.rules.iter().filter(|rule| rule.is_unkeyed) {
            match self.unkeyed.get_mut(rule.rule.id()) {
                Some(count) => *count += 1,
                None => {
                    self.unkeyed.insert(rule.rule.id().to_owned(), 1);
                }
            }
        }
        let mut denier = None;
        for RuledCharge { matched, charge, ruled, .. } in ruling.charges(matched) {
            let number = self.number(matched, &charge);
            let limit = &mut self.limits[number];
            if limit.place != std::ptr::from_ref(charge.limit).addr() {
                limit.limit = None;
            }
            let following = self.gauges.is_some();
            let denied_keys = match ruled.mode {
                Mode::Shadow => &mut self.shadow_keys,
                Mode::Enforce | Mode::Off => &mut self.denied_keys,
            };
            match ruled.decision.outcome {
                Outcome::Allow { .. } => {
                    limit.admitted += 1;
                    if following || !denied_keys.is_empty() {
                        let hash = self.hasher.of(number, charge.key);
                        denied_keys.interrupt(hash);
                        self.follow(number, hash, at, &charge);
                    }
                }
                Outcome::Deny { .. } | Outcome::TooLarge { .. } => {
                    limit.denied += 1;
                    limit.too_large += u64::from(matches!(ruled.decision.outcome, Outcome::TooLarge { .. }));
                    let hash = self.hasher.of(number, charge.key);
                    denied_keys.count(hash, number, at, || key_name(charge.key));
                    self.follow(number, hash, at, &charge);
                    if ruled.mode == Mode::Enforce {
                        denier.get_or_insert((number, hash));
                    }
                }
            }
        }
        ReplayedOutcome { admitted, denier }
    }

    #[inline]
    fn follow(&mut self, number: usize, hash: HitterKey, at: Timestamp, charge: &Charge<'_>) {
        if let Some(gauge) = self.gauges.as_mut().and_then(|gauges| gauges.get_mut(number)) {
            gauge.take(hash, at, charge.cost, || key_name(charge.key));
        }
    }

    /// The index of a charge's limit.
    #[inline]
    fn number(&mut self, rule: &MatchedRule<'_, '_>, charge: &Charge<'_>) -> usize {
        const MOST_PLACES: usize = 16;
        let place = std::ptr::from_ref(charge.rule).addr();
        if let Some(&(_, number)) = self.places.iter().find(|(known, _)| *known == place) {
            return number;
        }
        let number = self.number_by_id(rule, charge);
        if self.places.len() < MOST_PLACES {
            self.places.push((place, number));
        }
        number
    }

    fn number_by_id(&mut self, rule: &MatchedRule<'_, '_>, charge: &Charge<'_>) -> usize {
        if let Some(&number) = self.numbers.get(charge.rule) {
            return number;
        }
        self.numbers.insert(charge.rule.clone(), self.limits.len());
        self.limits.push(ReplayedLimit {
            id: charge.rule.clone(),
            rule: rule.rule.id().to_owned(),
            mode: rule.mode,
            limit: Some(charge.limit.to_string()),
            place: std::ptr::from_ref(charge.limit).addr(),
            admitted: 0,
            denied: 0,
            too_large: 0,
        });
        if let Some(gauges) = &mut self.gauges {
            gauges.push(Gauge::new());
        }
        self.limits.len() - 1
    }
}

impl ReplayedLimit {
    fn report(&self) -> LimitReport {
        LimitReport {
            id: self.id.as_str().to_owned(),
            limit: self.limit.clone(),
            mode: self.mode.to_string(),
            admitted: self.admitted,
            denied: self.denied,
            too_large: self.too_large,
        }
    }
}

/// A key as text for people.
pub(super) fn key_name(key: &Key<'_>) -> String {
    let parts: Vec<_> = key.parts().map(String::from_utf8_lossy).collect();
    if parts.is_empty() { "(all requests)".to_owned() } else { parts.join(", ") }
}
