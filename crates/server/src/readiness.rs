//! Whether the store can be relied on, for probes.

use tidegate_rules::Condition;

use crate::engine::Engine;
use crate::store::AnyStore;

/// A store that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreTrouble {
    pub(crate) reason: String,
    /// Since when, in seconds since the Unix epoch, if that is known.
    pub(crate) since: Option<u64>,
}

impl StoreTrouble {
    /// The fault of `engine`'s store; `None` if it answers.
    pub(crate) fn of(engine: &Engine) -> Option<StoreTrouble> {
        if let Condition::Failing { since, reason } = engine.limiter().health().store {
            return Some(StoreTrouble { reason: reason.to_string(), since: Some(since.as_micros() / 1_000_000) });
        }
        // Nobody may have asked it anything yet.
        let reason = match engine.limiter().store() {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(tier) => {
                let servers = tier.behind().stats().servers;
                let away = servers.iter().find(|server| !server.connected);
                let trouble =
                    away.map(|server| server.last_trouble.clone().unwrap_or_else(|| "not connected yet".to_owned()));
                trouble.or_else(|| servers.is_empty().then(|| "no server is known yet".to_owned()))
            }
        };
        reason.map(|reason| StoreTrouble { reason, since: None })
    }
}
