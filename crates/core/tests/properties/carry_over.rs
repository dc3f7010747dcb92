//! Changed limits: a key keeps exactly its spending.

use proptest::prelude::*;
use tidegate_core::limit::{Algorithm, State};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Clock, Key, Limit, ManualClock, MemoryStore, RuleId, Timestamp};

use tidegate_test_support::limits::{any_limit, any_spending_limit, bucket_of, buckets, concurrencies, with_capacity};
use tidegate_test_support::traces::{Cost, KeyOperation, Step, TraceClock, costs, moves_ahead, starts, traces_ahead};

/// The state of a key after a trace, and the instant at which the trace ended.
fn lived(limit: &Limit, start: u64, steps: &[Step]) -> (State, Timestamp) {
    let (mut state, mut hands) = (limit.fresh(), TraceClock::at(start));
    for (number, &(by, op)) in (1..).zip(steps) {
        let now = hands.go(by, limit);
        match op {
            KeyOperation::Decide(cost) => hands.remember_wait(&limit.decide(&mut state, cost.of(limit), now)),
            KeyOperation::Penalize(cost) => {
                limit.charge(&mut state, cost.of(limit), now, ReceiptId::new(number));
            }
            KeyOperation::Credit(cost) => {
                limit.credit(&mut state, cost.of(limit), now);
            }
            KeyOperation::Refund { .. } | KeyOperation::Renew { .. } => {}
        }
    }
    (state, hands.now())
}

fn remaining(limit: &Limit, state: &State, now: Timestamp) -> u64 {
    limit.decide(&mut state.clone(), 0, now).remaining
}

/// A log keeps its entries, so a longer window makes it stricter, and a shorter one laxer, at any count.
fn log_windows(old: &Limit, new: &Limit) -> std::cmp::Ordering {
    match (old.algorithm(), new.algorithm()) {
        (Algorithm::SlidingLog(old), Algorithm::SlidingLog(new)) => new.window().cmp(&old.window()),
        _ => std::cmp::Ordering::Equal,
    }
}

fn drops(limit: &Limit, state: &State, now: Timestamp) -> u128 {
    let per_micro = bucket_of(limit).unwrap().rate.drops_per_micro();
    let spent = match state {
        State::Level(level) => level.spent.saturating_sub(now.since(level.at).get().saturating_mul(per_micro)),
        State::Tat(tat) if tat.whole >= now.as_micros() => (tat.whole - now.as_micros()) * per_micro + tat.part,
        _ => 0,
    };
    u128::from(spent)
}

