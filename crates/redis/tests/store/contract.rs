//! The contract of every store.

use std::future::Future;

use tidegate_core::contract::Subject;
use tidegate_core::{ManualClock, Timestamp};
use tidegate_redis::RedisStore;

use crate::store::server;

struct InRedis {
    store: RedisStore,
    clock: ManualClock,
}

impl InRedis {
    fn new() -> InRedis {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        InRedis { store: server::store(&server::prefix(), clock.clone()), clock }
    }
}

impl Subject for InRedis {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        server::runtime().block_on(future)
    }
}

tidegate_core::store_contract!(InRedis::new());
tidegate_core::store_contract!(InRedis::new(), leases);
