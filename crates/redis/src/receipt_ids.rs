//! Ids of receipts.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::receipt::ReceiptId;

/// Draws ids that are unique in the fleet and unpredictable: a counter, hashed with random keys of this process.
#[derive(Debug, Default)]
pub(crate) struct ReceiptIds {
    high: RandomState,
    low: RandomState,
    drawn: AtomicU64,
}

impl ReceiptIds {
    pub(crate) fn draw(&self) -> ReceiptId {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        let (high, low) = (self.high.hash_one(number), self.low.hash_one(number));
        ReceiptId::new(u128::from(high) << 64 | u128::from(low))
    }
}
