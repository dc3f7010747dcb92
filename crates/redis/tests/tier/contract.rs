//! A tier fulfils the contract of a store.
//!
//! Contains all checks except the random traces, which require every number of a denied request's other charges: answers
//! from memory contain less of them. `differential` has its own traces, and defines what may differ.

use std::future::Future;

use tidegate_core::ManualClock;
use tidegate_core::contract::Subject;
use tidegate_redis::tier::Tier;

use crate::tier::support::{Behind, Tiered, finish};

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
