//! Settings of the store.

use std::path::PathBuf;
use std::time::Duration;

use tidegate_core::{MemoryStore, SystemClock};
use tidegate_redis::fleet::FleetControl;
use tidegate_redis::link::Login;
use tidegate_redis::link::Tls as RedisTls;
use tidegate_redis::{Names, RedisStore, Settings, SettingsError};
use tidegate_rules::TierSettings;

use super::layers::Layers;
use super::values::{choice, count, flag, span, text};
use super::{ConfigReader, MS, error};
use crate::state_file::StateFileSettings;
use crate::store::AnyStore;

/// Store of the state.
#[derive(Clone, Debug)]
pub enum StoreSettings {
    /// In memory, with a maximum number of keys.
    Memory {
        /// Maximum number of keys.
        keys: usize,
        /// File in which the state survives restarts.
        file: Option<StateFileSettings>,
    },
    /// In Redis.
    Redis {
        /// Connection settings.
        settings: Box<Settings>,
        /// Hashing of names into keys.
        names: Names,
        /// Prefix of all keys.
        prefix: String,
        /// Whether published rules and modes are followed.
        follow: bool,
        /// Whether busy keys are leased.
        leases: bool,
        /// Limits of the tier cache.
        tiers: TierSettings,
        /// Maximum time that a request waits for its tier.
        tiers_deadline: Duration,
        /// Servers, without passwords.
        shown: String,
    },
}

impl StoreSettings {
    /// Opens the store. Redis is connected in the background. A store in memory starts empty.
    ///
    /// # Errors
    /// If the settings are invalid, or there is no Tokio runtime.
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
    /// The tiers of API keys in Redis, and the maximum time that a request waits for one; `None` for state in memory.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn tiers(&self) -> Result<Option<(FleetControl, TierSettings, Duration)>, SettingsError> {
        let StoreSettings::Redis { settings, prefix, tiers, tiers_deadline, .. } = self else { return Ok(None) };
        let control = FleetControl::new(settings)?.with_prefix(prefix).ok();
        Ok(control.map(|control| (control, *tiers, *tiers_deadline)))
    }

    /// Maximum number of keys of a store in memory; `None` for Redis.
    #[must_use]
    pub const fn keys_in_memory(&self) -> Option<usize> {
        match self {
            StoreSettings::Memory { keys, .. } => Some(*keys),
            StoreSettings::Redis { .. } => None,
        }
    }

    /// Access to the region's record; `None` for state in memory, which has none.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn region(&self) -> Result<Option<FleetControl>, SettingsError> {
        let StoreSettings::Redis { settings, prefix, .. } = self else { return Ok(None) };
        Ok(FleetControl::new(settings)?.with_prefix(prefix).ok())
    }

    /// Access to the rules and modes published for the fleet; `None` if they are not followed.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn fleet_control(&self) -> Result<Option<FleetControl>, SettingsError> {
        let StoreSettings::Redis { settings, prefix, follow: true, .. } = self else { return Ok(None) };
        // Invalid prefixes were rejected when the settings were parsed.
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

const KIND: &str = "store.kind";
const URLS: &str = "store.redis.urls";
const PRIMARY: &str = "store.redis.primary";
/// Kind and URLs in one.
const REDIS: &str = "redis";

/// Whether `redis` says what the store is, and not `store.kind` and `store.redis.urls`.
fn is_shorthand_in_force(layers: &Layers) -> bool {
    let whole = layers.rank(REDIS);
    whole > 0 && whole >= rank_apart(layers)
}

fn rank_apart(layers: &Layers) -> u8 {
    layers.rank(KIND).max(layers.rank(URLS))
}

/// The settings that `redis` sets.
#[derive(Default)]
pub(super) struct SetByShorthand {
    /// Their names, and their values as they may be shown.
    pub(super) settings: Vec<(&'static str, Vec<String>)>,
    /// The origin of `redis`.
    pub(super) from: String,
}

/// The settings that `redis` sets; `None` if it sets none.
pub(super) fn set_by_shorthand(layers: &Layers) -> Option<SetByShorthand> {
    // One layer with both is an error.
    let found = layers.get(REDIS).filter(|_| layers.rank(REDIS) > rank_apart(layers))?;
    let settings = Settings::from_urls(&found.values).ok()?;
    let urls = found.values.iter().map(|url| found.setting.shown(url)).collect();
    let mut set = vec![(KIND, vec![settings.kind().to_owned()]), (URLS, urls)];
    set.extend(settings.primary().map(|primary| (PRIMARY, vec![primary.to_owned()])));
    Some(SetByShorthand { settings: set, from: layers.from(found) })
}

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
        if is_shorthand_in_force(self.layers) {
            if self.layers.rank(REDIS) == rank_apart(self.layers) {
                let help = "remove `store.kind` and `store.redis.urls`";
                self.wrong(REDIS, "the store is set twice", help);
                return None;
            }
            let settings = Settings::from_urls(self.texts(REDIS));
            let settings = self.valid(REDIS, settings)?;
            return self.redis(REDIS, settings);
        }
        match self.value(KIND, choice(&KINDS))? {
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

    /// File of the state in memory; `Some(None)` if it is not set, and `None` on an error.
    fn state_file(&mut self) -> Option<Option<StateFileSettings>> {
        let every = self.value("store.save_every", span(100 * MS, Duration::from_secs(3_600)));
        match self.path("store.file") {
            Some(path) => Some(Some(StateFileSettings { path, every: every? })),
            None => every.map(|_| None),
        }
    }

    /// A store in Redis, on the servers in the setting `urls`.
    fn redis(&mut self, urls: &str, mut settings: Settings) -> Option<StoreSettings> {
        let names = self.value("store.redis.prefix", |value| {
            let wrong = |_| error::InvalidValue::new(format!("`{value}` contains a brace"), "leave braces out");
            Ok((Names::new(value).map_err(wrong)?, value.to_owned()))
        });
        let follow = self.value("store.redis.follow", flag);
        let leases = self.value("store.redis.leases", flag);
        let tiers_ttl = self.value("store.redis.tiers_ttl", span(MS, Duration::from_secs(86_400)));
        let tiers_keys = self.value("store.redis.tiers_keys", count(1, 100_000_000));
        let tiers_deadline = self.value("store.redis.tiers_deadline", span(MS, Duration::from_secs(60)));
        let deadline = self.value("store.redis.deadline", span(MS, Duration::from_secs(60)));
        let connect_time = self.value("store.redis.connect_time", span(MS, Duration::from_secs(60)));
        self.set_login(&mut settings);
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
                let Some(primary) = self.value(PRIMARY, text) else {
                    let help = "set `store.redis.primary`";
                    self.wrong(KIND, "the name of the primary is missing", help);
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
        self.valid(URLS, settings)
    }

    /// Settings of servers; records an error in the setting `urls` if they are invalid.
    fn valid(&mut self, urls: &str, settings: Result<Settings, SettingsError>) -> Option<Settings> {
        match settings {
            Ok(settings) => Some(settings),
            Err(error) => {
                self.wrong(urls, &error.to_string(), "write one such as `redis://127.0.0.1:6379`");
                None
            }
        }
    }

    fn set_login(&mut self, settings: &mut Settings) {
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

    /// Contents of the file that a setting refers to.
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
