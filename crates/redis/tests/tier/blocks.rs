//! Slots of concurrency limits that nodes lease in blocks.

use tidegate_core::contract::faulty::Fault;
use tidegate_core::lease::Leasing;
use tidegate_core::{Charge, Micros, Receipt, Settlement, Store};
use tidegate_redis::tier::LeaseStats;

use crate::tier::leases::Named;
use crate::tier::nodes::Fleet;
use crate::tier::support::finish;

fn begin(fleet: &Fleet, node: usize, charge: Charge<'_>) -> Option<Receipt> {
    fleet.decide(node, &[charge]).unwrap().receipt
}

fn end(fleet: &Fleet, node: usize, receipt: &Receipt) -> Settlement {
    finish(fleet.nodes[node].settle(receipt, &[])).unwrap()
}

fn end_all(fleet: &Fleet, node: usize, receipts: &[Receipt]) {
    for receipt in receipts {
        assert_ne!(end(fleet, node, receipt), Settlement::Gone);
    }
}

/// Begins a request in each of this many milliseconds, and ends those beyond `most`. Returns those that are still running,
/// and the number of denials.
fn load(fleet: &Fleet, node: usize, charge: Charge<'_>, most: usize, millis: u64) -> (Vec<Receipt>, u64) {
    let (mut running, mut denied) = (Vec::new(), 0);
    for _ in 0..millis {
        fleet.wait(1);
        match begin(fleet, node, charge) {
            Some(receipt) => running.push(receipt),
            None => denied += 1,
        }
        if running.len() > most {
            end(fleet, node, &running.remove(0));
        }
    }
    (running, denied)
}

/// The number of slots that the store has left.
fn left(fleet: &Fleet, charge: Charge<'_>) -> u64 {
    finish(fleet.store.peek(&[charge.cost(0)])).unwrap()[0].remaining
}

fn held(leases: &LeaseStats) -> (u64, u64) {
    (leases.slots, leases.slots_in_use)
}

#[test]
fn requests_begin_and_end_without_a_call_of_the_store() {
    let (fleet, work) = (Fleet::new(1), Named::new("work", "concurrent 640 ttl 10s"));
    let (running, denied) = load(&fleet, 0, work.charge(), 20, 2_000);
    assert_eq!((running.len(), denied), (20, 0));
    let leases = fleet.leases(0);
    assert!(fleet.calls(0) < 80, "{} calls for 4000 beginnings and ends", fleet.calls(0));
    assert!(leases.slots >= 20 && leases.slots_in_use >= 16, "{leases:?}");
    assert_eq!(left(&fleet, work.charge()), 640 - leases.slots - (20 - leases.slots_in_use));
}

#[test]
fn few_slots_short_ones_and_those_of_rules_that_lease_nothing_are_not_leased() {
    let rest = ["concurrent 63 ttl 10s", "concurrent 640 ttl 999ms"].map(|text| (text, Leasing::AUTO));
    for (text, leasing) in rest.into_iter().chain([("concurrent 640 ttl 10s", Leasing::OFF)]) {
        let (fleet, work) = (Fleet::new(1), Named::new("work", text));
        load(&fleet, 0, Charge { leasing, ..work.charge() }, 5, 300);
        assert_eq!((fleet.leases(0).blocks, fleet.leases(0).admitted), (0, 0), "{text}");
    }
}

#[test]
fn idle_blocks_are_released() {
    let (fleet, work) = (Fleet::new(1), Named::new("work", "concurrent 640 ttl 10s"));
    let (running, _) = load(&fleet, 0, work.charge(), 50, 500);
    assert!(fleet.leases(0).blocks > 1);
    for receipt in &running {
        assert_eq!(end(&fleet, 0, receipt), Settlement::Settled { given_back: 1, charged: 0 });
        assert_eq!(end(&fleet, 0, receipt), Settlement::Gone, "once");
    }
    fleet.wait(400);
    assert_eq!((fleet.leases(0).blocks, left(&fleet, work.charge())), (0, 640));
    fleet.wait(11_000);
    assert!(!fleet.nodes[0].leases_key(&work.rule, work.charge().key), "it is forgotten");
}

#[test]
fn a_node_that_shuts_down_releases_its_blocks() {
    let (fleet, work) = (Fleet::new(1), Named::new("work", "concurrent 640 ttl 10s"));
    let (running, _) = load(&fleet, 0, work.charge(), 9, 500);
    end_all(&fleet, 0, &running);
    assert!(fleet.leases(0).slots > 0);
    finish(fleet.nodes[0].return_leases());
    assert_eq!((fleet.leases(0).slots, left(&fleet, work.charge())), (0, 640));
    load(&fleet, 0, work.charge(), 9, 300);
    assert_eq!(fleet.leases(0).slots, 0, "it takes no more");
}

