//! Protection against web pages that use a listener through a visitor's browser.
//!
//! A page of any origin can make a browser send requests to every address that the browser reaches, including
//! `127.0.0.1`. It cannot read the responses, and it can only send what an HTML form could send: anything else needs a
//! preflight, which these listeners refuse. Therefore bodies need the content type `application/json`, which no form
//! can send. DNS rebinding, where the page's own host name resolves to `127.0.0.1`, evades that but keeps the page's
//! host name. Therefore a listener on a loopback address only serves host names of this machine.

use std::net::IpAddr;

use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, Uri};
use tidegate_http::is_plain_host;
use tidegate_rules::syntax::without_port;

/// Host names that requests to a listener may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    is_checked: bool,
    names: Vec<String>,
}

/// A request for a host that the listener does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "This listener does not serve that host. Use `localhost` or a loopback address, or add the host to the setting \
     `hosts` of this listener."
)]
pub(crate) struct Misdirected;

/// A body without a JSON content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("The body must be JSON: send `Content-Type: application/json` (curl: `--json`, or `-H` with that line).")]
pub(crate) struct NotJson;

impl AllowedHosts {
    /// Any host.
    #[must_use]
    pub const fn any() -> AllowedHosts {
        AllowedHosts { is_checked: false, names: Vec::new() }
    }

    /// The hosts of a listener at this address. On a loopback address, or if `names` are given, a request must
    /// be for this machine (`localhost` or a loopback address) or for one of the names.
    #[must_use]
    pub fn of(address: IpAddr, names: Vec<String>) -> AllowedHosts {
        AllowedHosts { is_checked: address.to_canonical().is_loopback() || !names.is_empty(), names }
    }

    /// Checks a request. Requests without a host are accepted, since browsers always send one.
    pub(crate) fn check(&self, target: &Uri, headers: &HeaderMap) -> Result<(), Misdirected> {
        if !self.is_checked {
            return Ok(());
        }
        let mut said = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?"));
        let in_target = target.authority().is_none_or(|authority| self.knows(authority.as_str()));
        if in_target && said.all(|host| self.knows(host)) { Ok(()) } else { Err(Misdirected) }
    }

    fn knows(&self, host: &str) -> bool {
        if !is_plain_host(host.as_bytes()) {
            return false;
        }
        let name = without_port(host);
        let name = name.strip_suffix('.').unwrap_or(name);
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
            || self.names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Requires a JSON content type: `application/json` or a type that ends with `+json`.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), NotJson> {
    let said = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    // Fast path for the usual spelling.
    if said == b"application/json" {
        return Ok(());
    }
    let kind = said.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    let is_json = kind == b"application/json" || (kind.starts_with(b"application/") && kind.ends_with(b"+json"));
    if is_json { Ok(()) } else { Err(NotJson) }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    fn admits(hosts: &AllowedHosts, target: &str, said: &[&str]) -> bool {
        let request = said.iter().fold(Request::get(target), |request, host| request.header(HOST, *host));
        let (head, ()) = request.body(()).unwrap().into_parts();
        hosts.check(&head.uri, &head.headers).is_ok()
    }

    #[test]
    fn a_local_listener_answers_for_this_machine_and_for_names_that_it_is_given() {
        let local = AllowedHosts::of([127, 0, 0, 1].into(), vec!["Limits.internal".to_owned()]);
        for host in ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:8080"] {
            assert!(admits(&local, "/", &[host]), "{host}");
        }
        assert!(admits(&local, "/", &["limits.internal:8080"]) && admits(&local, "/", &[]));
        for host in
            ["evil.example", "localhost.evil.example", "192.0.2.1", "127.0.0.1.evil.example", "", "a@localhost", "é"]
        {
            assert!(!admits(&local, "/", &[host]), "{host}");
        }
        assert!(!admits(&local, "http://evil.example/", &["localhost"]));
        assert!(!admits(&local, "/", &["localhost", "evil.example"]));
        assert!(admits(&local, "http://localhost:80/", &[]));
    }

    #[test]
    fn other_listeners_answer_for_any_host_unless_they_are_given_names() {
        assert!(admits(&AllowedHosts::of([0, 0, 0, 0].into(), Vec::new()), "/", &["any.example"]));
        assert!(admits(&AllowedHosts::any(), "/", &["any.example"]));
        let named = AllowedHosts::of([0, 0, 0, 0].into(), vec!["a.example".to_owned()]);
        assert!(admits(&named, "/", &["a.example"]) && !admits(&named, "/", &["b.example"]));
        assert!(!admits(&AllowedHosts::of("::1".parse().unwrap(), Vec::new()), "/", &["b.example"]));
        assert!(!admits(&AllowedHosts::of("::ffff:127.0.0.1".parse().unwrap(), Vec::new()), "/", &["b.example"]));
    }

    #[test]
    fn json_says_that_it_is_json() {
        let is_json = |kind: &str| {
            let headers = [(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap())].into_iter().collect();
            check_json(&headers).is_ok()
        };
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert!(is_json(kind), "{kind}");
        }
        for kind in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "text/plain+json", "json"]
        {
            assert!(!is_json(kind), "{kind}");
        }
        assert!(check_json(&HeaderMap::new()).is_err());
    }
}
