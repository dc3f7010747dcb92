//! Lists of URLs whose scheme selects the kind of servers: standalone, cluster or sentinels.

use super::server_url::without_login;
use super::{Servers, Settings, SettingsError};

/// The kind of servers that a scheme selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    /// `redis`, `rediss`, `unix` or a scheme of Valkey: one server, or a cluster if there are several.
    Server,
    Cluster,
    Sentinel,
}

/// The schemes, the equivalent scheme of a connection, and the kind of servers.
const SCHEMES: [(&str, &str, Scheme); 13] = [
    ("redis", "redis", Scheme::Server),
    ("rediss", "rediss", Scheme::Server),
    ("valkey", "redis", Scheme::Server),
    ("valkeys", "rediss", Scheme::Server),
    ("unix", "unix", Scheme::Server),
    ("redis+unix", "unix", Scheme::Server),
    ("valkey+unix", "unix", Scheme::Server),
    ("cluster", "redis", Scheme::Cluster),
    ("redis+cluster", "redis", Scheme::Cluster),
    ("rediss+cluster", "rediss", Scheme::Cluster),
    ("sentinel", "redis", Scheme::Sentinel),
    ("redis+sentinel", "redis", Scheme::Sentinel),
    ("rediss+sentinel", "rediss", Scheme::Sentinel),
];

impl Settings {
    /// Settings for servers of the kind that the URLs select:
    ///
    /// - `redis://host`, `rediss://host` (TLS) or `unix:///path`: one server. Several of them are nodes of a cluster.
    /// - `cluster://host,host` or `rediss+cluster://…`: nodes of a cluster.
    /// - `sentinel://host,host/primary` or `rediss+sentinel://…`: sentinels, and the name of the primary that they monitor.
    ///
    /// `valkey://…` and `valkeys://…` are equivalent to `redis://…` and `rediss://…`.
    ///
    /// Further hosts follow a comma and have the scheme, user and password of the first one, or are separate URLs. A comma
    /// in a password is written `%2C`.
    ///
    /// ```
    /// use tidegate_redis::Settings;
    ///
    /// Settings::from_urls(["redis://127.0.0.1:6379"])?;
    /// Settings::from_urls(["cluster://10.0.0.1:6379,10.0.0.2:6379"])?;
    /// Settings::from_urls(["sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster"])?;
    /// # Ok::<(), tidegate_redis::SettingsError>(())
    /// ```
    ///
    /// # Errors
    /// Fails if a URL cannot be parsed, or the URLs differ in scheme, TLS or login.
    pub fn from_urls(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Settings, SettingsError> {
        let given: Vec<String> = urls.into_iter().map(|url| url.as_ref().to_owned()).collect();
        let urls: Vec<String> = given
            .iter()
            .flat_map(|url| url.split(',').map(|part| part.trim().to_owned()))
            .filter(|url| !url.is_empty())
            .collect();
        let first = urls.first().ok_or(SettingsError::NoServer)?;
        // A comma in a password has split the URL, so neither half may be displayed.
        if urls.len() > 1 && urls.iter().any(|url| url.contains('@') && !url.contains("://")) {
            return Err(SettingsError::CommaInLogin);
        }
        let (name, connection, kind) = scheme(first)?;
        // What follows the comma may be the rest of a password as well.
        if urls.len() > 1 && connection == "unix" {
            return Err(SettingsError::UnixSocket);
        }
        let login = first.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@')).map(|(login, _)| login);
        let login = login.map(|login| format!("{login}@")).unwrap_or_default();
        let mut servers = Vec::with_capacity(urls.len());
        for url in &urls {
            match url.split_once("://") {
                Some((other, _)) if other != name => return Err(SettingsError::Differ("their scheme")),
                Some((_, rest)) => servers.push(format!("{connection}://{rest}")),
                None => servers.push(format!("{connection}://{login}{url}")),
            }
        }
        match kind {
            Scheme::Server if servers.len() == 1 => Settings::standalone(first),
            Scheme::Server | Scheme::Cluster => Settings::cluster(&servers),
            Scheme::Sentinel => {
                let primary = primary(&mut servers).ok_or_else(|| SettingsError::Url {
                    url: without_login(first),
                    reason: "the name of the primary is missing: write `sentinel://host:26379/mymaster`".to_owned(),
                })?;
                Settings::sentinel(&primary, &servers)
            }
        }
    }
}

impl Settings {
    /// The kind of server: `redis`, `sentinel` or `cluster`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.servers {
            Servers::Standalone(_) => "redis",
            Servers::Sentinel { .. } => "sentinel",
            Servers::Cluster(_) => "cluster",
        }
    }

    /// The name of the primary that sentinels are asked for; `None` without sentinels.
    #[must_use]
    pub fn primary(&self) -> Option<&str> {
        match &self.servers {
            Servers::Sentinel { primary, .. } => Some(primary),
            Servers::Standalone(_) | Servers::Cluster(_) => None,
        }
    }
}

