//! Settings of the store.

use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::{MemoryStore, SystemClock};
use tidegate_redis::fleet::FleetControl;
use tidegate_redis::link::Login;
use tidegate_redis::link::Tls as RedisTls;
use tidegate_redis::{Names, RedisStore, Settings, SettingsError};
use tidegate_rules::TierSettings;

use super::values::{choice, count, flag, span, text};
use super::{ConfigReader, MS, error};
use crate::state_file::StateFileSettings;
use crate::store::AnyStore;

/// Store of the state.
#[derive(Clone, Debug)]
pub enum StoreSettings {
    /// In memory, with a maximum number of keys.
    Memory {
        /// The most keys.
        keys: usize,
        /// The file in which the state survives restarts.
        file: Option<StateFileSettings>,
    },
    /// In Redis.
    Redis {
        /// The way there.
        settings: Box<Settings>,
        /// Names of keys.
        names: Names,
        /// Prefix of all keys.
        prefix: String,
        /// Whether published rules and modes are followed.
        follow: bool,
        /// Whether busy keys are leased.
        leases: bool,
        /// Bounds on tiers that are looked up.
        tiers: TierSettings,
        /// The longest time that a request waits for its tier.
        tiers_deadline: Duration,
        /// The servers as they may be shown.
        shown: String,
    },
}

impl StoreSettings {
    /// The store. Connects in the background, if it has to. A store in memory is empty.
    ///
    /// # Errors
    /// If the settings make no sense, or there is no Tokio runtime to run on.
    pub fn open(&self) -> Result<AnyStore, SettingsError> {
        match self {
            StoreSettings::Memory { keys, .. } => Ok(MemoryStore::with_clock_and_cap(SystemClock::new(), *keys).into()),
            StoreSettings::Redis { settings, names, leases, .. } => {
                let store = RedisStore::open((**settings).clone())?.with_names(names.clone());
                Ok(if *leases { store.into() } else { AnyStore::without_leases(store) })
            }
        }
    }
}

impl StoreSettings {
    /// The tiers of API keys in Redis, and the longest time that a request waits for one; `None` for state in memory.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn tiers(&self) -> Result<Option<(FleetControl, TierSettings, Duration)>, SettingsError> {
        let StoreSettings::Redis { settings, prefix, tiers, tiers_deadline, .. } = self else { return Ok(None) };
        let control = FleetControl::new(settings)?.with_prefix(prefix).ok();
        Ok(control.map(|control| (control, *tiers, *tiers_deadline)))
    }

    /// The most keys of a store in memory; `None` if state is elsewhere.
    #[must_use]
    pub const fn keys_in_memory(&self) -> Option<usize> {
        match self {
            StoreSettings::Memory { keys, .. } => Some(*keys),
            StoreSettings::Redis { .. } => None,
        }
    }

    /// Access to the record of the region; `None` for state in memory, which has none.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn region(&self) -> Result<Option<FleetControl>, SettingsError> {
        let StoreSettings::Redis { settings, prefix, .. } = self else { return Ok(None) };
        Ok(FleetControl::new(settings)?.with_prefix(prefix).ok())
    }

    /// Access to what is published for the fleet; `None` if it is not followed.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn steering(&self) -> Result<Option<FleetControl>, SettingsError> {
        let StoreSettings::Redis { settings, prefix, follow: true, .. } = self else { return Ok(None) };
        // A prefix that keys cannot begin with was refused when it was read.
        Ok(FleetControl::new(settings)?.with_prefix(prefix).ok())
    }
}

impl std::fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreSettings::Memory { .. } => f.write_str("memory"),
            StoreSettings::Redis { shown, .. } => f.write_str(shown),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreKind {
    Memory,
    Redis,
    Sentinel,
    Cluster,
}

const KINDS: [(&str, StoreKind); 4] = [
    ("memory", StoreKind::Memory),
    ("redis", StoreKind::Redis),
    ("sentinel", StoreKind::Sentinel),
    ("cluster", StoreKind::Cluster),
];

const URLS: &str = "store.redis.urls";
/// Kind and URLs in one.
const REDIS: &str = "redis";

