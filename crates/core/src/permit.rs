//! Permits: reserved costs and slots that are released on drop.

use std::fmt;
use std::sync::Arc;

use crate::clock::Clock;
use crate::memory::MemoryStore;
use crate::receipt::{Receipt, Settlement};

/// The reserved costs and slots of an admission by a [`MemoryStore`]. Dropping a permit refunds the costs in full and releases the
/// slots, so a request that panics, is cancelled or never happens costs nothing.
///
/// Reservations and leases that have expired are not refunded. A permit that is leaked (`std::mem::forget`) refunds nothing:
/// its slots are released when their lease ends, and a reserved cost stays spent and recovers at the limit's rate.
pub struct Permit<C: Clock> {
    store: Arc<MemoryStore<C>>,
    receipt: Option<Receipt>,
}

impl<C: Clock> Permit<C> {
    /// A permit for what `receipt` holds in `store`, if anything.
    #[must_use]
    pub fn new(store: Arc<MemoryStore<C>>, receipt: Option<Receipt>) -> Permit<C> {
        Permit { store, receipt }
    }

    /// Settles at the actual costs: one number for each hold, in the receipt's order. Slots are released.
    pub fn settle(mut self, actual: &[u64]) -> Settlement {
        self.receipt.take().map_or(Settlement::Gone, |receipt| self.store.settle(&receipt, actual))
    }

    /// Restarts the time to live of leases and reservations. `false` if any has already ended.
    pub fn renew(&self) -> bool {
        self.receipt.as_ref().is_none_or(|receipt| self.store.renew(receipt))
    }

    /// Returns the receipt without settling it.
    #[must_use]
    pub fn into_receipt(mut self) -> Option<Receipt> {
        self.receipt.take()
    }
}

impl<C: Clock> Drop for Permit<C> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.store.settle(&receipt, &vec![0; receipt.held.len()]);
        }
    }
}

impl<C: Clock> fmt::Debug for Permit<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("receipt", &self.receipt).finish_non_exhaustive()
    }
}
