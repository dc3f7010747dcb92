//! The headers that are removed from a request before rules and upstreams see it.
//!
//! First what `Connection` names: it ends with the client's connection, so rules see what upstreams will see. Then names with an
//! underscore or another odd character, which CGI, WSGI and PHP take for the same names with a dash: `X_Api_Key` or `X.Api.Key`
//! would be trusted where `X-Api-Key` was charged. Then what only a trusted proxy can say: who a client is, where it is, and
//! what it asked for. What the gateway says itself is written afterwards, so nothing that a client sends can remove it.

use http::header::{CONNECTION, CONTENT_LENGTH, FORWARDED, HOST, TE, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::{Settings, head};

/// Headers in which proxies and CDNs say whom a request comes from or what it was for, besides `X-Forwarded-…`. Many upstreams
/// believe one or another of them: gunicorn takes the beginning of the path from `SCRIPT_NAME`, so that it serves a path that no
/// rule has seen.
const SAID_BY_PROXIES: [&str; 17] = [
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
/// Of those that the gateway writes itself, what it writes itself replaces what clients say.
const WRITTEN_ANEW: [&str; 3] = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// Removes from requests what is not for rules and upstreams.
#[derive(Debug)]
pub(super) struct IncomingHeaders {
    /// The configured headers that only trusted proxies fill in.
    vouched: SmallVec<[HeaderName; 4]>,
    /// The header in which clients show their own API key.
    api_key: Option<HeaderName>,
    /// Whether names with an underscore or another odd character pass.
    underscores: bool,
}

impl IncomingHeaders {
    pub(super) fn new(settings: &Settings) -> IncomingHeaders {
        let configured = settings.priority_header.iter().chain(settings.auth_headers.names());
        let api_key = settings.api_key_header.clone();
        // What clients say themselves is theirs to say, even if proxies say it in the same place.
        let vouched = configured.filter(|name| Some(*name) != api_key.as_ref()).cloned().collect();
        IncomingHeaders { vouched, api_key, underscores: settings.underscores }
    }

    /// Cleans the headers of a request from a trusted proxy, or from anybody else.
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

    /// Removes what `Connection` names, and leaves of `Connection` what the gateway acts upon.
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

    /// Whether a message cannot be understood without this, or rules or upstreams rely on it to tell who the client is.
    fn is_needed(&self, name: &HeaderName) -> bool {
        [HOST, CONTENT_LENGTH, TE, FORWARDED].contains(name)
            || self.api_key.as_ref() == Some(name)
            || self.vouched.contains(name)
            || is_said_by_proxies(name.as_str())
    }

    fn is_refused(&self, name: &HeaderName, is_trusted: bool) -> bool {
        let is_odd = is_odd(name);
        (is_odd && !self.underscores) || (!is_trusted && self.is_unvouched(name, is_odd))
    }

    fn is_unvouched(&self, name: &HeaderName, is_odd: bool) -> bool {
        let text = name.as_str();
        if is_odd {
            // To CGI and WSGI, `X_User` is `X-User`, and to some of them so is `X.User`.
            let alike = text.replace(|char: char| !char.is_ascii_alphanumeric(), "-");
            return self.vouched.iter().any(|known| known.as_str() == alike)
                || alike == "forwarded"
                || is_said_by_proxies(&alike);
        }
        self.vouched.contains(name) || (is_said_by_proxies(text) && !WRITTEN_ANEW.contains(&text))
    }
}

/// Whether a name has anything but letters, digits and dashes in it.
fn is_odd(name: &HeaderName) -> bool {
    // Names are in lower case.
    name.as_str().bytes().any(|byte| !matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn is_said_by_proxies(name: &str) -> bool {
    // Few begin like these, and this looks at each header of each request.
    matches!(name.as_bytes().first(), Some(b'x' | b'c' | b'f' | b'p' | b's' | b't'))
        && (name.starts_with("x-forwarded-") || SAID_BY_PROXIES.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AuthHeaders;

    fn incoming(api_key: Option<&'static str>) -> IncomingHeaders {
        IncomingHeaders { underscores: true, ..without_underscores(api_key) }
    }

    fn without_underscores(api_key: Option<&'static str>) -> IncomingHeaders {
        let name = |name| Some(HeaderName::from_static(name));
        IncomingHeaders::new(&Settings {
            priority_header: name("x-priority"),
            api_key_header: api_key.map(HeaderName::from_static),
            auth_headers: AuthHeaders { user: name("x-user"), api_key: name("x-key"), tier: name("x-tier") },
            ..Settings::new(Vec::new())
        })
    }

    /// The headers that are left.
    fn left(incoming: &IncomingHeaders, is_trusted: bool, lines: &[(&str, &str)]) -> Vec<String> {
        let name = |name: &str| name.parse::<HeaderName>().unwrap();
        let mut headers: HeaderMap =
            lines.iter().map(|(key, value)| (name(key), value.parse::<HeaderValue>().unwrap())).collect();
        incoming.clean(&mut headers, is_trusted);
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
        assert_eq!(left(&incoming(None), false, &CLAIMS), ["cookie", "host", "x-other", "x-under_score"]);
        assert_eq!(left(&incoming(None), true, &CLAIMS).len(), CLAIMS.len());
        // A client's own key is its own to show.
        let own = left(&incoming(Some("x-key")), false, &CLAIMS);
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
        assert_eq!(left(&incoming(Some("x-key")), true, &lines).len(), lines.len());
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
        assert_eq!(left(&incoming(Some("x-api")), true, &lines), kept);
        assert_eq!(left(&incoming(None), true, &[("connection", "keep-alive"), ("x-a", "1")]), ["connection", "x-a"]);
        assert_eq!(left(&incoming(None), true, &[("connection", "x-a"), ("x-a", "1")]), [""; 0]);
    }
}
