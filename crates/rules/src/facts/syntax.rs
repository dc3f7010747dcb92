//! The syntax of targets, hosts, query parameters, cookies and credentials. Shared by all listeners, so that they agree.

use std::borrow::Cow;

pub use super::parameters::{is_secret_parameter, parameters, replace_values};

/// The target of a request, in its parts.
///
/// ```
/// use tidegate_rules::syntax::RequestTarget;
///
/// let target = RequestTarget::parse("/search?q=tea#results");
/// assert_eq!((target.path, target.query), ("/search", "q=tea"));
/// let target = RequestTarget::parse("http://me@a.example:81");
/// assert_eq!((target.authority, target.path), (Some("a.example:81"), "/"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTarget<'t> {
    /// The host and its port, without user information, if the target is a whole URI.
    pub authority: Option<&'t str>,
    /// The path as sent. Empty if there is none, except in a whole URI, where it is `/`.
    pub path: &'t str,
    /// The query as sent, without its question mark.
    pub query: &'t str,
}

impl RequestTarget<'_> {
    /// Parses the target of a request line: a path, optionally with a query, or a whole URI. A fragment is dropped.
    #[must_use]
    pub fn parse(target: &str) -> RequestTarget<'_> {
        let (authority, rest) = split_authority(target);
        let end = rest.bytes().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(rest.len());
        let (path, behind) = rest.split_at(end);
        let query = behind.strip_prefix('?').unwrap_or_default();
        let query = query.split_once('#').map_or(query, |(query, _)| query);
        let path = if path.is_empty() && authority.is_some() { "/" } else { path };
        RequestTarget { authority, path, query }
    }
}

/// The authority of a target that is a whole URI, without user information, and the rest of the target.
#[must_use]
pub fn split_authority(target: &str) -> (Option<&str>, &str) {
    // The most frequent case.
    if target.starts_with('/') {
        return (None, target);
    }
    let is_of_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    match target.split_once("://") {
        Some((scheme, behind)) if !scheme.is_empty() && scheme.bytes().all(is_of_scheme) => {
            let (authority, rest) = behind.split_at(behind.find(['/', '?', '#']).unwrap_or(behind.len()));
            (Some(authority.rsplit_once('@').map_or(authority, |(_, host)| host)), rest)
        }
        _ => (None, target),
    }
}

/// Removes the port and surrounding spaces from a host. An IPv6 address can have a port only after brackets.
///
/// ```
/// use tidegate_rules::syntax::without_port;
///
/// let hosts = ["api.example:80", "api.example", "[::1]:80", "[::1]", "::1"];
/// assert_eq!(hosts.map(without_port), ["api.example", "api.example", "[::1]", "[::1]", "::1"]);
/// ```
#[must_use]
pub fn without_port(host: &str) -> &str {
    let host = host.trim_ascii();
    // Byte by byte, which is faster than a search for such a short text.
    let Some(colon) = host.bytes().rposition(|byte| byte == b':') else { return host };
    let (name, port) = (&host[..colon], &host[colon + 1..]);
    let is_port = !port.ends_with(']') && (name.ends_with(']') || !name.bytes().any(|byte| byte == b':'));
    if is_port { name } else { host }
}

/// The values of a cookie in a line of `Cookie`, in their order and as they are written. Names are compared in any case,
/// because some upstreams do.
pub fn cookies<'l>(line: &'l [u8], name: &str) -> impl Iterator<Item = Cow<'l, str>> {
    let pairs = line.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let values = pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|&byte| byte == b'=')?;
        let (known, value) = pair.split_at(equals);
        known.trim_ascii_end().eq_ignore_ascii_case(name.as_bytes()).then(|| value[1..].trim_ascii_start())
    });
    values.map(text)
}

/// The credentials after a scheme in a line of `Authorization`, without spaces around them; `None` if the scheme is
/// another. Schemes are case-insensitive, and may be followed by any number of spaces (RFC 9110, 11.4).
#[must_use]
pub fn credentials<'l>(line: &'l [u8], scheme: &str) -> Option<&'l [u8]> {
    let (known, rest) = line.trim_ascii_start().split_at_checked(scheme.len())?;
    let is_it = known.eq_ignore_ascii_case(scheme.as_bytes()) && matches!(rest.first(), None | Some(b' ' | b'\t'));
    is_it.then(|| rest.trim_ascii())
}

/// Like [`String::from_utf8_lossy`], but faster for valid UTF-8, which is the usual case.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_its_parts() {
        let parts = |target| {
            let RequestTarget { authority, path, query } = RequestTarget::parse(target);
            (authority.unwrap_or("-"), path, query)
        };
        assert_eq!(parts("/a?b?c"), ("-", "/a", "b?c"));
        assert_eq!((parts("/a#b?c"), parts("/a?b#c?d")), (("-", "/a", ""), ("-", "/a", "b")));
        assert_eq!(parts("http://me@h:1/a?b"), ("h:1", "/a", "b"));
        assert_eq!((parts("http://h?b"), parts("HTTPS://h")), (("h", "/", "b"), ("h", "/", "")));
        assert_eq!(parts("http://h#b"), ("h", "/", ""));
        assert_eq!(parts("/to?http://h/x"), ("-", "/to", "http://h/x"));
        assert_eq!((parts("/to#://h/x"), parts("//h/x")), (("-", "/to", ""), ("-", "//h/x", "")));
        assert_eq!((parts("a?b=://h"), parts("://h/x")), (("-", "a", "b=://h"), ("-", "://h/x", "")));
        assert_eq!((parts("*"), parts("")), (("-", "*", ""), ("-", "", "")));
    }

    #[test]
    fn a_host_loses_its_port_and_nothing_else() {
        for (host, without) in [
            ("example.com", "example.com"),
            ("example.com:443", "example.com"),
            ("Example.com.:443", "Example.com."),
            ("example.com:", "example.com"),
            ("example.com:x", "example.com"),
            ("bücher.example:80", "bücher.example"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("[2001:db8::1]:443", "[2001:db8::1]"),
            ("[v7.a:b]", "[v7.a:b]"),
            ("2001:db8::1", "2001:db8::1"),
            ("", ""),
            (":", ""),
            (":80", ""),
            ("]", "]"),
            ("[::1]:]", "[::1]:]"),
            (" a : ", "a "),
        ] {
            assert_eq!(without_port(host), without, "{host}");
        }
    }

    #[test]
    fn credentials_follow_their_scheme_in_whatever_spelling() {
        for line in ["Bearer x", "bEARER  x ", "Bearer\tx", " Bearer x"] {
            assert_eq!(credentials(line.as_bytes(), "Bearer"), Some(&b"x"[..]), "{line}");
        }
        assert_eq!(credentials(b"Bearer", "Bearer"), Some(&b""[..]));
        for line in ["Basic x", "Bearerx", "Bear", ""] {
            assert_eq!(credentials(line.as_bytes(), "Bearer"), None, "{line}");
        }
    }

    #[test]
    fn a_cookie_is_found_wherever_it_stands() {
        let all = |line: &'static str, name| cookies(line.as_bytes(), name).collect::<Vec<_>>();
        assert_eq!(all("a=1;  b = two words ;c; a=3;a==x", "a"), ["1", "3", "=x"]);
        assert_eq!(all("a=1;  b = two words ;c", "b"), ["two words"]);
        assert_eq!(all("A=1; c; ab=2", "a"), ["1"]);
        assert_eq!(cookies(b"a=\xff", "a").next().as_deref(), Some("\u{fffd}"));
    }
}
