//! Allow-list of the protocols that a connection may be upgraded to.
//!
//! Rules do not see traffic after an upgrade, so protocols that carry requests (h2c) are never allowed.

use std::str::FromStr;

use http::HeaderValue;

use super::address::AddressError;

/// Protocols whose upgrade is forwarded to upstreams. Default: WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrades(
    /// Names in lower case. A name without `/` and a version matches every version.
    Vec<String>,
);

impl Default for Upgrades {
    fn default() -> Upgrades {
        Upgrades(vec!["websocket".to_owned()])
    }
}

impl Upgrades {
    /// Forwards no upgrade.
    #[must_use]
    pub const fn none() -> Upgrades {
        Upgrades(Vec::new())
    }

    /// Allows the protocols of both lists.
    #[must_use]
    pub fn and(mut self, mut others: Upgrades) -> Upgrades {
        self.0.append(&mut others.0);
        self
    }

    /// The protocols of a client's `Upgrade` that are forwarded.
    pub(super) fn allowed(&self, asked: &HeaderValue) -> Option<HeaderValue> {
        let allowed: Vec<&[u8]> = protocols(asked).filter(|protocol| self.allows(protocol)).collect();
        if allowed.is_empty() {
            return None;
        }
        HeaderValue::from_bytes(&allowed.join(&b", "[..])).ok()
    }

    fn allows(&self, protocol: &[u8]) -> bool {
        let name = protocol.split(|&byte| byte == b'/').next().unwrap_or(protocol);
        !carries_requests(name)
            && self.0.iter().any(|allowed| {
                let asked = if allowed.contains('/') { protocol } else { name };
                asked.eq_ignore_ascii_case(allowed.as_bytes())
            })
    }
}

/// Whether the protocols in an upstream's response, `answered`, are among those that it was `asked` for.
pub(super) fn is_among(answered: &HeaderValue, asked: &HeaderValue) -> bool {
    let is_asked = |answer: &[u8]| protocols(asked).any(|protocol| protocol.eq_ignore_ascii_case(answer));
    protocols(answered).next().is_some() && protocols(answered).all(is_asked)
}

/// The protocols in a line of `Upgrade`.
fn protocols(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    line.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|protocol| !protocol.is_empty())
}

/// Whether a protocol carries HTTP requests, in clear text or within TLS (RFC 2817).
fn carries_requests(name: &[u8]) -> bool {
    ["h2c", "h2", "h3", "http", "tls"].iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Parses one protocol, several separated by `+`, or `off`.
impl FromStr for Upgrades {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Upgrades, AddressError> {
        if matches!(text, "" | "off" | "none" | "false" | "no") {
            return Ok(Upgrades::none());
        }
        let protocol = |text: &str| {
            let (name, version) = text.split_once('/').unwrap_or((text, "1"));
            if !is_token(name) || !is_token(version) {
                let help = "write the names of protocols such as `websocket`, or `off`";
                return Err(AddressError::new(format!("`{text}` is not a protocol"), help));
            }
            if carries_requests(name.as_bytes()) {
                let help = "leave it out: clients do without it, and their requests then meet the rules one by one";
                let problem = format!("`{text}` would carry requests past the rules, inside an upgraded connection");
                return Err(AddressError::new(problem, help));
            }
            Ok(text.to_ascii_lowercase())
        };
        Ok(Upgrades(text.split('+').map(protocol).collect::<Result<_, _>>()?))
    }
}

/// Whether a text is an HTTP token without `*` and `+`, which have another meaning here.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(upgrades: &str, asked: &'static str) -> Option<String> {
        let allowed = upgrades.parse::<Upgrades>().unwrap().allowed(&HeaderValue::from_static(asked))?;
        Some(allowed.to_str().unwrap().to_owned())
    }

    #[test]
    fn unlisted_upgrades_are_left_out() {
        for (list, asked, passed_on) in [
            ("websocket", "websocket", Some("websocket")),
            ("websocket", "h2c, ,WebSocket ", Some("WebSocket")),
            ("websocket", "websockets", None),
            ("websocket+Foo/2", "foo/1, foo/2, foo", Some("foo/2")),
            ("foo", "foo/1, foo", Some("foo/1, foo")),
            ("off", "websocket", None),
            ("websocket", "", None),
        ] {
            assert_eq!(allowed(list, asked).as_deref(), passed_on, "{asked} under {list}");
        }
    }

    #[test]
    fn http_is_never_on_the_list() {
        for text in ["h2c", "H2C", "http", "HTTP/2.0", "h2", "tls/1.0", "websocket+h2c"] {
            assert!(text.parse::<Upgrades>().unwrap_err().problem.contains("past the rules"), "{text}");
        }
        assert!(!Upgrades(vec!["h2c".to_owned()]).allows(b"h2c"));
    }

    #[test]
    fn an_answer_names_only_what_was_asked_for() {
        let among = |answered, asked| is_among(&HeaderValue::from_static(answered), &HeaderValue::from_static(asked));
        assert!(among("WebSocket", "websocket") && among("b, a", "a, b"));
        assert!(!among("", "a") && !among(",", "a") && !among("a, b", "a") && !among("a/2", "a"));
    }
}
