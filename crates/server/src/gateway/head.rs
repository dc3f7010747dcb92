//! Heads of forwarded requests and responses.
//!
//! Hop-by-hop fields are removed: those defined by HTTP, and those that `Connection` names. The client's address,
//! protocol and host are rewritten under the same trust rules by which they were read. All other fields are forwarded
//! unchanged.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, FORWARDED, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};
use smallvec::SmallVec;
use tidegate_http::{ForwardingHeader, is_plain_host};

use super::Settings;
use super::address::{UpstreamAddress, UpstreamScheme};
use super::dial::UpstreamProtocol;
use super::downstream::Downstream;

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The host of a request: from its target, else from `Host`. `None` if the host is missing, repeated, or
/// interpreted differently by different servers.
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

/// Whether a value has leading or trailing whitespace, which makes an HTTP/2 request malformed (RFC 9113, section
/// 8.2.1). HTTP/1 trims it, so that an upstream could read another value than the rules.
pub(super) fn has_blanks_around_a_value(head: &Parts) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_malformed = |value: &HeaderValue| is_blank(value.as_bytes().first()) || is_blank(value.as_bytes().last());
    head.version == Version::HTTP_2 && head.headers.values().any(is_malformed)
}

/// Whether an HTTP/2 request has several lengths, or one with leading zeros, which some servers parse as octal. For
/// HTTP/1, the framing check detects both.
pub(super) fn has_unclear_length(head: &Parts) -> bool {
    if head.version != Version::HTTP_2 {
        return false;
    }
    let mut lengths = head.headers.get_all(CONTENT_LENGTH).iter();
    let first = lengths.next();
    lengths.next().is_some() || first.is_some_and(|length| has_zeros_in_front(length.as_bytes()))
}

/// Whether a length has leading zeros.
pub(super) fn has_zeros_in_front(length: &[u8]) -> bool {
    matches!(length, [b'0', _, ..])
}

/// Presence of the fields that this module handles. Most heads have few fields, so one pass over them is cheaper than
/// one lookup per name.
#[derive(Clone, Copy, Debug, Default)]
struct PresentFields {
    connection: bool,
    /// Another hop-by-hop field.
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

/// A response with two lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a response has both a Content-Length and a Transfer-Encoding")]
pub(super) struct ConflictingLengths;

/// Rewrites the head of a response for clients, without hop-by-hop fields. Returns the protocols that the upstream
/// offers to upgrade to.
///
/// # Errors
/// If the length is ambiguous.
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
        // Fast path: most lines contain just `keep-alive`, which names no other field.
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
        // An upgrade to HTTP/2 is never forwarded, so its settings are removed even if `Connection` does not name them.
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

/// Joins all values of a list field.
fn in_one_line(headers: &HeaderMap, name: &HeaderName) -> Option<HeaderValue> {
    let lines: SmallVec<[&[u8]; 2]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    match lines[..] {
        [] => None,
        [_] => headers.get(name).cloned(),
        _ => HeaderValue::from_bytes(&lines.join(&b", "[..])).ok(),
    }
}

/// Whether a line of `Connection` is just `keep-alive` or `close`.
pub(super) fn is_about_keeping(line: &HeaderValue) -> bool {
    let line = line.as_bytes();
    line.eq_ignore_ascii_case(b"keep-alive") || line.eq_ignore_ascii_case(b"close")
}

/// The names in a line of `Connection`.
pub(super) fn named(line: &HeaderValue) -> impl Iterator<Item = HeaderName> + use<'_> {
    line.as_bytes().split(|&byte| byte == b',').filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Rewrites the head of a request for upstreams, independently of the address. Returns the protocols that the client
/// offers to upgrade to.
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
        // HTTP/1.0 has no upgrades (RFC 9110, section 7.8).
        upgrade = None;
    }
    if has.te {
        headers.remove(TE);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if has.expect {
        // hyper sends `100 Continue` to the client when the body is read.
        headers.remove(EXPECT);
    }
    if has.trailer {
        // Trailers of requests are not forwarded.
        headers.remove(TRAILER);
    }
    forwarded(headers, has, host, downstream);
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

/// Sets the headers that state the client's address, host and protocol.
fn forwarded(headers: &mut HeaderMap, has: PresentFields, host: &HeaderValue, downstream: &Downstream) {
    let (is_trusted, proxies) = (downstream.is_trusted, downstream.settings.sources.proxies());
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

/// Appends to a list from a trusted proxy, or replaces an untrusted one.
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

/// Sets a header, unless a trusted proxy has set it.
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

/// An element of `Forwarded`: `for="[2001:db8::1]";host="example.com";proto=https`
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

/// Joins cookies: HTTP/2 may split them into several lines, but HTTP/1 has one.
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

/// Rewrites the head of a request for this address, and for the protocol of the connection.
pub(super) fn address_to(
    head: &mut Parts,
    host: &HeaderValue,
    to: &UpstreamAddress,
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
            // HTTP/2 has no upgrades.
            if head.headers.remove(UPGRADE).is_some() {
                head.headers.remove(CONNECTION);
            }
            head.version = Version::HTTP_2;
            let scheme = if to.scheme == UpstreamScheme::Https { "https" } else { "http" };
            let path = path_and_query(&head.uri);
            let whole = Uri::builder().scheme(scheme).authority(host.as_bytes()).path_and_query(path).build();
            // Hosts that are invalid in a target were rejected before.
            if let Ok(uri) = whole {
                head.uri = uri;
            }
        }
    }
}

/// The target in origin form: the same bytes, without scheme and authority. An empty path becomes `/`.
fn origin_form(uri: &Uri) -> Uri {
    path_and_query(uri).into()
}

/// The path and the query of a target. The path of `http://a.example#x` and `http://a.example?x` is empty, and is
/// written as `/`.
fn path_and_query(uri: &Uri) -> PathAndQuery {
    let root = || PathAndQuery::from_static("/");
    match uri.path_and_query() {
        Some(said) if said.as_str().starts_with('?') => {
            // A query needs a path in front of it.
            PathAndQuery::try_from(format!("/{}", said.as_str())).unwrap_or_else(|_| root())
        }
        // `/` also stands for an absent path, which must be written as `/`.
        Some(said) if said.as_str() != "/" => said.clone(),
        _ => root(),
    }
}

#[cfg(test)]
mod tests;
