//! The handle to a fleet's configuration.

use std::sync::Arc;
use std::time::Duration;

use super::error::FleetError;
use super::keys::FleetKeys;
use super::published::Published;
use crate::link::{Announcements, Endpoint, Settings, SettingsError};
use crate::names::PrefixError;

/// Publishes and reads a fleet's rules and modes. Each call opens its own connection.
#[derive(Clone)]
pub struct FleetControl {
    pub(super) settings: Arc<Settings>,
    pub(super) endpoint: Endpoint,
    pub(super) keys: FleetKeys,
    pub(super) timeout: Duration,
    pub(super) poll_interval: Duration,
}

impl FleetControl {
    /// Uses the Redis servers of `settings`, with their login, TLS and connect timeout.
    ///
    /// # Errors
    /// Fails if the settings are invalid.
    pub fn new(settings: &Settings) -> Result<FleetControl, SettingsError> {
        Ok(FleetControl {
            settings: Arc::new(settings.clone()),
            endpoint: Endpoint::new(settings)?,
            keys: FleetKeys::default(),
            timeout: Duration::from_secs(2),
            poll_interval: Duration::from_secs(1),
        })
    }

    /// Sets the prefix of keys, so that several fleets can share a Redis. The default is `tidegate`.
    ///
    /// # Errors
    /// Fails if the prefix contains a brace.
    pub fn with_prefix(self, prefix: &str) -> Result<FleetControl, PrefixError> {
        Ok(FleetControl { keys: FleetKeys::new(prefix)?, ..self })
    }

    /// Sets the timeout of an answer. The default is two seconds.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> FleetControl {
        FleetControl { timeout, ..self }
    }

    /// Sets the polling interval of followers, which also poll when a change is announced. The default is one second, the
    /// minimum 10 milliseconds. Nodes also report at this interval, so if it is above ten seconds, they are not always
    /// listed.
    #[must_use]
    pub fn with_poll_interval(self, poll_interval: Duration) -> FleetControl {
        FleetControl { poll_interval: poll_interval.max(Duration::from_millis(10)), ..self }
    }

    /// The published rules and modes; `None` if nothing is published.
    ///
    /// # Errors
    /// Fails if Redis does not answer, or its data cannot be read.
    pub async fn published(&self) -> Result<Option<Published>, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        let (contents, now) = (session.contents(true).await?, session.time().await?);
        Ok(contents.map(|contents| contents.into_published(now)))
    }
}