proptest! {
    #![proptest_config(crate::properties::cases(1_000))]

    #[test]
    fn raising_a_limit_never_denies_what_the_old_one_would_have_admitted(
        old in any_spending_limit(), new in any_limit(), start in starts(), steps in traces_ahead(),
    ) {
        let new = with_capacity(&new, new.capacity().max(old.capacity()));
        prop_assume!(new.capacity() >= old.capacity() && log_windows(&old, &new).is_le());
        let (state, now) = lived(&old, start, &steps);
        let carried = new.carry(&old, &state, now);
        prop_assert!(remaining(&new, &carried, now) >= remaining(&old, &state, now));
        let admits_nothing_at_least = |limit: &Limit, state: &State| limit.evaluate(state, 0, now).is_allowed();
        prop_assert!(admits_nothing_at_least(&new, &carried) || !admits_nothing_at_least(&old, &state));
    }

    #[test]
    fn lowering_a_limit_grants_nothing(
        old in any_spending_limit(), new in any_spending_limit(), start in starts(), steps in traces_ahead(),
    ) {
        let new = with_capacity(&new, new.capacity().min(old.capacity()));
        prop_assume!(log_windows(&old, &new).is_ge());
        let (state, now) = lived(&old, start, &steps);
        let carried = new.carry(&old, &state, now);
        prop_assert!(remaining(&new, &carried, now) <= remaining(&old, &state, now));
    }

    #[test]
    fn a_key_keeps_exactly_what_it_has_spent(
        old in any_spending_limit(), new in any_spending_limit(), start in starts(), steps in traces_ahead(),
    ) {
        prop_assume!(log_windows(&old, &new).is_eq());
        let (state, now) = lived(&old, start, &steps);
        let carried = new.carry(&old, &state, now);
        // Up to one capacity. Anything beyond is debt, which has its own bounds.
        let spent = old.capacity() - remaining(&old, &state, now);
        prop_assume!(old.evaluate(&state, 0, now).is_allowed());
        prop_assert_eq!(remaining(&new, &carried, now), new.capacity().saturating_sub(spent));
    }

    #[test]
    fn a_change_of_capacity_alone_keeps_the_state_as_it_is(
        old in any_limit(),
        capacity in prop_oneof![0_u64..20, 0_u64..1 << 52],
        start in starts(),
        steps in traces_ahead(),
    ) {
        let new = with_capacity(&old, capacity);
        let (state, now) = lived(&old, start, &steps);
        prop_assert_eq!(new.carry(&old, &state, now), state);
    }

    #[test]
    fn buckets_carry_over_what_is_owed_with_its_fractions(
        (old, new) in (buckets(), buckets()),
        kinds in (0_usize..4, 0_usize..4),
        start in starts(),
        steps in traces_ahead(),
    ) {
        let of_kind = |bucket: tidegate_test_support::limits::Bucket, kind: usize| {
            [bucket.token_bucket(), bucket.gcra(), bucket.meter(), bucket.shaper()][kind]
        };
        let (from, to) = (of_kind(old, kinds.0), of_kind(new, kinds.1));
        let (state, now) = lived(&from, start, &steps);
        let carried = to.carry(&from, &state, now);
        let (old_token, new_token) = (u128::from(old.rate.drops_per_token()), u128::from(new.rate.drops_per_token()));
        // In the smallest unit of both: at least the debt, and less than one drop more.
        let owed = drops(&from, &state, now) * new_token;
        let owes = drops(&to, &carried, now) * old_token;
        let deepest = 2 * u128::from(new.capacity) * new_token * old_token;
        if owed < deepest {
            prop_assert!(owed <= owes && owes < owed + old_token);
        } else {
            let same_rate = old_token == new_token && old.rate.drops_per_micro() == new.rate.drops_per_micro();
            prop_assert!(owes == deepest || (same_rate && owes == owed));
        }
    }

    #[test]
    fn leases_and_what_was_spent_do_not_become_each_other(
        slots in concurrencies(), other in any_spending_limit(), start in starts(), steps in traces_ahead(),
    ) {
        let slots = Limit::from(slots);
        for (old, new) in [(slots, other), (other, slots)] {
            let (state, now) = lived(&old, start, &steps);
            prop_assert_eq!(new.carry(&old, &state, now), new.fresh());
        }
    }

    #[test]
    fn there_and_back_grants_nothing(
        limits in prop::collection::vec(any_spending_limit(), 2..5), start in starts(), steps in traces_ahead(),
    ) {
        let (mut state, now) = lived(&limits[0], start, &steps);
        let mut old = limits[0];
        let mut least = remaining(&old, &state, now);
        let smallest = limits.iter().map(Limit::capacity).min().unwrap();
        for new in limits.iter().skip(1).chain([&limits[0]]) {
            prop_assume!(log_windows(&old, new).is_eq());
            state = new.carry(&old, &state, now);
            let limit = with_capacity(new, smallest);
            prop_assert!(remaining(&limit, &limit.carry(new, &state, now), now) <= least);
            least = least.min(remaining(&limit, &limit.carry(new, &state, now), now));
            old = *new;
        }
    }

    #[test]
    fn a_store_carries_over_what_the_limits_do(
        limits in prop::collection::vec(any_limit(), 1..4),
        steps in prop::collection::vec((0_usize..8, moves_ahead(), costs(), 0_u32..8), 1..60),
        start in starts(),
    ) {
        // Half of them differ from another only in capacity, so that they share a state unchanged.
        let limits: Vec<_> =
            limits.iter().flat_map(|limit| [*limit, with_capacity(limit, limit.capacity() / 2 + 1)]).collect();
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let store = MemoryStore::with_clock_and_cap(clock.clone(), 10_000);
        let (rule, key) = (RuleId::new("rule"), Key::from("key"));
        let mut hands = TraceClock::at(start);
        let mut known: Option<(Limit, State)> = None;
        for (which, by, cost, kind) in steps {
            let limit = limits[which % limits.len()];
            clock.set(hands.go(by, &limit));
            let (now, cost) = (clock.now(), cost.of(&limit));
            // A store may forget a recovered key. This makes a difference under a log with a longer window.
            if known.as_ref().is_some_and(|(old, state)| old.is_recovered(state, now)) {
                store.reset(&rule, &key);
                known = None;
            }
            let mut state = known.as_ref().map_or(limit.fresh(), |(old, state)| limit.carry(old, state, now));
            let charge = Charge::new(&rule, &key, &limit).cost(cost);
            let moved = limit.resync(&mut state, now);
            let (answered, expected, changed) = match kind {
                0 => {
                    limit.charge(&mut state, cost, now, ReceiptId::ANONYMOUS);
                    (store.adjust(&charge, Adjustment::Penalty), limit.evaluate(&state, 0, now), true)
                }
                1 => (store.peek(&[charge])[0], limit.evaluate(&state, cost, now), false),
                _ => {
                    let expected = limit.decide(&mut state, cost, now);
                    let spent = expected.is_allowed() && cost > 0;
                    (store.decide(&[charge]).unwrap().decisions[0], expected, moved || spent)
                }
            };
            prop_assert_eq!(answered, expected);
            hands.remember_wait(&expected);
            if changed {
                known = Some((limit, state));
            }
        }
    }
}

