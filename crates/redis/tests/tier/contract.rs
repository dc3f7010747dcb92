//! A tier is a store.
//!
//! All checks but the one of random traces, which wants every number of a denied request's other charges: those that are
//! answered from memory say less of them. `differential` has traces of its own, and says what may differ.

use std::future::Future;

use tidegate_core::ManualClock;
use tidegate_core::contract::Subject;
use tidegate_redis::tier::Tier;

use crate::support::{Behind, Tiered, finish};

impl Subject for Tiered {
    type Store = Tier<Behind, ManualClock>;

    fn store(&self) -> &Self::Store {
        &self.tier
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        finish(future)
    }
}

tidegate_core::store_contract!(Tiered::new(), but traces);
