//! The handle to a fleet's configuration.

use std::sync::Arc;
use std::time::Duration;

use super::error::FleetError;
use super::keys::Keys;
use super::published::Published;
use crate::link::{Announcements, Endpoint, Settings, SettingsError};
use crate::names::PrefixError;

/// Publishes and reads a fleet's rules and modes. Each call opens a connection of its own.
#[derive(Clone)]
pub struct FleetControl {
    pub(super) settings: Arc<Settings>,
    pub(super) endpoint: Endpoint,
    pub(super) keys: Keys,
    pub(super) timeout: Duration,
    pub(super) look_every: Duration,
}

impl FleetControl {
    /// Uses the Redis of these settings: servers, login, TLS and connect timeout.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn new(settings: &Settings) -> Result<FleetControl, SettingsError> {
        Ok(FleetControl {
            settings: Arc::new(settings.clone()),
            endpoint: Endpoint::new(settings)?,
            keys: Keys::default(),
            timeout: Duration::from_secs(2),
            look_every: Duration::from_secs(1),
        })
    }

    /// Sets another prefix of keys than `tidegate`, so that several fleets can share a Redis.
    ///
    /// # Errors
    /// If the prefix has a brace in it.
    pub fn with_prefix(self, prefix: &str) -> Result<FleetControl, PrefixError> {
        Ok(FleetControl { keys: Keys::new(prefix)?, ..self })
    }

    /// Sets the timeout of an answer. The default is two seconds.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> FleetControl {
        FleetControl { timeout, ..self }
    }

    /// Sets the polling interval of followers, which also look when a change is announced. The default is one second, the least
    /// 10 milliseconds. Nodes report at this interval too, so those with one of more than ten seconds are not always listed.
    #[must_use]
    pub fn looking_every(self, look_every: Duration) -> FleetControl {
        FleetControl { look_every: look_every.max(Duration::from_millis(10)), ..self }
    }

    /// The published rules and modes; `None` if nothing is published.
    ///
    /// # Errors
    /// If Redis does not answer, or its data cannot be read.
    pub async fn published(&self) -> Result<Option<Published>, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let (contents, now) = (session.contents(true).await?, session.time().await?);
        Ok(contents.map(|contents| contents.into_published(now)))
    }
}
