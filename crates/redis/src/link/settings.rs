//! Settings of a link.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::address::Address;
use super::breaker::BreakerSettings;
use super::dialer::Dialer;
use super::settings_error::SettingsError;
use super::tls::Tls;

mod login;
mod server_url;
mod url_list;

pub use self::login::Login;
use self::server_url::ServerUrl;

/// Servers, login, TLS, timeouts and bounds of a link.
///
/// Created by [`Settings::from_urls`], [`Settings::standalone`], [`Settings::sentinel`] or [`Settings::cluster`]; all
/// fields have defaults. URLs are `redis://[user[:password]@]host[:port][/database]`, `rediss://…` for TLS, or
/// `unix:///path/to/socket`.
///
/// A user with few permissions needs `+evalsha +script|load +ping +client|setname`; also `+role` behind Sentinel, or
/// `+cluster|slots +cluster|info +asking` in a cluster; and the permissions for what the script does to the keys.
/// `+info` is optional: with it, a reconnection to the same server is recognised.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(super) servers: Servers,
    /// User, password and database.
    pub login: Login,
    /// Certificates. `None` disables TLS, and is the default for `redis://` URLs.
    pub tls: Option<Tls>,
    /// The default deadline of calls, and the timeout of probes. 20 milliseconds by default.
    pub deadline: Duration,
    /// The timeout of connecting, including login. If the server does not answer, the connection is closed this long after
    /// the last deadline. 250 milliseconds by default.
    pub connect_timeout: Duration,
    /// The idle time after which a connection is probed. One second by default.
    pub heartbeat: Duration,
    /// Maximum number of queued calls for each server. 8 192 by default.
    pub queue: usize,
    /// Maximum number of bytes of an answer in addition to four times those of its call. If a server sends more, the
    /// connection is closed. 1 kB by default; Tidegate's own script needs less.
    pub answer_bytes: usize,
    /// Bounds on batches.
    pub batch: BatchSettings,
    /// The circuit breaker.
    pub breaker: BreakerSettings,
    /// Opens streams in place of sockets. `None` by default.
    pub dialer: Option<Dialer>,
}

/// The servers, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Servers {
    Standalone(Address),
    Sentinel { primary: Arc<str>, sentinels: Vec<Address>, login: Login },
    Cluster(Vec<Address>),
}

/// Bounds on batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSettings {
    /// Maximum number of calls in a batch. 128 by default.
    pub calls: usize,
    /// The size in bytes from which a batch takes no further call. 256 kB by default.
    pub bytes: usize,
    /// Maximum number of batches in flight. Two by default: the server processes one while the other is on the network.
    pub in_flight: usize,
}

impl Default for BatchSettings {
    fn default() -> BatchSettings {
        BatchSettings { calls: 128, bytes: 256 * 1024, in_flight: 2 }
    }
}

impl Settings {
    /// Settings for one server.
    ///
    /// # Errors
    /// Fails if the URL cannot be parsed.
    pub fn standalone(url: &str) -> Result<Settings, SettingsError> {
        let ServerUrl { address, tls, login } = ServerUrl::parse(url)?;
        Ok(Settings::new(Servers::Standalone(address), login, tls))
    }

    /// Settings for a primary behind sentinels, by its name. The URLs are those of the sentinels, with their user and
    /// password if they require any. If they use TLS, the servers do too. The user on the servers is set in `login`.
    ///
    /// # Errors
    /// Fails if a URL cannot be parsed, or the URLs differ in TLS or login.
    pub fn sentinel(
        primary: &str,
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Settings, SettingsError> {
        if primary.is_empty() {
            return Err(SettingsError::NoPrimary);
        }
        let (sentinels, login, tls) = several(sentinels)?;
        let servers = Servers::Sentinel { primary: primary.into(), sentinels, login };
        Ok(Settings::new(servers, Login::default(), tls))
    }

    /// Settings for a cluster, by some of its nodes; the remaining nodes are discovered.
    ///
    /// # Errors
    /// Fails if a URL cannot be parsed, or the URLs differ in TLS or login.
    pub fn cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Settings, SettingsError> {
        let (nodes, login, tls) = several(nodes)?;
        Ok(Settings::new(Servers::Cluster(nodes), login, tls))
    }

    fn new(servers: Servers, login: Login, tls: bool) -> Settings {
        Settings {
            servers,
            login,
            tls: tls.then(Tls::default),
            deadline: Duration::from_millis(20),
            connect_timeout: Duration::from_millis(250),
            heartbeat: Duration::from_secs(1),
            queue: 8_192,
            answer_bytes: 1_024,
            batch: BatchSettings::default(),
            breaker: BreakerSettings::default(),
            dialer: None,
        }
    }

    /// Validates the settings.
    ///
    /// # Errors
    /// Returns the first invalid setting.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.client_config()?;
        if matches!(self.servers, Servers::Cluster(_)) && self.login.database != 0 {
            return Err(SettingsError::DatabaseInCluster);
        }
        if self.login.user.is_some() && self.login.password.is_none() {
            return Err(SettingsError::NoPassword);
        }
        let (ms, minute) = (Duration::from_millis(1), Duration::from_secs(60));
        time("the deadline", self.deadline, ms, minute)?;
        time("the time to connect", self.connect_timeout, ms, minute)?;
        time("the heartbeat", self.heartbeat, ms, 60 * minute)?;
        time("the breaker's first wait", self.breaker.first_wait, ms, minute)?;
        time("the breaker's longest wait", self.breaker.longest_wait, self.breaker.first_wait, minute)?;
        count("the breaker's failures", self.breaker.failures as usize, 1_000_000)?;
        count("the queue", self.queue, 10_000_000)?;
        count("the bytes of an answer", self.answer_bytes, 64 * 1024 * 1024)?;
        count("the calls of a batch", self.batch.calls, 4_096)?;
        count("the bytes of a batch", self.batch.bytes, 64 * 1024 * 1024)?;
        count("the batches in flight", self.batch.in_flight, 64)
    }

