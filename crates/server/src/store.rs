//! Store of a server, in memory or in Redis.

use tidegate_core::store::{Adjustment, Answer, Decisions, NowOrLater, Readiness};
use tidegate_core::{Charge, Decision, Key, MemoryStore, Question, Receipt, RuleId, Settlement, Store, StoreError};
use tidegate_redis::RedisStore;
use tidegate_redis::tier::{Settings, SinceStart, Tier};
use tidegate_redis::write_behind::WriteBehindTier;

use crate::traces::store_call;

/// State in this process, or in a Redis shared by a fleet.
pub enum AnyStore {
    /// In this process. Synchronous.
    Memory(MemoryStore),
    /// In Redis, behind write-behind copies, leases and a cache of denials.
    Redis(Box<WriteBehindTier<Tier<RedisStore>>>),
}

impl AnyStore {
    /// Whether decisions are synchronous.
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        matches!(self, AnyStore::Memory(_))
    }

    /// Returns the leases of this node, and reports the admissions of its write-behind copies. Afterwards, the store
    /// decides everything. Call it at shutdown, so that other nodes can use the leases immediately.
    pub async fn return_leases(&self) {
        match self {
            AnyStore::Memory(_) => {}
            AnyStore::Redis(tier) => {
                tokio::join!(tier.finish(), tier.behind().return_leases());
            }
        }
    }

    /// Sets the number of nodes that share the store, which divides write-behind limits.
    pub fn set_nodes(&self, nodes: u32) {
        match self {
            AnyStore::Memory(_) => {}
            AnyStore::Redis(tier) => tier.set_nodes(nodes),
        }
    }

    /// State in Redis without leases: Redis decides every request that the cache of denials does not deny.
    #[must_use]
    pub fn without_leases(store: RedisStore) -> AnyStore {
        let tier = Tier::with_clock(store, Settings::default(), SinceStart::new());
        AnyStore::Redis(Box::new(WriteBehindTier::new(tier)))
    }
}

impl From<MemoryStore> for AnyStore {
    fn from(store: MemoryStore) -> AnyStore {
        AnyStore::Memory(store)
    }
}

impl From<RedisStore> for AnyStore {
    fn from(store: RedisStore) -> AnyStore {
        AnyStore::Redis(Box::new(WriteBehindTier::new(Tier::new(store))))
    }
}

impl Store for AnyStore {
    fn readiness(&self) -> Readiness {
        match self {
            AnyStore::Memory(store) => store.readiness(),
            AnyStore::Redis(store) => store.readiness(),
        }
    }

    fn decide_into(
        &self,
        question: Question<'_>,
        answer: &mut Answer,
    ) -> NowOrLater<Result<(), StoreError>, impl Future<Output = Result<(), StoreError>> + Send> {
        match self {
            AnyStore::Memory(store) => NowOrLater::Now(store.decide_into(question, answer)),
            AnyStore::Redis(store) => {
                let later = |call| store_call("tidegate.store.decide", call, Result::is_ok);
                store.decide_into(question, answer).map_later(later)
            }
        }
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.settle(receipt, actual)),
            AnyStore::Redis(store) => {
                store_call("tidegate.store.settle", store.settle(receipt, actual), Result::is_ok).await
            }
        }
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.renew(receipt)),
            AnyStore::Redis(store) => store_call("tidegate.store.renew", store.renew(receipt), Result::is_ok).await,
        }
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.peek(charges)),
            AnyStore::Redis(store) => store_call("tidegate.store.peek", store.peek(charges), Result::is_ok).await,
        }
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.adjust(charge, adjustment)),
            AnyStore::Redis(store) => {
                store_call("tidegate.store.adjust", store.adjust(charge, adjustment), Result::is_ok).await
            }
        }
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        match self {
            AnyStore::Memory(store) => Ok(store.reset(rule, key)),
            AnyStore::Redis(store) => store_call("tidegate.store.reset", store.reset(rule, key), Result::is_ok).await,
        }
    }
}
