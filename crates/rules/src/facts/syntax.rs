//! The syntax of targets, hosts, query parameters, cookies and credentials. Every listener reads them here, and so alike.

use std::borrow::Cow;

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
    /// The host and its port without user information, if the target is a whole URI.
    pub authority: Option<&'t str>,
    /// The path as it is written. Empty if there is none, except in a whole URI, where it is `/`.
    pub path: &'t str,
    /// The query as it is written, without its question mark.
    pub query: &'t str,
}

impl RequestTarget<'_> {
    /// Reads a target as it stands in a request line: a path, perhaps with a query, or a whole URI. A fragment is dropped.
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
    // As nearly all begin.
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

/// A host without its port and the blanks around it. An IPv6 address has a port only behind brackets.
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
    // Byte by byte, which for so short a text is quicker than a search.
    let Some(colon) = host.bytes().rposition(|byte| byte == b':') else { return host };
    let (name, port) = (&host[..colon], &host[colon + 1..]);
    let is_port = !port.ends_with(']') && (name.ends_with(']') || !name.bytes().any(|byte| byte == b':'));
    if is_port { name } else { host }
}

/// The values of a parameter in a query, in their order. Names and values are decoded (`%61`, `+`).
///
/// A parameter counts if any usual upstream takes its name for this one: in another case, with blanks around it, with an index
/// (`name[]`) or a NUL behind it, and with a blank, a dot or a bracket for an underscore, as PHP does. Some upstreams separate
/// parameters by `;` too: values that only they read follow those that all read.
pub fn parameters<'q>(query: &'q str, name: &str) -> impl Iterator<Item = Cow<'q, str>> {
    let all = form_urlencoded::parse(query.as_bytes()).filter(move |(known, _)| is_parameter(known, name));
    let others = if query.contains(';') { between_semicolons(query, name) } else { Vec::new() };
    all.map(|(_, value)| value).chain(others)
}

/// The values of a parameter that only upstreams which separate by `;` read.
#[cold]
fn between_semicolons<'q>(query: &'q str, name: &str) -> Vec<Cow<'q, str>> {
    let values = |part: &'q str| form_urlencoded::parse(part.as_bytes()).filter(|(known, _)| is_parameter(known, name));
    let known: Vec<Cow<'q, str>> = values(query).map(|(_, value)| value).collect();
    let parts = query.split(';').flat_map(|part| values(part).map(|(_, value)| value));
    parts.filter(|value| !known.contains(value)).collect()
}

/// Whether a parameter of a query that is called `known` counts as the one called `name`.
pub(super) fn is_parameter(known: &str, name: &str) -> bool {
    let is_odd = |byte: u8| byte <= b' ' || matches!(byte, b'.' | b'[' | 0x7f);
    known.eq_ignore_ascii_case(name) || (known.bytes().any(is_odd) && is_alike(known, name))
}

/// Whether some upstream takes one name of a parameter for the other.
#[cold]
fn is_alike(known: &str, name: &str) -> bool {
    let before_nul = known.split('\0').next().unwrap_or_default();
    let without_controls: String = known.chars().filter(|char| !char.is_control()).collect();
    [before_nul, &without_controls].into_iter().any(|known| {
        let known = without_index(known.trim());
        known.eq_ignore_ascii_case(name) || known.replace([' ', '.', '['], "_").eq_ignore_ascii_case(name)
    })
}

/// A name without `[]` or `[0]` at its end.
fn without_index(name: &str) -> &str {
    let open = name.strip_suffix(']').map(|name| name.trim_end_matches(|char: char| char.is_ascii_digit()));
    open.and_then(|name| name.strip_suffix('[')).unwrap_or(name)
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

/// The credentials behind a scheme in a line of `Authorization`, without blanks around them; `None` if the scheme is another. A
/// scheme has no case, and any number of blanks may follow it (RFC 9110, 11.4).
#[must_use]
pub fn credentials<'l>(line: &'l [u8], scheme: &str) -> Option<&'l [u8]> {
    let (known, rest) = line.trim_ascii_start().split_at_checked(scheme.len())?;
    let is_it = known.eq_ignore_ascii_case(scheme.as_bytes()) && matches!(rest.first(), None | Some(b' ' | b'\t'));
    is_it.then(|| rest.trim_ascii())
}

/// As [`String::from_utf8_lossy`], and faster for what is UTF-8, as nearly all is.
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
    fn a_parameter_is_found_in_every_spelling() {
        let all = |query, name| parameters(query, name).collect::<Vec<_>>();
        assert_eq!(all("k=1&%6B=2&K=3&k&kk=4&x=k", "k"), ["1", "2", "3", ""]);
        assert_eq!(all("a+b=1&a%20b=x+y", "a b"), ["1", "x y"]);
        assert_eq!(all("", "k"), [""; 0]);
        assert_eq!(
            all("+k=1&%09k=2&k%00x=3&k%00=4&%00k=5&k[]=6&k[0]=7&k+=8", "k"),
            ["1", "2", "3", "4", "5", "6", "7", "8"]
        );
        assert_eq!(
            all("api.key=1&api+key=2&api[key=3&api_key=4&apikey=5&api%2Ekey=6", "api_key"),
            ["1", "2", "3", "4", "6"]
        );
        assert_eq!(all("filter[a]=1&filter[b]=2&filter=3", "filter[a]"), ["1"]);
        assert_eq!(all("filter[a]=1&filter=3", "filter"), ["3"]);
    }

    #[test]
    fn a_parameter_is_found_behind_a_semicolon_too() {
        let all = |query, name| parameters(query, name).collect::<Vec<_>>();
        assert_eq!(all("x=1;k=2", "k"), ["2"]);
        assert_eq!(all("k=1&x=1;k=2", "k"), ["1", "2"]);
        assert_eq!(all("k=1;x=1", "k"), ["1;x=1", "1"]);
        assert_eq!(all("x=a;b&k=1", "k"), ["1"]);
        assert_eq!(all("x=a;b&k=1&k=1", "k"), ["1", "1"]);
        assert_eq!(all("x=a%3Bk=2", "k"), [""; 0]);
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
