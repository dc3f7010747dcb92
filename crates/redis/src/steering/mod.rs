//! Steering a fleet: rules and modes that are published once and in force everywhere a moment later.
//!
//! An operator publishes the text of a rules file ([`Steering::publish_rules`]), or puts a rule into another mode
//! ([`Steering::publish_mode`]). Every node that follows ([`Steering::follow`]) takes that in within two seconds, checks it
//! first, and says what it has made of it ([`Steering::fleet`]). No request waits for any of this: a follower has a
//! connection of its own.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tidegate_rules::{Limiter, Mode, RuleSet};
//! use tidegate_core::MemoryStore;
//! use tidegate_redis::Settings;
//! use tidegate_redis::steering::{Node, Steering, Target};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let steering = Steering::new(&Settings::standalone("redis://127.0.0.1")?)?;
//! let limiter = Arc::new(Limiter::new(RuleSet::default(), MemoryStore::new()));
//! let _following = steering.follow(limiter, Node::here(), |event| println!("{event:?}"))?;
//!
//! let text = "rules: [{ id: login, key: address, limit: 5/min }]";
//! let published = steering.publish_rules("rules.yaml", text, "ann", None).await?;
//! steering.publish_mode(&Target::Rule("login".to_owned()), Some(Mode::Shadow), "ann", Some(published.version)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Users with few permissions
//! A node needs the keys and the channel `tidegate:{#steering}:*` (another prefix if one is set) and the commands
//! `+strlen +getrange +time +set +zadd +zrem +zremrangebyscore +pexpire +del +multi +exec +subscribe`. Whoever publishes
//! needs `+strlen +getrange +time +set +watch +multi +exec +publish`, and `+zrange` to see the fleet.

mod applying;
mod error;
mod following;
mod history;
mod keys;
mod published;
mod publishing;
mod report;
mod session;

use std::time::Duration;

pub use self::error::{PublishError, SteeringError};
pub use self::following::{Event, Following, NoRuntime};
pub use self::history::{ChangeKind, PublishedChange};
pub use self::published::{Published, PublishedModes, PublishedRules, Signature, Switched};
pub use self::publishing::{Publication, Target};
pub use self::report::{Fleet, Node, NodeError, NodeReport, NodeState};

use self::keys::Keys;
use crate::link::{Announcements, Endpoint, Settings, SettingsError};
use crate::names::PrefixError;

/// The way to what is published. It keeps no connection: each call makes one.
#[derive(Clone)]
pub struct Steering {
    endpoint: Endpoint,
    keys: Keys,
    timeout: Duration,
    look_every: Duration,
}

impl Steering {
    /// Steering through the Redis that these settings lead to. Of them, the servers, who to be, TLS and the time to
    /// connect count.
    ///
    /// # Errors
    /// If the settings make no sense.
    pub fn new(settings: &Settings) -> Result<Steering, SettingsError> {
        Ok(Steering {
            endpoint: Endpoint::new(settings)?,
            keys: Keys::default(),
            timeout: Duration::from_secs(2),
            look_every: Duration::from_secs(1),
        })
    }

    /// The same under another prefix than `tidegate`, so that several fleets can share a Redis.
    ///
    /// # Errors
    /// If keys cannot begin with it.
    pub fn with_prefix(self, prefix: &str) -> Result<Steering, PrefixError> {
        Ok(Steering { keys: Keys::new(prefix)?, ..self })
    }

    /// The same, waiting so long for an answer. Two seconds otherwise.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Steering {
        Steering { timeout, ..self }
    }

    /// The same, looking so often, beside when something is announced. Once a second otherwise, and never more often than
    /// a hundred times. It also reports then, so a node that looks less often than every ten seconds is not always listed.
    #[must_use]
    pub fn looking_every(self, look_every: Duration) -> Steering {
        Steering { look_every: look_every.max(Duration::from_millis(10)), ..self }
    }

    /// What is published; `None` if nothing is.
    ///
    /// # Errors
    /// If Redis cannot be asked, or what lies there makes no sense.
    pub async fn published(&self) -> Result<Option<Published>, SteeringError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let (contents, now) = (session.contents(true).await?, session.time().await?);
        Ok(contents.map(|contents| contents.into_published(now)))
    }
}
