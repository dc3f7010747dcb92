//! The keys that rules charge for requests.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;

use smallvec::SmallVec;

use super::fact_name::FactName;
use super::override_name::override_name;
use super::request_view::RequestView;
use super::rule::{KeyFault, KeyPart, OnRepeatedKey, Rule};
use super::secret::Secret;
use crate::facts::{Facts, Values};
use tidegate_core::Key;

/// The value of a part of a key. Allocates only if reading the request did.
#[derive(Clone, Debug)]
pub(super) enum Piece<'a> {
    Text(Cow<'a, str>),
    InlineText(InlineText),
}

impl Deref for Piece<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Piece::Text(text) => text,
            Piece::InlineText(text) => text.as_str(),
        }
    }
}

impl fmt::Display for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// The longest text of an [`InlineText`]. An IPv6 network has 43 characters, a hidden secret 32.
const INLINE: usize = 48;

/// Text of at most 48 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineText {
    bytes: [u8; INLINE],
    length: usize,
}

impl InlineText {
    /// The displayed form of `value`, truncated to the available room.
    fn of(value: impl fmt::Display) -> InlineText {
        let mut text = InlineText { bytes: [0; INLINE], length: 0 };
        // Cannot fail: addresses and hashes fit.
        let _ = write!(text, "{value}");
        text
    }

    fn of_ipv4(address: Ipv4Addr) -> InlineText {
        let mut text = InlineText { bytes: [0; INLINE], length: 0 };
        text.length = usize::from(write_ipv4(address, &mut text.bytes));
        text
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

impl Write for InlineText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Writes an IPv4 address, the most frequent part of keys, without the overhead of formatting. Returns its length: at most
/// 15 bytes.
fn write_ipv4(address: Ipv4Addr, into: &mut [u8]) -> u8 {
    let mut length = 0;
    let mut push = |byte: u8| {
        into[usize::from(length)] = byte;
        length += 1;
    };
    for (octet, number) in address.octets().into_iter().zip(0..) {
        if number > 0 {
            push(b'.');
        }
        if octet >= 100 {
            push(b'0' + octet / 100);
        }
        if octet >= 10 {
            push(b'0' + octet / 10 % 10);
        }
        push(b'0' + octet % 10);
    }
    length
}

/// Writes the key of a request to `key`, and its name under the previous key of `secret` to `previous` if that is another.
/// Returns the name for overrides if the rule has any.
pub(super) fn write_key<'a, 'f: 'a, F: Facts + ?Sized>(
    key: &mut Key<'a>,
    previous: &mut Option<Box<Key<'static>>>,
    rule: &'a Rule,
    request: &RequestView<'f, F>,
    secret: &Secret,
) -> Result<Option<String>, KeyFault> {
    // Fast path: most keys have at most one part.
    if rule.limits.overrides.is_empty() {
        match &rule.key[..] {
            [] => {
                *key = Key::GLOBAL;
                return Ok(None);
            }
            [only] if !only.is_secret() => return write_only(key, only, rule, request).map(|()| None),
            _ => {}
        }
    }
    let mut pieces: SmallVec<[Piece<'a>; 2]> = SmallVec::new();
    for part in &rule.key {
        pieces.push(part_of(part, rule, request)?);
    }
    let named = (!rule.limits.overrides.is_empty()).then(|| override_name(pieces.iter().map(|piece| &**piece)));
    if secret.has_previous() {
        *previous = previous_name(rule, pieces.iter().map(|piece| &**piece), secret);
    }
    for (piece, part) in pieces.iter_mut().zip(&rule.key) {
        if part.is_secret() {
            *piece = Piece::InlineText(InlineText::of(secret.hidden(piece)));
        }
    }
    *key = match &pieces[..] {
        [Piece::Text(Cow::Borrowed(only))] => Key::from(*only),
        pieces => Key::of(pieces.iter().map(|piece| piece.as_bytes())),
    };
    Ok(named)
}

/// The name, under the previous key of `secret`, of the key whose parts have these values, in clear. `None` if no part is
/// secret, because such a key has only one name.
#[cold]
pub(super) fn previous_name<'p>(
    rule: &Rule,
    values: impl Iterator<Item = &'p str>,
    secret: &Secret,
) -> Option<Box<Key<'static>>> {
    let previous = secret.previous().filter(|_| rule.key.iter().any(KeyPart::is_secret))?;
    let parts = values.zip(&rule.key).map(|(value, part)| match part.is_secret() {
        true => previous.hide(value),
        false => value.to_owned(),
    });
    Some(Box::new(Key::of(parts)))
}

