//! The memory of a store: it stays within the cap for all kinds of state, and the store reports it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so and stops")]
#![allow(unsafe_code, reason = "counting bytes means standing in for the allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tidegate_core::{Charge, Key, Limit, ManualClock, MemoryStore, Micros, RuleId, Timestamp};

struct CountingAllocator;

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    // Allocations of a thread that is ending are not counted.
    let _ = BYTES.try_with(|sum| sum.set(sum.get() + bytes));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

const CAP: usize = 100_000;
const BYTES_A_KEY: usize = 48;

/// Fills a store with keys under `limit`, `charges` times each, and compares the reported memory with the allocated memory.
fn fill(limit: &str, charges: usize, reserve: bool) {
    let clock = ManualClock::at(Timestamp::from_secs(1_772_000_000));
    let store = MemoryStore::with_clock_and_cap(clock.clone(), CAP);
    let limit_text = limit;
    let (rules, limit): (_, Limit) = (["a", "b"].map(RuleId::new), limit.parse().unwrap());
    let before = BYTES.get();
    for rule in &rules {
        let overflowed = store.stats().overflowed;
        for number in 0..CAP {
            let name = format!("key {number}");
            let key = Key::from(&name);
            for _ in 0..charges {
                clock.advance(Micros::new(1));
                let charge = Charge::new(rule, &key, &limit);
                let charge = if reserve { charge.reserve(Micros::from_secs(600)) } else { charge };
                // The receipt would be stored by the client.
                drop(store.decide(&[charge]));
            }
            if number % 64 == 0 && store.stats().overflowed > overflowed + 1_000 {
                break;
            }
        }
        assert!(store.stats().overflowed > overflowed, "{limit_text}: the flood was too small");
    }
    let stats = store.stats();
    let took = usize::try_from(BYTES.get() - before).unwrap();
    assert!(stats.used > CAP * 3 / 4 && stats.used <= CAP, "{limit_text}: {stats:?}");
    assert!(stats.heap_bytes >= took * 3 / 4, "{limit_text}: {took} bytes were allocated: {stats:?}");
    assert!(stats.heap_bytes <= took * 3 / 2 + 10_000, "{limit_text}: {took} bytes were allocated: {stats:?}");
    assert!(took + stats.table_bytes <= CAP * BYTES_A_KEY * 11 / 10, "{limit_text}: {took} bytes, {stats:?}");
}

#[test]
fn logs_take_no_more_memory_than_the_cap_allows() {
    fill("log 10_000/h", 1_000, false);
    fill("log 10_000/h", 1, false);
}

#[test]
fn leases_take_no_more_memory_than_the_cap_allows() {
    fill("concurrent 100 ttl 1h", 1, false);
    fill("concurrent 100 ttl 1h", 40, false);
}

#[test]
fn reservations_take_no_more_memory_than_the_cap_allows() {
    fill("1000/h", 20, true);
}

#[test]
fn windows_in_many_parts_take_no_more_memory_than_the_cap_allows() {
    fill("sliding 10_000/h parts 60", 2, false);
}