    pub(super) fn client_config(&self) -> Result<Option<Arc<ClientConfig>>, SettingsError> {
        let unix = matches!(&self.servers, Servers::Standalone(Address::Unix(_)));
        match &self.tls {
            None => Ok(None),
            Some(_) if unix => Err(SettingsError::TlsOnUnixSocket),
            Some(tls) => tls.client_config().map(|config| Some(Arc::new(config))),
        }
    }
}

fn time(what: &'static str, value: Duration, least: Duration, most: Duration) -> Result<(), SettingsError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let (value, least, most) = (format!("{value:?}"), format!("{least:?}"), format!("{most:?}"));
    Err(SettingsError::OutOfRange { what, value, least, most })
}

fn count(what: &'static str, value: usize, most: usize) -> Result<(), SettingsError> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    let (value, least, most) = (value.to_string(), "1".to_owned(), most.to_string());
    Err(SettingsError::OutOfRange { what, value, least, most })
}

fn several(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<(Vec<Address>, Login, bool), SettingsError> {
    let servers: Vec<ServerUrl> =
        urls.into_iter().map(|url| ServerUrl::parse(url.as_ref())).collect::<Result<_, _>>()?;
    let first = servers.first().ok_or(SettingsError::NoServer)?;
    let (tls, login) = (first.tls, first.login.clone());
    if servers.iter().any(|server| server.tls != tls) {
        return Err(SettingsError::Differ("whether to use TLS"));
    }
    if servers.iter().any(|server| server.login != login) {
        return Err(SettingsError::Differ("user, password or database"));
    }
    if servers.iter().any(|server| matches!(server.address, Address::Unix(_))) {
        return Err(SettingsError::UnixSocket);
    }
    Ok((servers.into_iter().map(|server| server.address).collect(), login, tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_as_whom() {
        let settings = Settings::standalone("redis://limits:s%40crt@cache.example:6380/3").unwrap();
        assert_eq!(settings.servers, Servers::Standalone(Address::tcp("cache.example", 6_380)));
        let login = Login { user: Some("limits".into()), password: Some("s@crt".into()), database: 3 };
        assert_eq!((settings.login, settings.tls), (login, None));
        assert_eq!(Settings::standalone("rediss://a").unwrap().tls, Some(Tls::default()));
        let unix = Settings::standalone("unix:///run/redis.sock").unwrap();
        assert_eq!(unix.servers, Servers::Standalone(Address::unix("/run/redis.sock".into())));
    }

    #[test]
    fn the_defaults_make_sense() {
        assert_eq!(Settings::standalone("redis://a").unwrap().check(), Ok(()));
        assert_eq!(Settings::sentinel("limits", ["redis://a:26379", "redis://b:26379"]).unwrap().check(), Ok(()));
        assert_eq!(Settings::cluster(["rediss://a", "rediss://b"]).unwrap().check(), Ok(()));
    }

    #[test]
    fn a_password_is_never_shown() {
        let settings = Settings::standalone("redis://me:hunter2@a").unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
        let error = Settings::standalone("redis://me:hunter2@a/x").unwrap_err();
        assert!(error.to_string().starts_with("redis://a/x: "), "{error}");
        let error = Settings::standalone("memcached://me:hunter2@a").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn urls_that_make_no_sense_are_refused() {
        for url in ["", "a:6379", "http://a", "redis://", "redis://a:99999", "redis://a/-1", "rediss://a/#insecure"] {
            assert!(matches!(Settings::standalone(url), Err(SettingsError::Url { .. })), "{url}");
        }
        assert_eq!(Settings::cluster(Vec::<String>::new()).unwrap_err(), SettingsError::NoServer);
        assert_eq!(Settings::sentinel("", ["redis://a"]).unwrap_err(), SettingsError::NoPrimary);
        let differ = Settings::cluster(["redis://a", "rediss://b"]).unwrap_err();
        assert_eq!(differ, SettingsError::Differ("whether to use TLS"));
        assert!(matches!(Settings::cluster(["redis://a", "redis://x:y@b"]), Err(SettingsError::Differ(_))));
        assert_eq!(Settings::cluster(["unix:///a"]).unwrap_err(), SettingsError::UnixSocket);
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = Settings::cluster(["redis://a"]).unwrap();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert_eq!(refused(|s| s.login.database = 1), "a cluster has only database 0");
        assert_eq!(refused(|s| s.login.user = Some("a".into())), "a user is given, but no password");
        assert_eq!(refused(|s| s.deadline = Duration::ZERO), "the deadline is 0ns, but must be from 1ms to 60s");
        assert_eq!(refused(|s| s.queue = 0), "the queue is 0, but must be from 1 to 10000000");
        assert!(refused(|s| s.batch.calls = 0).contains("batch"));
        assert!(refused(|s| s.batch.in_flight = 65).contains("in flight"));
        assert!(refused(|s| s.breaker.longest_wait = Duration::from_millis(5)).contains("longest wait"));
    }

    #[test]
    fn there_is_no_tls_on_a_unix_socket() {
        let mut settings = Settings::standalone("unix:///run/redis.sock").unwrap();
        settings.tls = Some(Tls::default());
        assert_eq!(settings.check(), Err(SettingsError::TlsOnUnixSocket));
    }
}
