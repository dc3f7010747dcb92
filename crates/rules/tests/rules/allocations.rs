//! A request allocates no more memory than its keys need.
#![allow(unsafe_code, reason = "counting allocations means standing in for the allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tidegate_rules::{Mode, Request, Switches};

use crate::rules::support::{get, rule, rules};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static MOST_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Allocations of a thread that is ending are not counted.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        let _ = BYTES.try_with(|bytes| {
            bytes.set(bytes.get().wrapping_add(layout.size()));
            MOST_BYTES.set(MOST_BYTES.get().max(bytes.get()));
        });
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let _ = BYTES.try_with(|bytes| bytes.set(bytes.get().saturating_sub(layout.size())));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// The maximum memory, in bytes, that this thread had allocated at any time during `work`.
pub(crate) fn most_bytes(work: impl FnOnce()) -> usize {
    BYTES.set(0);
    MOST_BYTES.set(0);
    work();
    MOST_BYTES.get()
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(rules: &tidegate_rules::RuleSet, request: &Request) -> usize {
    let before = ALLOCATIONS.get();
    let matched = rules.matching(request);
    assert!(!matched.rules.is_empty());
    ALLOCATIONS.get() - before
}

#[test]
fn matching_and_keys_allocate_nothing() {
    let request = Request::new("GET", "/users/42/posts?page=1")
        .user("alice")
        .api_key("k_0123456789")
        .host("api.example.com")
        .header("X-Tenant", "acme")
        .address("2001:db8:1:2:3:4:5:6".parse().unwrap());
    for key in [
        "global",
        "user",
        "address",
        "api_key",
        "header:X-Tenant",
        "path:id",
        "route",
        "method",
        "[user, method]",
        "[address, route]",
        "{ address: { ipv6: 128 } }",
    ] {
        let rules = rule(&format!(
            "limits: [10/s, 1000/h], key: {key}, match: {{ path: ['/users/{{id}}/**', '/**/{{id}}/x'], method: [GET, POST], host: '*.example.com' }}"
        ));
        assert_eq!(allocations(&rules, &request), 0, "{key}");
    }
}

#[test]
fn a_thousand_rules_for_others_cost_a_request_nothing() {
    let other =
        |number: u32| format!("- {{ id: r{number}, key: user, match: {{ path: '/p{number}/{{id}}' }}, limit: 1/s }}\n");
    let rules = rules(&format!("rules:\n{}", (0..1_000).map(other).collect::<String>()));
    assert_eq!(allocations(&rules, &get("/p7/x").user("alice")), 0);
    let mut switches = Switches::new();
    (0..1_000).for_each(|number| switches.switch(&format!("r{number}"), Some(Mode::Shadow)));
    assert_eq!(allocations(&rules.with_switches(switches), &get("/p7/x").user("alice")), 0);
}