fn scheme(url: &str) -> Result<(&'static str, &'static str, Scheme), SettingsError> {
    let wrong = |reason: String| Err(SettingsError::Url { url: without_login(url), reason });
    let Some((name, _)) = url.split_once("://") else {
        return wrong(format!("a URL begins with its scheme: write `redis://{}`", without_login(url)));
    };
    match SCHEMES.iter().find(|(known, ..)| *known == name) {
        Some(scheme) => Ok(*scheme),
        None => wrong("its scheme is not redis, rediss, valkey, valkeys, unix, cluster or sentinel".to_owned()),
    }
}

/// Takes the name of the primary from the path of the last URL. Other URLs may repeat it.
fn primary(sentinels: &mut [String]) -> Option<String> {
    let mut primary = None;
    for sentinel in sentinels {
        let hosts = sentinel.rfind('@').or_else(|| sentinel.find("://").map(|scheme| scheme + 2))? + 1;
        if let Some(slash) = sentinel[hosts..].find('/') {
            primary = Some(sentinel[hosts + slash + 1..].to_owned());
            sentinel.truncate(hosts + slash);
        }
    }
    primary.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::{Address, Servers};
    use super::*;

    fn servers(urls: &[&str]) -> Servers {
        Settings::from_urls(urls).unwrap().servers
    }

    #[test]
    fn a_url_says_what_kind_of_servers_it_leads_to() {
        let [a, b] = [Address::tcp("a", 6_379), Address::tcp("b", 7_000)];
        assert_eq!(servers(&["redis://a"]), Servers::Standalone(a.clone()));
        let cluster = Servers::Cluster(vec![a.clone(), b]);
        for urls in [
            &["redis://a", "redis://b:7000"][..],
            &["redis://a,b:7000"],
            &["cluster://a", "b:7000"],
            &["cluster://a, cluster://b:7000"],
            &["redis+cluster://a,b:7000"],
        ] {
            assert_eq!(servers(urls), cluster, "{urls:?}");
        }
        for url in ["valkey://a", "valkeys://a"] {
            assert_eq!(servers(&[url]), Servers::Standalone(a.clone()), "{url}");
        }
        for url in ["redis+unix:///s.sock", "valkey+unix:///s.sock"] {
            assert_eq!(servers(&[url]), Servers::Standalone(Address::unix("/s.sock".into())), "{url}");
        }
        assert_eq!(servers(&["valkey://a,b:7000"]), cluster);
        assert_eq!(servers(&["cluster://a"]), Servers::Cluster(vec![a]));
        let Servers::Sentinel { primary, sentinels, .. } = servers(&["sentinel://a:26379,b:26379/main"]) else {
            panic!("no sentinels")
        };
        assert_eq!((&*primary, sentinels.len()), ("main", 2));
        let several = Settings::from_urls(["cluster://me:tea@a,b:7000"]).unwrap();
        assert_eq!((several.servers, several.login.password.as_deref()), (cluster, Some("tea")));
        assert!(Settings::from_urls(["rediss+sentinel://a/main"]).unwrap().tls.is_some());
        assert!(Settings::from_urls(["rediss+cluster://a,b"]).unwrap().tls.is_some());
        let login = Settings::from_urls(["redis://me:s%40cret@a/3"]).unwrap().login;
        assert_eq!((login.user.as_deref(), login.password.as_deref(), login.database), (Some("me"), Some("s@cret"), 3));
    }

    #[test]
    fn urls_that_make_no_sense_are_refused_with_what_to_write() {
        let refused = |urls: &[&str]| Settings::from_urls(urls).unwrap_err().to_string();
        assert_eq!(
            refused(&["127.0.0.1:6379"]),
            "127.0.0.1:6379: a URL begins with its scheme: write `redis://127.0.0.1:6379`"
        );
        assert!(refused(&["sentinel://a:26379"]).contains("`sentinel://host:26379/mymaster`"));
        assert!(
            refused(&["memcached://me:hunter2@a"])
                .ends_with("redis, rediss, valkey, valkeys, unix, cluster or sentinel")
        );
        for url in [
            "memcached://me:hun@a",
            "redis://me:hun,ter2@cache",
            "redis://me:hun/ter2@cache",
            "sentinel://:hun/ter2@a:26379/main",
            "cluster://me:hun,ter2@a,b",
            "redss://me:hun,ter2@cache",
            "unix:///s.sock?user=me&pass=ter@hun&db=x",
            "unix:///s.sock?user=me&pass=ter,hun",
        ] {
            assert!(!refused(&[url]).contains("hun"), "{url}: {}", refused(&[url]));
        }
        assert_eq!(refused(&["redis://a,rediss://b"]), "the servers' URLs differ in their scheme");
        assert_eq!(refused(&[]), "no server is given");
        assert_eq!(refused(&[","]), "no server is given");
    }
}
