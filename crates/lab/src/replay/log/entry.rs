//! A request as recorded in a log.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::facts::{RawRequest, read};
use tidegate_rules::syntax::RequestTarget;
use tidegate_rules::{Fact, Facts, Values};

use super::columns::Row;
use super::json_members::{LogValue, Members};

/// A request as recorded in a log.
#[derive(Clone, Debug)]
pub struct AccessEntry<'l> {
    /// The time, with the precision of the log.
    pub at: Timestamp,
    /// The time is known only to the second.
    pub whole_second: bool,
    /// The client's address.
    pub address: Option<IpAddr>,
    /// The duration.
    pub took: Option<Micros>,
    pub(super) method: Option<Cow<'l, str>>,
    pub(super) target: Option<Cow<'l, str>>,
    pub(super) host: Option<Cow<'l, str>>,
    pub(super) user: Option<Cow<'l, str>>,
    pub(super) api_key: Option<Cow<'l, str>>,
    pub(super) tier: Option<Cow<'l, str>>,
    pub(super) agent: Option<Cow<'l, str>>,
    pub(super) referer: Option<Cow<'l, str>>,
    pub(super) cost: Option<u64>,
    pub(super) more: FieldSource<'l>,
}

/// The source of headers, cookies and claims.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum FieldSource<'l> {
    #[default]
    Nothing,
    /// Members named like nginx's variables: `http_x_tenant`, `cookie_session`.
    Variables(&'l str),
    /// An object of headers and one of claims. Values may be lists.
    Objects { headers: &'l str, claims: &'l str },
    /// Columns named like `header:X-Tenant`.
    Row(Row<'l>),
}

impl<'l> AccessEntry<'l> {
    pub(super) fn at(at: Timestamp, whole_second: bool) -> AccessEntry<'l> {
        AccessEntry {
            at,
            whole_second,
            address: None,
            took: None,
            method: None,
            target: None,
            host: None,
            user: None,
            api_key: None,
            tier: None,
            agent: None,
            referer: None,
            cost: None,
            more: FieldSource::Nothing,
        }
    }

    fn header(&self, name: &str) -> Values<'_> {
        let known = match name {
            _ if name.eq_ignore_ascii_case("user-agent") => self.agent.as_deref(),
            _ if name.eq_ignore_ascii_case("referer") => self.referer.as_deref(),
            _ => None,
        };
        Values::from(known).or_else(|| match self.more {
            FieldSource::Nothing => Values::None,
            FieldSource::Variables(line) => variable(line, "http_", name).into(),
            FieldSource::Objects { headers, .. } => {
                let lines = Members::of(headers).filter(|(known, _)| known.eq_ignore_ascii_case(name));
                lines.flat_map(|(_, value)| value.items()).filter_map(|item| item.text()).collect()
            }
            FieldSource::Row(row) => row.header(name).into(),
        })
    }

    fn cookie(&self, name: &str) -> Values<'_> {
        match self.more {
            FieldSource::Variables(line) => variable(line, "cookie_", name).into(),
            FieldSource::Nothing | FieldSource::Objects { .. } | FieldSource::Row(_) => Values::None,
        }
    }

    fn claim(&self, name: &str) -> Values<'_> {
        match self.more {
            FieldSource::Objects { claims, .. } => {
                let claims = Members::of(claims).filter(|(known, _)| *known == name);
                claims.filter_map(|(_, value)| value.text()).collect()
            }
            FieldSource::Row(row) => row.claim(name).into(),
            FieldSource::Nothing | FieldSource::Variables(_) => Values::None,
        }
    }
}

/// The member named `prefix` plus the name in lower case, with `_` for `-`.
fn variable<'l>(line: &'l str, prefix: &str, name: &str) -> Option<Cow<'l, str>> {
    let is = |key: &str| {
        key.strip_prefix(prefix).is_some_and(|key| {
            key.len() == name.len()
                && key.bytes().zip(name.bytes()).all(|(one, other)| {
                    one == other.to_ascii_lowercase() || one == b'_' && other == b'-' || one == other
                })
        })
    };
    let (_, value) = Members::of(line).find(|(key, _)| is(key))?;
    value.text().filter(|text| !text.is_empty() && text != "-")
}

