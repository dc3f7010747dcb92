//! The heads of requests and responses that are forwarded.
//!
//! Fields that are about one connection end with it: those that HTTP knows, and those that `Connection` names. The client's
//! address, protocol and host are rewritten under the same trust rules by which they were read. The rest is forwarded unchanged.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, FORWARDED, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};
use smallvec::SmallVec;
use tidegate_http::{ForwardingHeader, TrustedProxies, is_plain_host};

use super::Settings;
use super::address::{Address, Scheme};
use super::dial::UpstreamProtocol;
use super::downstream::Downstream;

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The host that a request is for: by its target, else by `Host`. `None` if it says nothing, two things, or something
/// that servers read differently.
pub(super) fn host(target: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
    let mut hosts = headers.get_all(HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    if another.is_some() {
        return None;
    }
    if let Some(authority) = target.authority() {
        let text = authority.as_str();
        let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
        return HeaderValue::from_str(host).ok().filter(|host| is_plain_host(host.as_bytes()));
    }
    host.filter(|host| is_plain_host(host.as_bytes())).cloned()
}

/// Whether a value begins or ends with a blank, which makes a request of HTTP/2 malformed (RFC 9113, section 8.2.1). HTTP/1 leaves
/// such blanks out, so that an upstream could read another value than rules do.
pub(super) fn has_blanks_around_a_value(head: &Parts) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_malformed = |value: &HeaderValue| is_blank(value.as_bytes().first()) || is_blank(value.as_bytes().last());
    head.version == Version::HTTP_2 && head.headers.values().any(is_malformed)
}

/// Whether a request says more than once how long it is, or with zeros in front, which some servers take for an octal number.
/// HTTP/1's are found where its bytes pass.
pub(super) fn has_unclear_length(head: &Parts) -> bool {
    if head.version != Version::HTTP_2 {
        return false;
    }
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    let first = lengths.next();
    lengths.next().is_some() || first.is_some_and(|length| has_zeros_in_front(length.as_bytes()))
}

/// Whether a length has more digits than it needs.
pub(super) fn has_zeros_in_front(length: &[u8]) -> bool {
    matches!(length, [b'0', _, ..])
}

/// The fields in a head among those that are looked for here. Most heads have few fields, so that one pass over them costs
/// less than a lookup for each of these.
#[derive(Clone, Copy, Debug, Default)]
struct PresentFields {
    connection: bool,
    /// Another that ends with its connection.
    of_one_connection: bool,
    te: bool,
    expect: bool,
    trailer: bool,
    forwarded: bool,
    http2_settings: bool,
    transfer_encoding: bool,
    content_length: bool,
}

impl PresentFields {
    fn of(headers: &HeaderMap) -> PresentFields {
        let mut has = PresentFields::default();
        for name in headers.keys() {
            match name.as_str() {
                "connection" => has.connection = true,
                "upgrade" | "keep-alive" | "proxy-connection" => has.of_one_connection = true,
                "transfer-encoding" => (has.of_one_connection, has.transfer_encoding) = (true, true),
                "content-length" => has.content_length = true,
                "te" => has.te = true,
                "expect" => has.expect = true,
                "trailer" => has.trailer = true,
                "forwarded" => has.forwarded = true,
                "http2-settings" => has.http2_settings = true,
                _ => {}
            }
        }
        has
    }
}

/// A response that says how long it is in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a response has both a Content-Length and a Transfer-Encoding")]
pub(super) struct ConflictingLengths;

/// Makes the head of a response the one for clients, without fields about one connection. Returns the protocols that the
/// upstream offers to change to.
///
/// # Errors
/// If it can be read in two ways.
pub(super) fn response(headers: &mut HeaderMap) -> Result<Option<HeaderValue>, ConflictingLengths> {
    let has = PresentFields::of(headers);
    if has.transfer_encoding && has.content_length {
        return Err(ConflictingLengths);
    }
    Ok(remove_those_of_one_connection(headers, has))
}

