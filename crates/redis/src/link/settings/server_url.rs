//! The URL of one server: address, TLS, user, password and database.

use std::net::IpAddr;

use percent_encoding::percent_decode_str;

use super::SettingsError;
use super::login::Login;
use crate::link::address::Address;

/// The default port of a URL.
const DEFAULT_PORT: u16 = 6_379;

/// A parsed server URL.
#[derive(Debug)]
pub(super) struct ServerUrl {
    pub(super) address: Address,
    pub(super) tls: bool,
    pub(super) login: Login,
}

/// The parts of a URL, still percent-encoded.
struct UrlParts<'a> {
    authority: &'a str,
    path: &'a str,
    query: &'a str,
    fragment: Option<&'a str>,
}

impl<'a> UrlParts<'a> {
    fn split(rest: &'a str) -> UrlParts<'a> {
        let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(rest, fragment)| (rest, Some(fragment)));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        UrlParts { authority, path, query, fragment }
    }
}

impl ServerUrl {
    /// Parses `redis://[user[:password]@]host[:port][/database]`, the same with `rediss` for TLS, or
    /// `unix:///path[?db=…&user=…&pass=…]`. The schemes of Valkey are equivalent.
    pub(super) fn parse(url: &str) -> Result<ServerUrl, SettingsError> {
        let wrong = |reason: String| SettingsError::Url { url: without_login(url), reason };
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(wrong(format!("a URL begins with its scheme: write `redis://{}`", without_login(url))));
        };
        let parts = UrlParts::split(rest);
        match scheme {
            "redis" | "valkey" => tcp(&parts, false),
            "rediss" | "valkeys" => tcp(&parts, true),
            "unix" | "redis+unix" | "valkey+unix" => unix(&parts),
            _ => Err("its scheme is not redis, rediss, valkey, valkeys or unix".to_owned()),
        }
        .map_err(wrong)
    }
}

fn tcp(parts: &UrlParts<'_>, tls: bool) -> Result<ServerUrl, String> {
    match parts.fragment {
        Some("insecure") if tls => {
            return Err("TLS without verification is not supported; set the authorities instead".to_owned());
        }
        Some(_) if tls => return Err("a fragment (`#…`) has no meaning here".to_owned()),
        _ => {}
    }
    let (login, host_and_port) = parts.authority.rsplit_once('@').unwrap_or(("", parts.authority));
    let (user, password) = match login.split_once(':') {
        Some((user, password)) if !password.is_empty() => (user, Some(decoded("the password", password)?)),
        Some((user, _)) => (user, None),
        None => (login, None),
    };
    let user = if user.is_empty() { None } else { Some(decoded("the user", user)?) };
    let database = database(parts.path.trim_matches('/'))?;
    let address = host_address(host_and_port)?;
    Ok(ServerUrl { address, tls, login: Login { user, password, database } })
}

fn host_address(text: &str) -> Result<Address, String> {
    let (host, port) = match text.strip_prefix('[').map(|six| six.split_once(']').ok_or("`]` is missing")) {
        Some(bracketed) => {
            let (host, port) = bracketed?;
            let is_six = matches!(host.parse(), Ok(IpAddr::V6(_)));
            if !is_six || !(port.is_empty() || port.starts_with(':')) {
                return Err("the IPv6 address cannot be read".to_owned());
            }
            (host, port.strip_prefix(':').unwrap_or_default())
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let is_name_byte = |byte: u8| byte.is_ascii_graphic() && !br#"<>[\]^|@"#.contains(&byte) || !byte.is_ascii();
    if host.is_empty() || !host.bytes().all(is_name_byte) {
        return Err("the name of the host is missing or cannot be read".to_owned());
    }
    if host.parse().is_ok_and(|address: IpAddr| address.is_unspecified()) {
        return Err(format!("{host} stands for every address of a machine, and cannot be connected to"));
    }
    let port = match port {
        "" => DEFAULT_PORT,
        port => port.parse().map_err(|_| "the port is not a number from 0 to 65535".to_owned())?,
    };
    Ok(Address::tcp(host, port))
}

fn unix(parts: &UrlParts<'_>) -> Result<ServerUrl, String> {
    if !matches!(parts.authority, "" | "localhost") || parts.path.len() < 2 {
        return Err("the path is missing: write `unix:///path/to/socket`".to_owned());
    }
    let mut login = Login::default();
    for (name, value) in parts.query.split('&').filter_map(|pair| pair.split_once('=')) {
        // As in HTML forms, `+` is a space.
        let value = value.replace('+', " ");
        match name {
            "db" => login.database = database(&value)?,
            "user" => login.user = Some(decoded("the user", &value)?),
            "pass" => login.password = Some(decoded("the password", &value)?),
            _ => {}
        }
    }
    let address = Address::unix(decoded("the path", parts.path)?.into());
    Ok(ServerUrl { address, tls: false, login })
}

fn database(text: &str) -> Result<u32, String> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| "databases are numbered from 0".to_owned())
}