impl RawRequest for AccessEntry<'_> {
    fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    fn target(&self) -> RequestTarget<'_> {
        self.target.as_deref().map(RequestTarget::parse).unwrap_or_default()
    }

    fn lines(&self, name: &str) -> Values<'_> {
        self.header(name)
    }

    fn stated(&self, fact: Fact<'_>) -> Values<'_> {
        match fact {
            Fact::Host => self.host.as_deref().into(),
            Fact::ApiKey => self.api_key.as_deref().into(),
            Fact::User => self.user.as_deref().into(),
            Fact::Tier => self.tier.as_deref().into(),
            Fact::Cookie(name) => self.cookie(name),
            Fact::Claim(name) => self.claim(name),
            Fact::Method | Fact::Path | Fact::Header(_) | Fact::Query(_) | Fact::Descriptor(_) => Values::None,
        }
    }
}

impl Facts for AccessEntry<'_> {
    fn values(&self, fact: Fact<'_>) -> Values<'_> {
        read(self, fact)
    }

    fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn hits(&self) -> Option<u64> {
        self.cost
    }
}

/// An address, optionally with a port or in brackets. The first one of a list.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    if let Some(address) = plain_ipv4(text.as_bytes()) {
        return Some(address);
    }
    // A fast path for `-`, which means no value.
    if text.len() < 2 {
        return None;
    }
    let text = text.split(',').next().unwrap_or(text).trim();
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip());
    }
    text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// A fast path for `192.0.2.7`, by far the most common form.
fn plain_ipv4(text: &[u8]) -> Option<IpAddr> {
    let mut octets = [0_u8; 4];
    let (mut which, mut value, mut digits) = (0, 0_u32, 0);
    for &byte in text {
        match byte {
            b'0'..=b'9' if digits < 3 => {
                // Some programs read leading zeros as octal.
                if digits > 0 && value == 0 {
                    return None;
                }
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
            }
            b'.' if digits > 0 && which < 3 => {
                octets[which] = u8::try_from(value).ok()?;
                (which, value, digits) = (which + 1, 0, 0);
            }
            _ => return None,
        }
    }
    if which != 3 || digits == 0 {
        return None;
    }
    octets[3] = u8::try_from(value).ok()?;
    Some(IpAddr::from(octets))
}

/// The text, unless it stands for a missing value in logs.
pub(super) fn present<'l>(text: Cow<'l, str>) -> Option<Cow<'l, str>> {
    Some(text).filter(|text| !text.is_empty() && text != "-")
}

/// The text of a JSON member, unless it stands for a missing value.
pub(super) fn text_of<'l>(value: &LogValue<'l>) -> Option<Cow<'l, str>> {
    value.text().and_then(present)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_in_many_spellings() {
        let is = |text: &str, wanted: &str| assert_eq!(address(text), wanted.parse().ok(), "{text}");
        is("192.0.2.7", "192.0.2.7");
        is("192.0.2.7:4711", "192.0.2.7");
        is("2001:db8::7", "2001:db8::7");
        is("[2001:db8::7]", "2001:db8::7");
        is("[2001:db8::7]:443", "2001:db8::7");
        is("203.0.113.9, 10.0.0.1", "203.0.113.9");
        is("::ffff:192.0.2.7", "::ffff:192.0.2.7");
        for no in ["", "-", "localhost", "256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1..2.3", "unix:"] {
            assert_eq!(address(no), None, "{no}");
        }
    }

    #[test]
    fn a_target_with_a_host_says_both() {
        let mut entry = AccessEntry::at(Timestamp::EPOCH, false);
        entry.target = Some("http://a.example:8080/x?y=1&z=2#f".into());
        assert_eq!(entry.get(Fact::Host).as_deref(), Some("a.example"));
        assert_eq!(entry.get(Fact::Path).as_deref(), Some("/x"));
        assert_eq!(entry.get(Fact::Query("z")).as_deref(), Some("2"));
        entry.target = Some("https://b.example".into());
        assert_eq!(entry.get(Fact::Path).as_deref(), Some("/"));
    }
}