fn remove_those_of_one_connection(headers: &mut HeaderMap, has: PresentFields) -> Option<HeaderValue> {
    let mut upgrade = None;
    if has.connection {
        // Most that say anything say `keep-alive`, which names nothing that would not be removed anyway.
        if !headers.get_all(CONNECTION).iter().all(is_about_keeping) {
            let named: SmallVec<[HeaderName; 4]> = headers.get_all(CONNECTION).iter().flat_map(named).collect();
            if named.contains(&UPGRADE) {
                upgrade = in_one_line(headers, &UPGRADE);
            }
            for name in named {
                // Framing headers stay even if `Connection` names them.
                if ![HOST, CONTENT_LENGTH, TE].contains(&name) {
                    headers.remove(name);
                }
            }
        }
        headers.remove(CONNECTION);
    }
    if has.http2_settings {
        // It is for a connection that is to become HTTP/2, which none does, whether `Connection` names it or not.
        headers.remove(HTTP2_SETTINGS);
    }
    if has.of_one_connection {
        headers.remove(UPGRADE);
        headers.remove(KEEP_ALIVE);
        headers.remove(PROXY_CONNECTION);
        headers.remove(TRANSFER_ENCODING);
    }
    upgrade
}

/// All values of a field that is a list.
fn in_one_line(headers: &HeaderMap, name: &HeaderName) -> Option<HeaderValue> {
    let lines: SmallVec<[&[u8]; 2]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    match lines[..] {
        [] => None,
        [_] => headers.get(name).cloned(),
        _ => HeaderValue::from_bytes(&lines.join(&b", "[..])).ok(),
    }
}

/// Whether a line of `Connection` says only whether the connection is kept.
pub(super) fn is_about_keeping(line: &HeaderValue) -> bool {
    let line = line.as_bytes();
    line.eq_ignore_ascii_case(b"keep-alive") || line.eq_ignore_ascii_case(b"close")
}

/// The names in a line of `Connection`.
pub(super) fn named(line: &HeaderValue) -> impl Iterator<Item = HeaderName> + use<'_> {
    line.as_bytes().split(|&byte| byte == b',').filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Makes the head of a request the one for upstreams, whichever of them it goes to. Returns the protocols that the client offers
/// to change to.
pub(super) fn request(
    head: &mut Parts,
    host: &HeaderValue,
    downstream: &Downstream,
    settings: &Settings,
) -> Option<HeaderValue> {
    let headers = &mut head.headers;
    let has = PresentFields::of(headers);
    let takes_trailers = has.te && headers.get(TE).is_some_and(says_trailers);
    let mut upgrade = remove_those_of_one_connection(headers, has);
    if head.version == Version::HTTP_10 {
        // Which knows no upgrades (RFC 9110, 7.8).
        upgrade = None;
    }
    if has.te {
        headers.remove(TE);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if has.expect {
        // The client is told to go on when its body is wanted.
        headers.remove(EXPECT);
    }
    if has.trailer {
        // Requests' trailers are left out.
        headers.remove(TRAILER);
    }
    forwarded(headers, has, host, downstream, &settings.proxies);
    if settings.via {
        add_via(headers, head.version);
    }
    if head.version == Version::HTTP_2 {
        join_cookies(headers);
    }
    upgrade
}

fn says_trailers(te: &HeaderValue) -> bool {
    te.as_bytes().split(|&byte| byte == b',').any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// Sets the headers that say whom a request comes from and what it was for.
fn forwarded(
    headers: &mut HeaderMap,
    has: PresentFields,
    host: &HeaderValue,
    downstream: &Downstream,
    proxies: &TrustedProxies,
) {
    let is_trusted = downstream.is_trusted;
    match proxies.header() {
        ForwardingHeader::XForwardedFor => {
            if has.forwarded {
                headers.remove(FORWARDED);
            }
            extend(headers, X_FORWARDED_FOR, is_trusted, &downstream.address_text);
        }
        ForwardingHeader::Forwarded => {
            let client = proxies.client(downstream.address, headers);
            let element = element(downstream, host);
            extend(headers, FORWARDED, is_trusted, &element);
            if let Ok(client) = HeaderValue::try_from(client.to_string()) {
                headers.insert(X_FORWARDED_FOR, client);
            }
        }
    }
    let scheme = HeaderValue::from_static(if downstream.is_encrypted { "https" } else { "http" });
    set(headers, X_FORWARDED_PROTO, is_trusted, scheme);
    set(headers, X_FORWARDED_HOST, is_trusted, host.clone());
}

/// Adds to a list that trusted proxies have begun, or starts a new one.
fn extend(headers: &mut HeaderMap, name: HeaderName, is_trusted: bool, item: &HeaderValue) {
    if !is_trusted {
        headers.insert(name, item.clone());
        return;
    }
    let said = headers.get_all(&name).iter().map(|line| line.as_bytes().trim_ascii());
    let mut all = Vec::new();
    for line in said.filter(|line| !line.is_empty()) {
        all.extend_from_slice(line);
        all.extend_from_slice(b", ");
    }
    let list = if all.is_empty() {
        item.clone()
    } else {
        all.extend_from_slice(item.as_bytes());
        HeaderValue::from_maybe_shared(bytes::Bytes::from(all)).unwrap_or_else(|_| item.clone())
    };
    headers.insert(name, list);
}

/// Sets a header, unless a trusted proxy has.
fn set(headers: &mut HeaderMap, name: HeaderName, is_trusted: bool, value: HeaderValue) {
    match headers.entry(name) {
        Entry::Occupied(_) if is_trusted => {}
        Entry::Occupied(mut said) => {
            said.insert(value);
        }
        Entry::Vacant(unsaid) => {
            unsaid.insert(value);
        }
    }
}

/// `for="[2001:db8::1]";host="example.com";proto=https`
fn element(downstream: &Downstream, host: &HeaderValue) -> HeaderValue {
    let sender = match downstream.address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("\"[{address}]\""),
    };
    let proto = if downstream.is_encrypted { "https" } else { "http" };
    let host = host.to_str().unwrap_or_default().replace(['"', '\\'], "");
    let text = format!("for={sender};host=\"{host}\";proto={proto}");
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("for=unknown"))
}