impl ConfigReader<'_> {
    pub(super) fn store(&mut self) -> Option<StoreSettings> {
        let store = self.chosen_store()?;
        let is_set = |name| self.layers.rank(name) > 0;
        let warning = match &store {
            StoreSettings::Redis { .. } if is_set("store.file") => {
                "`store.file` has no effect: the state is in Redis, which keeps it"
            }
            StoreSettings::Memory { file: None, .. } if is_set("store.save_every") => {
                "`store.save_every` has no effect without `store.file`"
            }
            StoreSettings::Redis { .. } | StoreSettings::Memory { .. } => return Some(store),
        };
        self.warnings.push(warning.to_owned());
        Some(store)
    }

    fn chosen_store(&mut self) -> Option<StoreSettings> {
        let keys = self.value("store.keys", count(1_000, 1 << 34));
        let (whole, apart) = (self.layers.rank(REDIS), self.layers.rank("store.kind").max(self.layers.rank(URLS)));
        if whole > 0 && whole >= apart {
            if whole == apart {
                let help = "remove `store.kind` and `store.redis.urls`";
                self.wrong(REDIS, "the store is set twice", help);
                return None;
            }
            let settings = Settings::from_urls(self.texts(REDIS));
            let settings = self.reachable(REDIS, settings)?;
            return self.redis(REDIS, settings);
        }
        match self.value("store.kind", choice(&KINDS))? {
            StoreKind::Memory => {
                let file = self.state_file();
                Some(StoreSettings::Memory { keys: keys?, file: file? })
            }
            kind => {
                let settings = self.servers(kind)?;
                self.redis(URLS, settings)
            }
        }
    }

    /// The file of the state in memory; `Some(None)` if there is none, and `None` on an error.
    fn state_file(&mut self) -> Option<Option<StateFileSettings>> {
        let every = self.value("store.save_every", span(100 * MS, Duration::from_secs(3_600)));
        match self.path("store.file") {
            Some(path) => Some(Some(StateFileSettings { path, every: every? })),
            None => every.map(|_| None),
        }
    }

    /// Redis at the servers that the setting `urls` names.
    fn redis(&mut self, urls: &str, mut settings: Settings) -> Option<StoreSettings> {
        let names = self.value("store.redis.prefix", |value| {
            let wrong = |_| error::InvalidValue::new(format!("`{value}` has a brace in it"), "leave braces out");
            Ok((Names::new(value).map_err(wrong)?, value.to_owned()))
        });
        let follow = self.value("store.redis.follow", flag);
        let leases = self.value("store.redis.leases", flag);
        let tiers_ttl = self.value("store.redis.tiers_ttl", span(MS, Duration::from_secs(86_400)));
        let tiers_keys = self.value("store.redis.tiers_keys", count(1, 100_000_000));
        let tiers_deadline = self.value("store.redis.tiers_deadline", span(MS, Duration::from_secs(60)));
        let deadline = self.value("store.redis.deadline", span(MS, Duration::from_secs(60)));
        let connect_time = self.value("store.redis.connect_time", span(MS, Duration::from_secs(60)));
        self.log_in(&mut settings);
        self.redis_tls(urls, &mut settings);
        settings.deadline = deadline?;
        settings.connect_timeout = connect_time?;
        if let Err(error) = settings.check() {
            self.wrong(urls, &error.to_string(), "");
            return None;
        }
        let shown = self
            .layers
            .get(urls)
            .map(|found| found.values.iter().map(|url| found.setting.shown(url)).collect::<Vec<_>>().join(", "));
        let (names, prefix) = names?;
        let (tiers, tiers_deadline) =
            (TierSettings { ttl: tiers_ttl?.into(), most_keys: tiers_keys? }, tiers_deadline?);
        let (settings, shown) = (Box::new(settings), shown.unwrap_or_default());
        Some(StoreSettings::Redis {
            settings,
            names,
            prefix,
            follow: follow?,
            leases: leases?,
            tiers,
            tiers_deadline,
            shown,
        })
    }

    fn servers(&mut self, kind: StoreKind) -> Option<Settings> {
        let urls = self.texts(URLS);
        let settings = match kind {
            StoreKind::Sentinel => {
                let Some(primary) = self.value("store.redis.primary", text) else {
                    let help = "set `store.redis.primary`";
                    self.wrong("store.kind", "the name of the primary is missing", help);
                    return None;
                };
                Settings::sentinel(&primary, &urls)
            }
            StoreKind::Cluster => Settings::cluster(&urls),
            StoreKind::Memory | StoreKind::Redis => match &urls[..] {
                [url] => Settings::standalone(url),
                [] => Err(SettingsError::NoServer),
                _ => {
                    self.wrong(URLS, "several servers are given", "write one, or `store.kind: cluster`");
                    return None;
                }
            },
        };
        self.reachable(URLS, settings)
    }

    fn reachable(&mut self, urls: &str, settings: Result<Settings, SettingsError>) -> Option<Settings> {
        match settings {
            Ok(settings) => Some(settings),
            Err(error) => {
                self.wrong(urls, &error.to_string(), "write one such as `redis://127.0.0.1:6379`");
                None
            }
        }
    }

    fn log_in(&mut self, settings: &mut Settings) {
        let Login { user, password, database } = settings.login.clone();
        settings.login = Login {
            user: self.value("store.redis.user", text).or(user),
            password: self.value("store.redis.password", text).or(password),
            database,
        };
    }

    fn redis_tls(&mut self, urls: &str, settings: &mut Settings) {
        let authorities = self.file("store.redis.ca");
        let certificate = self.file("store.redis.certificate");
        let key = self.file("store.redis.key");
        if authorities.is_none() && certificate.is_none() && key.is_none() {
            return;
        }
        if settings.tls.is_none() {
            self.wrong(
                urls,
                "certificates are given for a connection without TLS",
                "write `rediss://` instead of `redis://`",
            );
            return;
        }
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => {
                self.wrong("store.redis.certificate", "its private key is missing", "set `store.redis.key`");
                return;
            }
            (None, Some(_)) => {
                self.wrong("store.redis.key", "its certificate is missing", "set `store.redis.certificate`");
                return;
            }
        };
        settings.tls = Some(RedisTls { authorities, identity });
    }

    /// The contents of a file that a setting names.
    fn file(&mut self, name: &str) -> Option<Vec<u8>> {
        let path: PathBuf = self.path(name)?;
        match std::fs::read(&path) {
            Ok(contents) => Some(contents),
            Err(error) => {
                self.wrong(name, &format!("`{}` cannot be read: {error}", path.display()), "");
                None
            }
        }
    }
}
