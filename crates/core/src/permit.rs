//! What was taken, given back by itself.

use std::fmt;
use std::sync::Arc;

use crate::clock::Clock;
use crate::memory::MemoryStore;
use crate::receipt::{Receipt, Settlement};

/// Holds what an admission took from a [`MemoryStore`], and gives all of it back when dropped: reserved costs as if
/// nothing had been used, slots as free. A request that panics, is cancelled or never happens costs nothing.
///
/// What has expired by then is not there to give back, and a permit that is leaked (`std::mem::forget`) gives nothing
/// back: its slots come free when their lease ends, and a reserved cost stays spent and returns at the limit's own pace.
pub struct Permit<C: Clock> {
    store: Arc<MemoryStore<C>>,
    receipt: Option<Receipt>,
}

impl<C: Clock> Permit<C> {
    /// Guards what `receipt` took from `store`; nothing, if it took nothing.
    #[must_use]
    pub fn new(store: Arc<MemoryStore<C>>, receipt: Option<Receipt>) -> Permit<C> {
        Permit { store, receipt }
    }

    /// Settles at what it really cost: one number for each thing held, in the receipt's order. Slots are freed.
    pub fn settle(mut self, actual: &[u64]) -> Settlement {
        self.receipt.take().map_or(Settlement::Gone, |receipt| self.store.settle(&receipt, actual))
    }

    /// Lets leases and reservations run anew. `false` if any has already ended.
    pub fn renew(&self) -> bool {
        self.receipt.as_ref().is_none_or(|receipt| self.store.renew(receipt))
    }

    /// Gives up guarding: somebody else will settle.
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
