//! Removes headers from a request before rules and upstreams see it.
//!
//! First, the headers that `Connection` names: they apply only to the client's connection, and rules must see what
//! upstreams see. Second, names with an underscore or another special character, which CGI, WSGI and PHP treat as the
//! same names with a dash: an upstream could trust `X_Api_Key` or `X.Api.Key` while `X-Api-Key` was charged. Third,
//! headers that only a trusted proxy may set: a client's identity, its address, and the original request. The gateway
//! writes its own headers afterwards, so nothing that a client sends can remove them.

use http::header::{CONNECTION, CONTENT_LENGTH, FORWARDED, HOST, TE, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::{Settings, head};

/// Headers in which proxies and CDNs state the client or the original request, besides `X-Forwarded-…`. Many upstreams
/// trust some of them: gunicorn takes the beginning of the path from `SCRIPT_NAME`, so that it would serve a path that
/// no rule has seen.
const PROXY_HEADERS: [&str; 17] = [
    "cf-connecting-ip",
    "client-ip",
    "fastly-client-ip",
    "front-end-https",
    "path-info",
    "script-name",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
];
/// Headers that the gateway overwrites; client values are discarded.
const OVERWRITTEN: [&str; 3] = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// Removes headers that rules and upstreams must not see.
#[derive(Debug)]
pub(super) struct HeaderSanitizer {
    /// Configured headers that only trusted proxies may set.
    proxy_only: SmallVec<[HeaderName; 4]>,
    /// Header in which clients send their own API key.
    api_key: Option<HeaderName>,
    /// Whether names with an underscore or another special character are kept.
    underscores: bool,
}

impl HeaderSanitizer {
    pub(super) fn new(settings: &Settings) -> HeaderSanitizer {
        let configured = settings.priority_header.iter().chain(settings.auth_headers.names());
        let api_key = settings.api_key_header.clone();
        // The API key header is kept: clients send it themselves.
        let proxy_only = configured.filter(|name| Some(*name) != api_key.as_ref()).cloned().collect();
        HeaderSanitizer { proxy_only, api_key, underscores: settings.underscores }
    }

    /// Removes headers from a request, depending on whether the sender is a trusted proxy.
    pub(super) fn clean(&self, headers: &mut HeaderMap, is_trusted: bool) {
        if headers.contains_key(CONNECTION) {
            self.remove_named_by_connection(headers);
        }
        let refused: SmallVec<[HeaderName; 4]> =
            headers.keys().filter(|name| self.is_refused(name, is_trusted)).cloned().collect();
        for name in refused {
            headers.remove(name);
        }
    }

    /// Removes the headers that `Connection` names, and reduces `Connection` to `upgrade` if present.
    fn remove_named_by_connection(&self, headers: &mut HeaderMap) {
        if headers.get_all(CONNECTION).iter().all(head::is_about_keeping) {
            return;
        }
        let named: SmallVec<[HeaderName; 4]> = headers.get_all(CONNECTION).iter().flat_map(head::named).collect();
        for name in &named {
            if *name != UPGRADE && !self.is_needed(name) {
                headers.remove(name);
            }
        }
        if named.contains(&UPGRADE) {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        } else {
            headers.remove(CONNECTION);
        }
    }

    /// Whether a header is needed to parse the message, or to identify the client, and must not be removed by
    /// `Connection`.
    fn is_needed(&self, name: &HeaderName) -> bool {
        [HOST, CONTENT_LENGTH, TE, FORWARDED].contains(name)
            || self.api_key.as_ref() == Some(name)
            || self.proxy_only.contains(name)
            || is_proxy_header(name.as_str())
    }

    fn is_refused(&self, name: &HeaderName, is_trusted: bool) -> bool {
        let is_odd = is_odd(name);
        (is_odd && !self.underscores) || (!is_trusted && self.is_forged(name, is_odd))
    }

    fn is_forged(&self, name: &HeaderName, is_odd: bool) -> bool {
        let text = name.as_str();
        if is_odd {
            // CGI and WSGI treat `X_User` as `X-User`, and some servers also `X.User`.
            let alike = text.replace(|char: char| !char.is_ascii_alphanumeric(), "-");
            return self.proxy_only.iter().any(|known| known.as_str() == alike)
                || alike == "forwarded"
                || is_proxy_header(&alike);
        }
        self.proxy_only.contains(name) || (is_proxy_header(text) && !OVERWRITTEN.contains(&text))
    }
}

/// Whether a name contains characters other than letters, digits and dashes.
fn is_odd(name: &HeaderName) -> bool {
    // `HeaderName` is always in lower case.
    name.as_str().bytes().any(|byte| !matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn is_proxy_header(name: &str) -> bool {
    // Fast path: few names start with these letters, and this runs for every header.
    matches!(name.as_bytes().first(), Some(b'x' | b'c' | b'f' | b'p' | b's' | b't'))
        && (name.starts_with("x-forwarded-") || PROXY_HEADERS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AuthHeaders;

    fn sanitizer(api_key: Option<&'static str>) -> HeaderSanitizer {
        HeaderSanitizer { underscores: true, ..without_underscores(api_key) }
    }

    fn without_underscores(api_key: Option<&'static str>) -> HeaderSanitizer {
        let name = |name| Some(HeaderName::from_static(name));
        HeaderSanitizer::new(&Settings {
            priority_header: name("x-priority"),
            api_key_header: api_key.map(HeaderName::from_static),
            auth_headers: AuthHeaders { user: name("x-user"), api_key: name("x-key"), tier: name("x-tier") },
            ..Settings::new(Vec::new())
        })
    }

    /// The remaining headers.
    fn left(sanitizer: &HeaderSanitizer, is_trusted: bool, lines: &[(&str, &str)]) -> Vec<String> {
        let name = |name: &str| name.parse::<HeaderName>().unwrap();
        let mut headers: HeaderMap =
            lines.iter().map(|(key, value)| (name(key), value.parse::<HeaderValue>().unwrap())).collect();
        sanitizer.clean(&mut headers, is_trusted);
        let mut left: Vec<String> = headers.keys().map(ToString::to_string).collect();
        left.sort_unstable();
        left
    }

    const CLAIMS: [(&str, &str); 19] = [
        ("x-user", "admin"),
        ("X_User", "admin"),
        ("X.User", "admin"),
        ("X~Forwarded|For", "192.0.2.1"),
        ("x-tier", "gold"),
        ("x-key", "k"),
        ("x-priority", "critical"),
        ("x-real-ip", "192.0.2.1"),
        ("x_forwarded_for", "192.0.2.1"),
        ("x-forwarded-port", "443"),
        ("true-client-ip", "192.0.2.1"),
        ("x-original-url", "/admin"),
        ("x-rewrite-url", "/admin"),
        ("SCRIPT_NAME", "/x"),
        ("Path_Info", "/admin"),
        ("host", "a"),
        ("x-under_score", "1"),
        ("cookie", "c"),
        ("x-other", "1"),
    ];

    #[test]
    fn headers_of_trusted_proxies_are_removed_from_others() {
        assert_eq!(left(&sanitizer(None), false, &CLAIMS), ["cookie", "host", "x-other", "x-under_score"]);
        assert_eq!(left(&sanitizer(None), true, &CLAIMS).len(), CLAIMS.len());
        // A client's own API key header is kept.
        let own = left(&sanitizer(Some("x-key")), false, &CLAIMS);
        assert_eq!(own, ["cookie", "host", "x-key", "x-other", "x-under_score"]);
    }

    #[test]
    fn a_name_with_an_underscore_stands_for_no_other() {
        let lines = [
            ("x-key", "made-up"),
            ("X_Key", "real"),
            ("X.Key", "real"),
            ("X~Key", "real"),
            ("x_other", "1"),
            ("x-other", "1"),
        ];
        for is_trusted in [false, true] {
            assert_eq!(left(&without_underscores(Some("x-key")), is_trusted, &lines), ["x-key", "x-other"]);
        }
        assert_eq!(left(&sanitizer(Some("x-key")), true, &lines).len(), lines.len());
    }

    #[test]
    fn headers_that_connection_names_are_removed_unless_relied_on() {
        let lines = [
            ("connection", "close, X-Private, x-user, x-forwarded-for, host"),
            ("connection", "Upgrade, X-Priority, forwarded, X-Api"),
            ("upgrade", "websocket"),
            ("x-private", "1"),
            ("x-user", "alice"),
            ("x-api", "k"),
            ("x-priority", "high"),
            ("x-forwarded-for", "192.0.2.1"),
            ("forwarded", "for=192.0.2.1"),
            ("host", "a"),
        ];
        let kept = ["connection", "forwarded", "host", "upgrade", "x-api", "x-forwarded-for", "x-priority", "x-user"];
        assert_eq!(left(&sanitizer(Some("x-api")), true, &lines), kept);
        assert_eq!(left(&sanitizer(None), true, &[("connection", "keep-alive"), ("x-a", "1")]), ["connection", "x-a"]);
        assert_eq!(left(&sanitizer(None), true, &[("connection", "x-a"), ("x-a", "1")]), [""; 0]);
    }
}
