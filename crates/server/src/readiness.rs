//! Readiness of the store, for probes.

use tidegate_rules::Condition;

use crate::engine::Engine;
use crate::store::AnyStore;

/// Outage of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreTrouble {
    pub(crate) reason: String,
    /// Start, in seconds since the Unix epoch, if known.
    pub(crate) since: Option<u64>,
    /// Whether the first connection attempt is still in progress.
    pub(crate) is_pending: bool,
}

impl StoreTrouble {
    /// Outage of the store of `engine`; `None` if it is available.
    pub(crate) fn of(engine: &Engine) -> Option<StoreTrouble> {
        if let Condition::Failing { since, reason } = engine.limiter().health().store {
            let since = Some(since.as_micros() / 1_000_000);
            return Some(StoreTrouble { reason: reason.to_string(), since, is_pending: false });
        }
        // No call has failed, but there may have been none yet, so the connections are checked too.
        let AnyStore::Redis(tier) = engine.limiter().store() else { return None };
        let trouble = |known: Option<String>, pending: &str| {
            let is_pending = known.is_none();
            Some(StoreTrouble { reason: known.unwrap_or_else(|| pending.to_owned()), since: None, is_pending })
        };
        let stats = tier.behind().behind().stats();
        match stats.servers.iter().find(|server| !server.connected) {
            Some(server) => trouble(server.last_failure.clone(), "not connected yet"),
            None if stats.servers.is_empty() => trouble(stats.topology_failure, "no server is known yet"),
            None => None,
        }
    }
}