#[test]
fn every_algorithm_hands_over_to_every_other() {
    let limits: [Limit; 9] = [
        "1/h burst 5",
        "gcra 1/h burst 5",
        "meter 1/h burst 5",
        "shaper 1/h queue 5",
        "fixed 5/day",
        "fixed 5/month calendar",
        "sliding 5/day",
        "sliding 5/day parts 24",
        "log 5/day",
    ]
    .map(|text| text.parse().unwrap());
    let now = Timestamp::from_secs(1_772_000_000);
    for old in &limits {
        let mut state = old.fresh();
        assert!(old.decide(&mut state, 3, now).is_allowed());
        for new in &limits {
            let mut carried = new.carry(old, &state, now);
            assert_eq!(new.evaluate(&carried, 0, now).remaining, 2, "{old} to {new}");
            assert!(!new.decide(&mut carried, 3, now).is_allowed(), "{old} to {new}");
            assert!(new.decide(&mut carried, 2, now).is_allowed(), "{old} to {new}");
            let raised = with_capacity(new, 50);
            assert_eq!(raised.evaluate(&raised.carry(old, &state, now), 0, now).remaining, 47, "{old} to {raised}");
            let lowered = with_capacity(new, 1);
            let carried = lowered.carry(old, &state, now);
            assert!(
                !lowered.decide(&mut carried.clone(), Cost::All.of(&lowered), now).is_allowed(),
                "{old} to {lowered}"
            );
        }
    }
}

/// A store keeps a short hash of a key's limit with its state. These two limits have the same hash.
#[test]
fn limits_are_told_apart_where_a_short_hash_of_them_is_not() {
    let (old, new): (Limit, Limit) = ("11935/s".parse().unwrap(), "gcra 31343/s".parse().unwrap());
    let (rule, key) = (RuleId::new("rule"), Key::from("key"));
    let store = MemoryStore::with_clock(ManualClock::at(Timestamp::from_secs(1_772_000_000)));
    let now = store.clock().now();
    assert!(store.decide(&[Charge::new(&rule, &key, &old).cost(11_935)]).unwrap().is_allowed());
    assert_eq!(store.peek(&[Charge::new(&rule, &key, &new).cost(0)])[0].remaining, 31_343 - 11_935);
    let mut state = old.fresh();
    assert!(old.decide(&mut state, 11_935, now).is_allowed());
    assert_eq!(new.evaluate(&new.carry(&old, &state, now), 0, now).remaining, 31_343 - 11_935);
}