/// HTTP/2 may cut cookies into several lines, of which HTTP/1 knows one.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Adds the gateway to `Via`.
pub(super) fn add_via(headers: &mut HeaderMap, received: Version) {
    let via = match received {
        Version::HTTP_10 => "1.0 tidegate",
        Version::HTTP_2 => "2 tidegate",
        _ => "1.1 tidegate",
    };
    headers.append(VIA, HeaderValue::from_static(via));
}

/// Makes the head of a request one for this address, in the protocol that is spoken there.
pub(super) fn address_to(
    head: &mut Parts,
    host: &HeaderValue,
    to: &Address,
    protocol: UpstreamProtocol,
    keep_host: bool,
) {
    let host = if keep_host { host } else { &to.authority };
    match protocol {
        UpstreamProtocol::Http1 => {
            if head.uri.authority().is_some() {
                head.uri = origin_form(&head.uri);
            }
            head.version = Version::HTTP_11;
            if head.headers.get(HOST) != Some(host) {
                head.headers.insert(HOST, host.clone());
            }
        }
        UpstreamProtocol::Http2 => {
            head.headers.remove(HOST);
            // HTTP/2 knows no upgrades.
            if head.headers.remove(UPGRADE).is_some() {
                head.headers.remove(CONNECTION);
            }
            head.version = Version::HTTP_2;
            let scheme = if to.scheme == Scheme::Https { "https" } else { "http" };
            let path = path_and_query(&head.uri);
            let whole = Uri::builder().scheme(scheme).authority(host.as_bytes()).path_and_query(path).build();
            // A host that cannot stand in a target was refused before.
            if let Ok(uri) = whole {
                head.uri = uri;
            }
        }
    }
}

/// The target as it stands in a request to an origin: the same bytes, without scheme and authority. No path is `/`.
fn origin_form(uri: &Uri) -> Uri {
    path_and_query(uri).into()
}

