//! Parsing of `X-Forwarded-For` and `Forwarded` (RFC 7239).

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use smallvec::SmallVec;

/// The address of an item, in canonical form. `None` if the item is not an address.
///
/// A port and the zone of a link-local address are ignored. IPv6 may be in brackets.
pub(crate) fn address(item: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(item.trim_ascii()).ok()?;
    if let Some(bracketed) = text.strip_prefix('[') {
        let (inside, after) = bracketed.split_once(']')?;
        let is_port = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return ipv6(inside).filter(|_| is_port).map(|address| address.to_canonical());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    match text.split_once(':') {
        Some((before, port)) if is_port(port) => before.parse().ok().map(IpAddr::V4),
        _ => ipv6(text).map(|address| address.to_canonical()),
    }
}

fn ipv6(text: &str) -> Option<Ipv6Addr> {
    text.split_once('%').map_or(text, |(address, _zone)| address).parse().ok()
}

/// Whether the text is a port, or an obfuscated one such as `_p1`.
fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= 5 || text.starts_with('_')
}

/// The elements of a line of `Forwarded`, separated by unquoted commas.
///
/// An unclosed quotation ends with its line, so it cannot swallow the lines of other proxies.
pub(crate) fn elements(line: &[u8]) -> SmallVec<[&[u8]; 4]> {
    split(line, b',').filter(is_nonempty).collect()
}

/// The items of a line of `X-Forwarded-For`, from the right.
pub(crate) fn items_from_right(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.rsplit(|&byte| byte == b',').filter(is_nonempty)
}

/// Lists may have empty members, and elements empty pairs, which are skipped.
fn is_nonempty(member: &&[u8]) -> bool {
    !member.trim_ascii().is_empty()
}

/// The `for` address of an element. `None` if there is none, or the element is malformed.
pub(crate) fn sender(element: &[u8]) -> Option<IpAddr> {
    let mut sender = None;
    for pair in split(element, b';').filter(is_nonempty) {
        let equals = pair.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (pair[..equals].trim_ascii(), &pair[equals + 1..]);
        let value = unquoted(value.trim_ascii())?;
        // A quotation that begins in a name was left open by a client, and may enclose the element of a proxy.
        if name.contains(&b'"') || name.eq_ignore_ascii_case(b"for") && sender.replace(value).is_some() {
            return None;
        }
    }
    address(&sender?)
}

/// The pieces of a text between separators that are not quoted.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let (mut quoted, mut escaped) = (false, false);
        let end = text.iter().position(|&byte| {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ if byte == separator && !quoted => return true,
                _ => {}
            }
            false
        });
        rest = end.map(|end| &text[end + 1..]);
        Some(&text[..end.unwrap_or(text.len())])
    })
}

/// A value without its quotes. `None` if they do not match.
fn unquoted(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(inside) = value.strip_prefix(b"\"") else {
        return (!value.contains(&b'"')).then_some(Cow::Borrowed(value));
    };
    if let Some(plain) = inside.strip_suffix(b"\"").filter(|plain| !plain.iter().any(|byte| b"\"\\".contains(byte))) {
        return Some(Cow::Borrowed(plain));
    }
    let mut text = Vec::new();
    let mut bytes = inside.iter();
    loop {
        match bytes.next()? {
            b'"' => break,
            b'\\' => text.push(*bytes.next()?),
            byte => text.push(*byte),
        }
    }
    bytes.as_slice().is_empty().then_some(Cow::Owned(text))
}