fn decoded(what: &str, text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| format!("{what} is not UTF-8"))?;
    Ok(decoded.into_owned())
}

/// The URL without user and password, for errors and logs.
pub(super) fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    // The login of a Unix socket is in the query. In other URLs, a `?` before an `@` may be part of the password, and neither
    // half may be displayed.
    let is_login_cut = query.contains('@') && !scheme.ends_with("unix");
    let shown = if is_login_cut { "…" } else { rest.rsplit_once('@').map_or(rest, |(_, rest)| rest) };
    if scheme.is_empty() { shown.to_owned() } else { format!("{scheme}://{shown}") }
}

#[cfg(test)]
mod tests {
    use redis::{ConnectionAddr, IntoConnectionInfo};

    use super::*;

    /// The same URL as parsed by the client library: address, TLS, user, password and database.
    fn reference(url: &str) -> Option<ServerUrl> {
        let info = url.into_connection_info().ok()?;
        let (address, tls) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (Address::tcp(host, *port), false),
            ConnectionAddr::TcpTls { host, port, insecure: false, .. } => (Address::tcp(host, *port), true),
            ConnectionAddr::Unix(path) => (Address::unix(path.clone()), false),
            _ => return None,
        };
        let settings = info.redis_settings();
        let database = u32::try_from(settings.db()).ok()?;
        let (user, password) = (settings.username().map(str::to_owned), settings.password().map(str::to_owned));
        Some(ServerUrl { address, tls, login: Login { user, password, database } })
    }

    #[test]
    fn a_login_is_never_shown() {
        for (url, shown) in [
            ("redis://me:p@ss@a:7000/3?x=1", "redis://a:7000/3"),
            ("unix:///s.sock?user=u&pass=se@cret", "unix:///s.sock"),
            ("valkey+unix://localhost/s.sock?pass=se@cret", "valkey+unix://localhost/s.sock"),
            ("unix:///a@b.sock", "unix://b.sock"),
            ("redis://me:p?ss@a", "redis://…"),
            ("redis://a?pass=se@cret", "redis://…"),
            ("me:ss@a", "a"),
        ] {
            assert_eq!(without_login(url), shown, "{url}");
        }
    }

    #[test]
    fn urls_are_read_as_the_client_library_reads_them() {
        let urls = [
            "redis://a",
            "redis://a:",
            "redis://a/",
            "redis://a:7000/3",
            "redis://a:7000/3/",
            "rediss://a.example:6380",
            "valkey://a",
            "valkeys://a",
            "redis://:pw@a",
            "redis://me@a",
            "redis://me:@a",
            "redis://me:s%40cr%3At@a:1/2",
            "redis://me:a:b@a",
            "redis://me:p@ss@a",
            "redis://[::1]:7000",
            "redis://[::1]",
            "redis://127.0.0.1:6379/0?protocol=resp3",
            "unix:///run/redis.sock",
            "unix:///run/a%20b.sock?db=2&user=me&pass=s%40+t",
            "redis+unix:///run/redis.sock",
            "unix://localhost/run/redis.sock",
            // Invalid URLs.
            "redis://",
            "redis:///1",
            "redis://a:99999",
            "redis://a:x",
            "redis://a/x",
            "redis://a/-1",
            "redis://a b",
            "redis://[::1",
            "redis://[a]",
            "redis://[::1]x",
            "redis://0.0.0.0",
            "redis://[::]",
            "redis://me:%ff@a",
            "rediss://a#insecure",
            "rediss://a#other",
            "unix://",
            "unix://run/redis.sock",
            "http://a",
            "memcached://a",
            "a:6379",
        ];
        let facts = |url: ServerUrl| (url.address, url.tls, url.login);
        let read = |url: &&str| (ServerUrl::parse(url).ok().map(facts), reference(url).map(facts));
        let different: Vec<_> =
            urls.iter().map(|url| (url, read(url))).filter(|(_, (ours, theirs))| ours != theirs).collect();
        assert_eq!(different, [], "ours and theirs");
    }
}
