//! Traces that rarely occur at random: long logs, calendars, slots that become something else.

use tidegate_core::contract::seed::seed;
use tidegate_core::limit::{Calendar, FixedWindow};
use tidegate_core::regions::Share;
use tidegate_core::store::Adjustment;
use tidegate_core::{Charge, Clock, Key, Limit, ManualClock, MemoryStore, Micros, RuleId, Store, Timestamp};

use crate::store::server;

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// Thousands of entries, of which Redis only processes a few at a time: expired, truncated, refunded and moved.
#[test]
fn a_long_log_is_what_it_is_in_memory() {
    let clock = ManualClock::at(Timestamp::from_secs(1_794_700_800));
    let (memory, redis) = (MemoryStore::with_clock(clock.clone()), server::store(&server::prefix(), clock.clone()));
    let ask = server::runtime();
    let (rule, key) = (RuleId::new("log"), Key::from("alice"));
    let limits = ["log 6000/4s", "log 2000/4s", "log 6000/2s"].map(limit);
    let mut dice = fastrand::Rng::with_seed(seed(11));
    let mut receipts = Vec::new();
    let mut longest = 0;
    for step in 0..6_000 {
        let limit = &limits[[0, 0, 0, 0, 0, 0, 1, 2][if step % 50 == 0 { dice.usize(..8) } else { 0 }]];
        let charge = Charge::new(&rule, &key, limit).cost(dice.u64(0..4)).reserve(Micros::from_secs(3));
        let step_by = [0, 100, 300, 900][dice.usize(..4)];
        clock.advance(Micros::new(step_by));
        match dice.u32(..100) {
            0 if step % 8 == 0 => clock.advance(Micros::from_millis(dice.u64(..6_000))),
            // Not far enough to restore entries that have left the window, which a store may forget.
            1 => clock.set(clock.now() - Micros::new(dice.u64(..2_000))),
            2..=6 if !receipts.is_empty() => {
                let index = receipts.len() - 1 - dice.usize(..receipts.len().min(800));
                let (in_memory, in_redis): (_, tidegate_core::Receipt) = receipts.swap_remove(index);
                let actual = [dice.u64(..4)];
                assert_eq!(memory.settle(&in_memory, &actual), ask.block_on(redis.settle(&in_redis, &actual)).unwrap());
            }
            7 => {
                let credit = charge.cost(dice.u64(..20));
                let given = ask.block_on(redis.adjust(&credit, Adjustment::Credit)).unwrap();
                assert_eq!(memory.adjust(&credit, Adjustment::Credit), given);
            }
            8 => {
                let penalty = charge.cost(dice.u64(..20));
                let taken = ask.block_on(redis.adjust(&penalty, Adjustment::Penalty)).unwrap();
                assert_eq!(memory.adjust(&penalty, Adjustment::Penalty), taken);
            }
            _ => {
                let in_memory = memory.decide(&[charge]).unwrap();
                let in_redis = ask.block_on(redis.decide(&[charge])).unwrap();
                assert_eq!(in_memory.decisions, in_redis.decisions, "step {step}");
                longest = longest.max(limit.capacity() - in_memory.decisions[0].remaining);
                receipts.extend(in_memory.receipt.zip(in_redis.receipt));
            }
        }
    }
    assert!(longest > 2_000, "the log never held more than {longest}");
}

/// Every kind of calendar window, at instants over the whole range.
#[test]
fn calendars_agree_at_any_instant() {
    let clock = ManualClock::at(Timestamp::EPOCH);
    let redis = server::store(&server::prefix(), clock.clone());
    let rule = RuleId::new("calendar");
    let calendars = [Calendar::Day, Calendar::Week, Calendar::Month, Calendar::Year];
    let mut dice = fastrand::Rng::with_seed(seed(13));
    let last = Timestamp::MAX.as_micros() - Calendar::Year.longest().get();
    for number in 0..4_000_u64 {
        let calendar = calendars[dice.usize(..4)];
        let limit = Limit::from(FixedWindow::calendar(5, calendar).unwrap());
        let instant = Timestamp::from_micros(dice.u64(..last));
        let (from, to) = calendar.around(instant);
        // Half of the instants are at the edges of a window.
        let instant = match number % 4 {
            0 => from,
            1 => to - Micros::new(1),
            _ => instant,
        };
        clock.set(instant);
        let key = Key::of([number.to_be_bytes()]);
        let decision =
            server::runtime().block_on(redis.decide(&[Charge::new(&rule, &key, &limit)])).unwrap().decisions[0];
        assert_eq!(decision.reset_after, to.since(instant), "{calendar:?} at {instant:?}");
        assert_eq!(decision.remaining, 4);
    }
}