#[test]
fn slots_of_requests_that_never_end_are_free_after_their_time_to_live() {
    let (fleet, work) = (Fleet::new(1), Named::new("work", "concurrent 640 ttl 1s"));
    let (running, _) = load(&fleet, 0, work.charge(), 1_000, 300);
    assert_eq!(running.len(), 300, "{:?}", fleet.leases(0));
    fleet.wait(800);
    assert!(fleet.leases(0).slots_in_use > 100);
    fleet.wait(300);
    assert_eq!(fleet.leases(0).slots_in_use, 0);
    fleet.wait(1_500);
    assert_eq!((held(&fleet.leases(0)), left(&fleet, work.charge())), ((0, 0), 640));
}

#[test]
fn a_request_renews_its_slot_as_long_as_it_needs() {
    let (fleet, work) = (Fleet::new(1), Named::new("work", "concurrent 640 ttl 1s"));
    let (running, _) = load(&fleet, 0, work.charge(), 3, 300);
    let kept = running.last().unwrap();
    for _ in 0..5 {
        fleet.wait(800);
        assert!(finish(fleet.nodes[0].renew(kept)).unwrap(), "{:?}", fleet.leases(0));
    }
    assert!(!finish(fleet.nodes[0].renew(&running[0])).unwrap(), "it has ended");
    assert_eq!(end(&fleet, 0, kept), Settlement::Settled { given_back: 1, charged: 0 });
}

#[test]
fn a_request_over_slots_and_a_reservation_has_one_receipt_for_both() {
    let (fleet, work) = (Fleet::new(2), Named::new("work", "concurrent 640 ttl 10s"));
    let budget = Named::new("budget", "1/h burst 1000");
    load(&fleet, 0, work.charge(), 5, 300);
    let in_use = fleet.leases(0).slots_in_use;
    let reserved = budget.charge().cost(100).reserve(Micros::from_secs(60));
    for charges in [[work.charge(), reserved], [reserved, work.charge()]] {
        let answer = fleet.decide(0, &charges).unwrap();
        let receipt = answer.receipt.unwrap();
        let rules: Vec<_> = receipt.held.iter().map(|held| &held.rule).collect();
        assert_eq!(rules, charges.map(|charge| charge.rule), "in the order of the charges");
        assert_eq!(fleet.leases(0).slots_in_use, in_use + 1);
        assert!(finish(fleet.nodes[0].renew(&receipt)).unwrap());
        // Another node can only settle the reservation with the store, because the slot is in a block of the first node.
        let actual: Vec<u64> = charges.iter().map(|charge| if charge.reserve.is_some() { 40 } else { 1 }).collect();
        assert!(!finish(fleet.nodes[1].renew(&receipt)).unwrap());
        let settled = finish(fleet.nodes[1].settle(&receipt, &actual)).unwrap();
        assert_eq!(settled, Settlement::Settled { given_back: 60, charged: 0 });
        assert_eq!(fleet.leases(0).slots_in_use, in_use + 1);
        let settled = finish(fleet.nodes[0].settle(&receipt, &actual)).unwrap();
        assert_eq!(settled, Settlement::Settled { given_back: 1, charged: 0 });
        assert_eq!(fleet.leases(0).slots_in_use, in_use);
    }
    assert_eq!(left(&fleet, budget.charge()), 1_000 - 2 * 40);
}

#[test]
fn a_request_that_another_limit_denies_gives_its_slots_back() {
    let (fleet, work) = (Fleet::new(1), Named::new("work", "concurrent 640 ttl 10s"));
    let strict = Named::new("strict", "fixed 1/h");
    load(&fleet, 0, work.charge(), 5, 300);
    let before = fleet.leases(0).slots_in_use;
    let decide = || fleet.decide(0, &[work.charge(), strict.charge()]).unwrap();
    assert!(decide().is_allowed());
    for _ in 0..3 {
        let denied = decide();
        assert!(!denied.is_allowed() && denied.receipt.is_none());
    }
    assert_eq!(fleet.leases(0).slots_in_use, before + 1);
}

