//! A request that is paid from leases takes no memory.
#![allow(unsafe_code, reason = "counting allocations means standing in for the allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use tidegate_core::store::Answer;
use tidegate_core::{MemoryStore, Micros, Store};
use tidegate_redis::tier::{LeaseSettings, Settings, Tier};

use crate::tier::leases::Named;
use crate::tier::nodes::{Common, Network, drive};
use crate::tier::support::{finish, start};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Allocations of a thread that ends are not counted.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the promises that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_request_that_is_paid_from_leases_allocates_nothing() {
    let clock = start();
    let store = Common(Arc::new(MemoryStore::with_clock(clock.clone())));
    let tier = Tier::with_clock(Network::new(&store, &clock), Settings::default(), clock.clone());
    let tier = tier.with_leases_by_hand(LeaseSettings::default());
    let [api, gcra, window] = ["10000/s burst 10000", "gcra 10000/s burst 10000", "fixed 10000/s"]
        .map(|limit| Named::new(limit.split(' ').next().unwrap_or_default(), limit));
    let all = [api.charge(), gcra.charge(), window.charge()];
    let wait = || {
        clock.advance(Micros::from_millis(1));
        finish(tier.renew_leases());
    };
    for _ in 0..500 {
        wait();
        for _ in 0..2 {
            assert!(drive(&tier, tier.decide(&all)).unwrap().is_allowed());
        }
    }
    let mut without_renewal = 0;
    for round in 0..100 {
        wait();
        let charges = &all[..1 + round % all.len()];
        let before = tier.stats();
        let mut answer = Answer::default();
        let allocations = ALLOCATIONS.get();
        let decided = tier.decide_into(charges.into(), &mut answer).now();
        let allocations = ALLOCATIONS.get() - allocations;
        assert_eq!((decided, answer.decisions.len()), (Some(Ok(())), charges.len()));
        assert!(answer.is_allowed());
        // Sends the renewal of a lease that runs low. The request that noticed it has taken a place in a list for it.
        finish(tier.renew_leases());
        let after = tier.stats();
        assert_eq!(after.asked, before.asked);
        if after.leases.map(|leases| leases.renewals) == before.leases.map(|leases| leases.renewals) {
            assert_eq!(allocations, 0, "{} limits", charges.len());
            without_renewal += 1;
        }
    }
    assert!(without_renewal >= 90, "{without_renewal}");
    // The count is not zero for everything.
    let allocations = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(allocations)));
    assert_eq!(ALLOCATIONS.get(), allocations + 1);
}
