//! Redis servers of all regions, for moving shares between them.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_redis::fleet::{FleetControl, RegionsControl};
use tidegate_redis::{PrefixError, Settings, SettingsError};

use super::values::text;
use super::{ConfigReader, error};

const SETTING: &str = "store.redis.regions";

/// The Redis servers of all regions, by name.
#[derive(Clone, Debug, Default)]
pub struct RegionServers {
    servers: BTreeMap<String, Settings>,
    prefix: String,
}

/// Invalid servers of regions.
#[derive(Debug, thiserror::Error)]
pub enum RegionServersError {
    /// The settings of a server are invalid.
    #[error("region `{region}`: {error}")]
    Settings {
        /// The region.
        region: String,
        /// The problem.
        error: SettingsError,
    },
    /// The prefix of keys is invalid.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
}

impl RegionServers {
    /// Parses texts such as `eu=redis://cache.eu.internal`. Errors do not quote them, because they may contain a
    /// password.
    ///
    /// # Errors
    /// The index of the invalid text, the problem, and the expected format.
    pub(crate) fn parse(texts: &[String], prefix: &str) -> Result<RegionServers, (usize, error::InvalidValue)> {
        let mut servers = BTreeMap::new();
        for (number, text) in texts.iter().enumerate() {
            let wrong = |problem: String| {
                (number, error::InvalidValue::new(problem, "write one such as `eu=redis://cache.eu.internal`"))
            };
            let named = text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains('/'));
            let Some((name, url)) = named else { return Err(wrong("a region has no name".to_owned())) };
            let settings = Settings::from_urls([url]);
            let settings = settings.map_err(|error| wrong(format!("region `{name}`: {error}")))?;
            if servers.insert(name.to_owned(), settings).is_some() {
                return Err(wrong(format!("region `{name}` is given twice")));
            }
        }
        Ok(RegionServers { servers, prefix: prefix.to_owned() })
    }

    /// Whether no region is given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Prefix of all keys.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Access to the records of all regions.
    ///
    /// # Errors
    /// If the settings of a server are invalid, or the prefix is.
    pub fn control(&self, timeout: Duration) -> Result<RegionsControl, RegionServersError> {
        let mut regions = BTreeMap::new();
        for (name, settings) in &self.servers {
            let mut settings = settings.clone();
            settings.connect_timeout = timeout;
            let wrong = |error| RegionServersError::Settings { region: name.clone(), error };
            let control = FleetControl::new(&settings).map_err(wrong)?.with_timeout(timeout);
            regions.insert(name.clone(), control.with_prefix(&self.prefix)?);
        }
        Ok(RegionsControl::new(regions))
    }
}

impl ConfigReader<'_> {
    pub(super) fn regions(&mut self) -> Option<RegionServers> {
        let prefix = self.value("store.redis.prefix", text)?;
        match RegionServers::parse(&self.texts(SETTING), &prefix) {
            Ok(servers) => Some(servers),
            Err((number, wrong)) => {
                self.wrong_one(SETTING, number, wrong);
                None
            }
        }
    }
}