#[test]
fn denials_for_lack_of_slots_cost_few_calls() {
    let (fleet, work) = (Fleet::new(2), Named::new("work", "concurrent 64 ttl 10min"));
    let all = finish(fleet.store.decide(&[work.charge().cost(64)])).unwrap().receipt.unwrap();
    let (_, denied) = load(&fleet, 0, work.charge(), 5, 1_000);
    assert_eq!(denied, 1_000);
    assert!(fleet.calls(0) < 150, "{}", fleet.calls(0));
    assert!(fleet.leases(0).denied > 800, "{:?}", fleet.leases(0));
    // Released slots are found immediately.
    finish(fleet.store.settle(&all, &[64])).unwrap();
    fleet.wait(30);
    let (running, denied) = load(&fleet, 0, work.charge(), 5, 100);
    assert!(running.len() == 5 && denied <= 1, "{denied}");
}

/// A node holds at most half of the slots, or less if the rule has a lower share. The store decides further requests.
#[test]
fn a_node_leases_no_more_than_its_share() {
    let work = Named::new("work", "concurrent 640 ttl 10s");
    for (leasing, most) in [(Leasing::AUTO, 320), (Leasing::within(10, 200).unwrap(), 64)] {
        let fleet = Fleet::new(1);
        let charge = Charge { leasing, ..work.charge() };
        let (running, _) = load(&fleet, 0, charge, 1_000, 1_000);
        assert_eq!((running.len(), fleet.leases(0).slots), (640, most));
        assert!(running.iter().all(|receipt| end(&fleet, 0, receipt) != Settlement::Gone));
    }
}

/// Like rules with `shed`: less important requests may use a part of the slots, others all of them.
#[test]
fn a_lesser_limit_of_the_same_key_makes_room_for_a_greater_one() {
    let fleet = Fleet::new(2);
    let (low, critical) =
        (Named::new("work", "concurrent 320 ttl 10min"), Named::new("work", "concurrent 640 ttl 10min"));
    let (mut of_low, denied) = load(&fleet, 0, low.charge(), 200, 1_000);
    assert_eq!((of_low.len(), denied), (200, 0));
    let (of_critical, _) = load(&fleet, 1, critical.charge(), 1_000, 1_000);
    assert!(of_critical.len() > 350, "{}", of_critical.len());
    // The fleet now holds more than the lesser limit permits. Its requests continue, but none begins.
    fleet.wait(1_100);
    for _ in 0..200 {
        end(&fleet, 0, &of_low.remove(0));
        assert!(begin(&fleet, 0, low.charge()).is_none());
        fleet.wait(1);
    }
    fleet.wait(100);
    let (more, _) = load(&fleet, 1, critical.charge(), 1_000, 300);
    assert_eq!(of_critical.len() + more.len(), 640);
    // Once they have ended, new requests begin.
    end_all(&fleet, 1, &of_critical);
    end_all(&fleet, 1, &more);
    fleet.wait(2_100);
    assert!(begin(&fleet, 0, low.charge()).is_some());
}

#[test]
fn blocks_that_the_store_has_lost_are_given_up_when_they_are_renewed() {
    let (fleet, work) = (Fleet::new(1), Named::new("work", "concurrent 640 ttl 2s"));
    load(&fleet, 0, work.charge(), 9, 500);
    let blocks = fleet.leases(0).blocks;
    assert!(blocks > 0);
    finish(fleet.store.reset(&work.rule, work.charge().key)).unwrap();
    load(&fleet, 0, work.charge(), 9, 1_500);
    let slots = fleet.leases(0).slots;
    assert!(slots > 0 && left(&fleet, work.charge()) <= 640 - slots, "{:?}", fleet.leases(0));
    // A reset at the node itself takes effect immediately.
    finish(fleet.nodes[0].reset(&work.rule, work.charge().key)).unwrap();
    assert_eq!(fleet.leases(0).slots, 0);
}

/// While the store does not answer, a node assigns the slots that it has, as long as they last for a request's time to
/// live.
#[test]
fn requests_begin_while_the_store_is_unavailable() {
    let (fleet, work) = (Fleet::new(1), Named::new("work", "concurrent 640 ttl 2s"));
    let (running, _) = load(&fleet, 0, work.charge(), 9, 500);
    fleet.nodes[0].behind().fail(Fault::Unreachable);
    let begins = || fleet.decide(0, &[work.charge()]).map(|answer| answer.receipt.unwrap());
    let receipt = begins().unwrap();
    assert_eq!(end(&fleet, 0, &receipt), Settlement::Settled { given_back: 1, charged: 0 });
    fleet.wait(2_000);
    begins().unwrap_err();
    fleet.nodes[0].behind().fail(None);
    fleet.wait(300);
    assert!(begins().is_ok());
    drop(running);
}