/// The path and the query of a target. `http://a.example#x` and `http://a.example?x` have no path, which is `/` where a request
/// has to say one.
fn path_and_query(uri: &Uri) -> PathAndQuery {
    let root = || PathAndQuery::from_static("/");
    match uri.path_and_query() {
        Some(said) if said.as_str().starts_with('?') => {
            // A query stays one behind a path.
            PathAndQuery::try_from(format!("/{}", said.as_str())).unwrap_or_else(|_| root())
        }
        // Also said of no path at all, which is not the same when it is written.
        Some(said) if said.as_str() != "/" => said.clone(),
        _ => root(),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let name = |name: &str| name.parse::<HeaderName>().unwrap();
        lines.iter().map(|(key, value)| (name(key), value.parse::<HeaderValue>().unwrap())).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut map = headers(&[
            ("connection", "close, X-Private ,,"),
            ("connection", "upgrade, host, content-length"),
            ("upgrade", "websocket"),
            ("upgrade", "x"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "x"),
            ("host", "a"),
            ("content-length", "3"),
            ("x-public", "2"),
        ]);
        let upgrade = response(&mut map).unwrap();
        assert_eq!(upgrade.as_ref().map(HeaderValue::as_bytes), Some(&b"websocket, x"[..]));
        assert_eq!(names(&map), ["content-length", "host", "x-public"]);
        // Without `Connection: upgrade` nobody asks for it.
        assert_eq!(response(&mut headers(&[("upgrade", "h2c")])), Ok(None));
        let mut chunked = headers(&[("transfer-encoding", "chunked"), ("x-public", "2")]);
        assert_eq!((response(&mut chunked), names(&chunked)), (Ok(None), vec!["x-public"]));
    }

    #[test]
    fn a_response_with_two_lengths_is_refused() {
        let mut both = headers(&[("transfer-encoding", "chunked"), ("content-length", "3")]);
        assert_eq!(response(&mut both), Err(ConflictingLengths));
    }

    #[test]
    fn a_host_is_said_once() {
        let parts = |uri: &str, hosts: &[&str]| {
            let request = Request::get(uri);
            let request = hosts.iter().fold(request, |request, host| request.header(HOST, *host));
            request.body(()).unwrap().into_parts().0
        };
        let host = |uri: &str, hosts: &[&str]| {
            let parts = parts(uri, hosts);
            host(&parts.uri, &parts.headers).map(|host| host.to_str().unwrap().to_owned())
        };
        assert_eq!(host("/", &["a:1"]).as_deref(), Some("a:1"));
        assert_eq!(host("http://me@b:2/x", &["a"]).as_deref(), Some("b:2"));
        assert_eq!((host("/", &[]), host("/", &["a", "a"]), host("http://b/", &["a", "b"])), (None, None, None));
    }

    #[test]
    fn the_target_is_forwarded_to_the_byte() {
        for target in ["/a//b/../%2e/%2F?x=%20&y=a+b", "/", "/?", "/%C3%a9"] {
            let uri: Uri = format!("http://a.example{target}").parse().unwrap();
            assert_eq!(origin_form(&uri).to_string(), target);
            let plain: Uri = target.parse().unwrap();
            assert_eq!(plain.to_string(), target);
        }
        for (target, origin) in [
            ("http://b", "/"),
            ("http://b#x", "/"),
            ("http://b?x", "/?x"),
            ("http://b?", "/?"),
            ("http://b?x#y", "/?x"),
        ] {
            assert_eq!(origin_form(&target.parse().unwrap()).to_string(), origin, "{target}");
        }
    }

    #[test]
    fn lists_are_continued_only_for_those_who_are_trusted() {
        let item = HeaderValue::from_static("192.0.2.9");
        for (is_trusted, list) in [(true, "1.1.1.1, 2.2.2.2, 3.3.3.3, 192.0.2.9"), (false, "192.0.2.9")] {
            let mut map = headers(&[
                ("x-forwarded-for", "1.1.1.1, 2.2.2.2"),
                ("x-forwarded-for", ""),
                ("x-forwarded-for", "3.3.3.3"),
            ]);
            extend(&mut map, X_FORWARDED_FOR, is_trusted, &item);
            assert_eq!(map.get_all(X_FORWARDED_FOR).iter().collect::<Vec<_>>(), [list]);
        }
    }
}
