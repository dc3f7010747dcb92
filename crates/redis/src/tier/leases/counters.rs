//! Counters of leases.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidegate_core::Micros;

/// Counters of a node's leases. Tokens are the unit of costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Requests that were admitted without a call to the store.
    pub admitted: u64,
    /// Requests that were denied because tokens were scarce and this node had used its share.
    pub denied: u64,
    /// Rounds of renewals that are sent together: one call of a standalone server, or one call per slot in a cluster.
    pub calls: u64,
    /// Renewals, one for each key of a round.
    pub renewals: u64,
    /// Renewals that failed.
    pub failed: u64,
    /// Tokens granted.
    pub granted: u64,
    /// Tokens returned unspent, by returns that the store has confirmed.
    pub returned: u64,
    /// Tokens that ended unspent, or whose return was not confirmed. They count as spent.
    pub ended: u64,
    /// The total time in which tokens were scarce, summed over all keys.
    pub short: Micros,
    /// Keys in the table: those leased, and those whose demand is measured.
    pub keys: usize,
    /// Keys of which this node holds tokens.
    pub leased: usize,
    /// The tokens that this node holds.
    pub outstanding: u64,
    /// Blocks of slots that this node holds.
    pub blocks: usize,
    /// The number of slots in these blocks.
    pub slots: u64,
    /// The number of these slots that requests hold.
    pub slots_in_use: u64,
}

#[derive(Default)]
pub(in crate::tier) struct LeaseCounters {
    pub(in crate::tier) admitted: StripedCount,
    pub(in crate::tier) denied: AtomicU64,
    pub(in crate::tier) calls: AtomicU64,
    pub(in crate::tier) renewals: AtomicU64,
    pub(in crate::tier) failed: AtomicU64,
    pub(super) granted: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) ended: AtomicU64,
    pub(super) short: AtomicU64,
}

impl LeaseCounters {
    /// The counters, without the present numbers.
    pub(super) fn stats(&self) -> LeaseStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LeaseStats {
            admitted: self.admitted.sum(),
            denied: get(&self.denied),
            calls: get(&self.calls),
            renewals: get(&self.renewals),
            failed: get(&self.failed),
            granted: get(&self.granted),
            returned: get(&self.returned),
            ended: get(&self.ended),
            short: Micros::new(get(&self.short)),
            ..LeaseStats::default()
        }
    }
}

/// The number of stripes of a counter.
const STRIPES: usize = 16;

/// A counter that every leased decision increments. Threads use separate cache lines, up to the number of stripes.
#[derive(Default)]
pub(in crate::tier) struct StripedCount([Stripe; STRIPES]);

#[derive(Default)]
#[repr(align(64))]
struct Stripe(AtomicU64);

impl StripedCount {
    #[inline]
    pub(in crate::tier) fn add_one(&self) {
        self.0[stripe()].0.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }
}

/// The stripe of this thread.
#[inline]
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(STRIPES) };
    }
    OWN.with(|own| {
        if own.get() >= STRIPES {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        own.get()
    })
}

/// Adds to a counter.
pub(in crate::tier) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