/// Writes a key with a single part.
fn write_only<'a, 'f: 'a, F: Facts + ?Sized>(
    key: &mut Key<'a>,
    part: &KeyPart,
    rule: &'a Rule,
    request: &RequestView<'f, F>,
) -> Result<(), KeyFault> {
    match (part, request.known_address()) {
        (KeyPart::Address { ipv4: 32, .. }, Some(IpAddr::V4(address))) => {
            key.write_one(|room| write_ipv4(address, room));
        }
        (KeyPart::Fact(fact), _) => set_text(key, value_of(fact, rule, request)?),
        _ => match part_of(part, rule, request)? {
            Piece::Text(text) => set_text(key, text),
            Piece::InlineText(text) => key.set_one(text.as_bytes()),
        },
    }
    Ok(())
}

/// The value of a fact, as a part of a rule's key.
fn value_of<'f, F: Facts + ?Sized>(
    fact: &FactName,
    rule: &Rule,
    request: &RequestView<'f, F>,
) -> Result<Cow<'f, str>, KeyFault> {
    match (request.canonical_values(fact), rule.on_repeated_key) {
        (Values::One(value), _) => Ok(value),
        (Values::None, _) => Err(KeyFault::Missing),
        (Values::Several(_), OnRepeatedKey::Refuse) => Err(KeyFault::Repeated),
        (Values::Several(values), OnRepeatedKey::Join) => Ok(joined(&values).into()),
    }
}

/// Joins all values, each with its length, so that no two lists make the same key: `1:a2:bc`.
#[cold]
fn joined(values: &[Cow<'_, str>]) -> String {
    override_name(values.iter().map(|value| &**value))
}

fn set_text<'a>(key: &mut Key<'a>, text: Cow<'a, str>) {
    match text {
        Cow::Borrowed(text) => *key = Key::from(text),
        Cow::Owned(text) => key.set_one(text.as_bytes()),
    }
}

/// The value of a part of a rule's key, in clear.
pub(super) fn part_of<'a, 'f: 'a, F: Facts + ?Sized>(
    part: &KeyPart,
    rule: &'a Rule,
    request: &RequestView<'f, F>,
) -> Result<Piece<'a>, KeyFault> {
    let mut paths = rule.conditions.path.iter().flat_map(|paths| &paths.any);
    match part {
        KeyPart::Fact(fact) | KeyPart::Secret(fact) => value_of(fact, rule, request).map(Piece::Text),
        KeyPart::Address { ipv4, ipv6 } => {
            let address = request.known_address().ok_or(KeyFault::Missing)?;
            Ok(Piece::InlineText(network_of(address, *ipv4, *ipv6)))
        }
        KeyPart::Segment(name) => {
            let segment = match request.normal_path() {
                Cow::Borrowed(path) => paths.find_map(|pattern| pattern.named(name, path)).map(Cow::Borrowed),
                Cow::Owned(path) => {
                    paths.find_map(|pattern| pattern.named(name, path)).map(|segment| Cow::Owned(segment.to_owned()))
                }
            };
            segment.map(Piece::Text).ok_or(KeyFault::Missing)
        }
        KeyPart::Route => {
            let route = paths.find(|pattern| pattern.matches(request.normal_path()));
            Ok(Piece::Text(route.map_or("/**", |pattern| pattern.as_str()).into()))
        }
    }
}

/// The address, or the network of the given size that contains it.
pub(super) fn network_of(address: IpAddr, ipv4: u8, ipv6: u8) -> InlineText {
    let (size, whole) = match address {
        IpAddr::V4(_) => (ipv4, 32),
        IpAddr::V6(_) => (ipv6, 128),
    };
    if size < whole
        && let Ok(net) = ipnet::IpNet::new(address, size)
    {
        return InlineText::of(net.trunc());
    }
    match address {
        IpAddr::V4(address) => InlineText::of_ipv4(address),
        IpAddr::V6(address) => InlineText::of(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_network_fits() {
        let address: IpAddr = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
        assert_eq!(network_of(address, 32, 127).as_str(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127");
        assert_eq!(network_of(address, 32, 128).as_str(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    }

    #[test]
    fn addresses_are_spelled_as_usual() {
        for text in ["0.0.0.0", "9.10.99.100", "101.200.249.250", "255.255.255.255"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(network_of(address, 32, 64).as_str(), text);
        }
    }

    #[test]
    fn no_value_passes_for_two() {
        assert_ne!(override_name(["a,b", "c"].into_iter()), override_name(["a", "b,c"].into_iter()));
        assert_ne!(override_name(["1:a", "b"].into_iter()), override_name(["1", "a:b"].into_iter()));
        assert_eq!(override_name(["alice"].into_iter()), "alice");
    }
}