/// Slots and spending are separate: neither becomes the other, in either store.
#[test]
fn slots_and_costs_take_each_others_place() {
    let clock = ManualClock::at(Timestamp::from_secs(1_794_700_800));
    let (memory, redis) = (MemoryStore::with_clock(clock.clone()), server::store(&server::prefix(), clock.clone()));
    let ask = server::runtime();
    let (rule, key) = (RuleId::new("rule"), Key::from("alice"));
    let slots = [limit("concurrent 5 ttl 1h"), limit("concurrent 3 ttl 2h")];
    for other in [
        "10/h",
        "gcra 10/h",
        "shaper 10/h queue 10",
        "fixed 10/h",
        "fixed 10/week calendar",
        "sliding 10/h",
        "sliding 10/h parts 6",
        "log 10/h",
    ] {
        let limits = [slots[0], limit(other), slots[1]];
        let mut dice = fastrand::Rng::with_seed(seed(17));
        let mut receipts = Vec::new();
        for _ in 0..200 {
            clock.advance(Micros::from_secs(dice.u64(..1_000)));
            let charge = Charge::new(&rule, &key, dice.choice(&limits).unwrap());
            let charge = charge.cost(dice.u64(..4)).reserve(Micros::from_secs(5_000));
            match dice.u32(..8) {
                0 => {
                    let adjustment = if dice.bool() { Adjustment::Penalty } else { Adjustment::Credit };
                    let in_redis = ask.block_on(redis.adjust(&charge, adjustment)).unwrap();
                    assert_eq!(memory.adjust(&charge, adjustment), in_redis, "{other}");
                }
                1 if !receipts.is_empty() => {
                    let (in_memory, in_redis): &(_, tidegate_core::Receipt) = dice.choice(&receipts).unwrap();
                    assert_eq!(memory.renew(in_memory), ask.block_on(redis.renew(in_redis)).unwrap(), "{other}");
                }
                2 | 3 if !receipts.is_empty() => {
                    let (in_memory, in_redis) = receipts.swap_remove(dice.usize(..receipts.len()));
                    let settled = ask.block_on(redis.settle(&in_redis, &[0])).unwrap();
                    assert_eq!(memory.settle(&in_memory, &[0]), settled, "{other}: {in_memory:?}");
                }
                4 => {
                    // The results may differ: a store may have forgotten a recovered key.
                    memory.reset(&rule, &key);
                    ask.block_on(redis.reset(&rule, &key)).unwrap();
                }
                _ => {
                    let in_redis = ask.block_on(redis.decide(&[charge])).unwrap();
                    let in_memory = memory.decide(&[charge]).unwrap();
                    assert_eq!(in_memory.decisions, in_redis.decisions, "{other}");
                    receipts.extend(in_memory.receipt.zip(in_redis.receipt));
                }
            }
        }
        memory.reset(&rule, &key);
        ask.block_on(redis.reset(&rule, &key)).unwrap();
    }
}

/// Nodes of a region may temporarily count one key by parts of different size. No node forgets the spending on another
/// node.
#[test]
fn parts_of_different_size_keep_the_debt_of_a_key() {
    let clock = ManualClock::at(Timestamp::from_secs(1_794_700_800));
    let (memory, redis) = (MemoryStore::with_clock(clock.clone()), server::store(&server::prefix(), clock.clone()));
    let ask = server::runtime();
    let mut dice = fastrand::Rng::with_seed(seed(27));
    for (number, whole) in
        ["100/s burst 100", "gcra 30/s burst 90", "meter 7/s burst 50", "shaper 50/s queue 80"].iter().enumerate()
    {
        let (rule, key) = (RuleId::new(&format!("parts-{number}")), Key::from("alice"));
        let parts = [90, 60, 33, 5, 1].map(|percent| limit(whole).regional_part(Share::percent(percent)));
        let mut denied_below = 0;
        for step in 0..2_000 {
            let part = &parts[dice.usize(..parts.len())];
            let charge = Charge::new(&rule, &key, part).cost(dice.u64(0..3));
            if dice.u32(..4) == 0 {
                clock.advance(Micros::from_millis(dice.u64(..200)));
            }
            let (in_memory, in_redis) =
                (memory.decide(&[charge]).unwrap(), ask.block_on(redis.decide(&[charge])).unwrap());
            assert_eq!(in_memory.decisions, in_redis.decisions, "step {step} of {whole} by {part}");
            denied_below += u32::from(!in_memory.decisions[0].is_allowed() && part.capacity() <= 5);
        }
        assert!(denied_below > 100, "{whole}: {denied_below}");
    }
    // The smallest part does not forget a burst under the largest one.
    let (rule, key) = (RuleId::new("burst"), Key::from("alice"));
    let [large, small] = [90, 5].map(|percent| limit("100/s burst 100").regional_part(Share::percent(percent)));
    let decide = |limit: &Limit, cost| {
        let charge = Charge::new(&rule, &key, limit).cost(cost);
        ask.block_on(redis.decide(&[charge])).unwrap().decisions[0].is_allowed()
    };
    assert_eq!([decide(&large, 90), decide(&small, 1), decide(&large, 1)], [true, false, false]);
}
