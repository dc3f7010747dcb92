//! Concurrency: at most `slots` are held at once, and every slot is released.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::Index;
use tidegate_core::gate::{Permit, Refusal};
use tidegate_core::limit::Concurrency;
use tidegate_core::{Gate, ManualClock, MemoryStore, Micros, Settlement, Timestamp};

const TTL: Micros = Micros::from_secs(30);

fn gate(slots: u64) -> (Gate<ManualClock>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    (Gate::in_store(store, "slots", Concurrency::new(slots, TTL).unwrap().into()), clock)
}

fn hold(gate: &Gate<ManualClock>, slots: u64) -> Result<Permit<ManualClock>, Refusal> {
    gate.reserve("key", slots, TTL)
}

#[derive(Clone, Copy, Debug)]
enum SlotAction {
    Hold(u64),
    Drop(Index),
    Settle(Index),
    Panic(u64),
    Crash(Index),
    Renew(Index),
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Vec<SlotAction>> {
    let act = prop_oneof![
        6 => (0_u64..5).prop_map(SlotAction::Hold),
        2 => any::<Index>().prop_map(SlotAction::Drop),
        2 => any::<Index>().prop_map(SlotAction::Settle),
        1 => (1_u64..3).prop_map(SlotAction::Panic),
        1 => any::<Index>().prop_map(SlotAction::Crash),
        2 => any::<Index>().prop_map(SlotAction::Renew),
        3 => (0_u64..40_000_000).prop_map(SlotAction::Wait),
    ];
    prop::collection::vec(act, 1..80)
}

/// A permit kept by its holder, or kept until the holder crashed.
struct PermitHolder {
    permit: Option<Permit<ManualClock>>,
    slots: u64,
    ends: Timestamp,
}

proptest! {
    #![proptest_config(crate::properties::cases(1_000))]

    #[test]
    fn no_more_slots_are_held_than_there_are(slots in 1_u64..8, acts in acts()) {
        use tidegate_core::Clock;
        let (gate, clock) = gate(slots);
        let mut holders: Vec<PermitHolder> = Vec::new();
        for act in acts {
            let now = clock.now();
            holders.retain(|holder| holder.ends > now);
            let held: u64 = holders.iter().map(|holder| holder.slots).sum();
            prop_assert!(held <= slots);
            prop_assert_eq!(gate.peek("key").remaining, slots - held);
            let ends = now + TTL;
            match act {
                SlotAction::Hold(wanted) => match hold(&gate, wanted) {
                    Ok(permit) => {
                        prop_assert!(held + wanted <= slots);
                        if wanted > 0 {
                            holders.push(PermitHolder { permit: Some(permit), slots: wanted, ends });
                        }
                    }
                    Err(refusal) => prop_assert!(held + wanted > slots, "{refusal:?} with {held} held"),
                },
                SlotAction::Panic(wanted) => {
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        let _permit = hold(&gate, wanted);
                        std::panic::resume_unwind(Box::new("while holding a permit"));
                    }));
                }
                SlotAction::Wait(micros) => clock.advance(Micros::new(micros)),
                SlotAction::Drop(which) | SlotAction::Settle(which) | SlotAction::Crash(which) | SlotAction::Renew(which) => {
                    if holders.is_empty() {
                        continue;
                    }
                    let index = which.index(holders.len());
                    let Some(permit) = holders[index].permit.take() else { continue };
                    match act {
                        SlotAction::Drop(_) => drop(permit),
                        SlotAction::Settle(_) => {
                            let given_back = holders[index].slots;
                            prop_assert_eq!(permit.settle(&[7]), Settlement::Settled { given_back, charged: 0 });
                        }
                        SlotAction::Crash(_) => {
                            // The holder has crashed, so only the end of the lease releases the slots.
                            std::mem::forget(permit);
                            continue;
                        }
                        _ => {
                            prop_assert!(permit.renew());
                            holders[index].permit = Some(permit);
                            holders[index].ends = ends;
                            continue;
                        }
                    }
                    holders.remove(index);
                }
            }
        }
    }
}

#[test]
fn a_slot_is_kept_until_the_lease_ends_and_not_a_moment_longer() {
    let (gate, clock) = gate(1);
    std::mem::forget(hold(&gate, 1).unwrap());
    clock.advance(Micros::new(TTL.get() - 1));
    assert!(hold(&gate, 1).is_err());
    clock.advance(Micros::new(1));
    assert!(hold(&gate, 1).is_ok());
}

#[test]
fn a_lease_that_has_ended_is_neither_renewed_nor_settled() {
    let (gate, clock) = gate(1);
    let late = hold(&gate, 1).unwrap();
    clock.advance(TTL);
    assert!(!late.renew());
    let other = hold(&gate, 1).unwrap();
    assert_eq!(late.settle(&[0]), Settlement::Gone);
    assert!(hold(&gate, 1).is_err(), "whoever holds the slot now keeps it");
    drop(other);
}
