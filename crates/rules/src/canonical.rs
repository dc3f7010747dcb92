//! A single spelling for values that HTTP allows to be written in several ways.
//!
//! To an upstream, `secret`, `"secret"` and `s%65cret` are the same cookie, and `Bearer x` and `bearer  x` the same
//! credentials. If each spelling had a key of its own, a client could multiply its limits by changing the spelling. If
//! upstreams disagree on whether two spellings are equal, they have one key: clients that differ only in such a spelling
//! share a limit, and no client has two.

use std::borrow::Cow;

use super::fact_name::FactName;

impl FactName {
    /// The canonical spelling of a value, which is used in keys.
    pub(super) fn canonical<'v>(&self, value: Cow<'v, str>) -> Cow<'v, str> {
        match self {
            _ if self.is_host() => host(value),
            FactName::Method => method(value),
            FactName::Cookie(_) => cookie(value),
            FactName::Header(name) if is_credentials(name) => credentials(value),
            FactName::Host
            | FactName::Header(_)
            | FactName::ApiKey
            | FactName::User
            | FactName::Tier
            | FactName::Query(_)
            | FactName::Claim(_)
            | FactName::Descriptor(_) => value,
        }
    }

    /// Whether conditions are also compared with the original spelling, because rules may contain it.
    pub(super) fn is_matched_as_written(&self) -> bool {
        match self {
            FactName::Cookie(_) => true,
            FactName::Header(name) => is_credentials(name),
            FactName::Host
            | FactName::Method
            | FactName::ApiKey
            | FactName::User
            | FactName::Tier
            | FactName::Query(_)
            | FactName::Claim(_)
            | FactName::Descriptor(_) => false,
        }
    }
}

fn is_credentials(header: &str) -> bool {
    matches!(header, "authorization" | "proxy-authorization")
}

/// Removes the final dot of a host, and converts it to lower case. Borrowed in the usual case, in which neither is needed.
fn host(host: Cow<'_, str>) -> Cow<'_, str> {
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) || host.ends_with('.') {
        return host.trim_end_matches('.').to_ascii_lowercase().into();
    }
    host
}

fn method(method: Cow<'_, str>) -> Cow<'_, str> {
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return method.to_ascii_uppercase().into();
    }
    method
}

/// Authentication schemes in their usual spelling, as written in conditions. Other schemes are in lower case.
const SCHEMES: [&str; 16] = [
    "ApiKey",
    "AWS4-HMAC-SHA256",
    "Basic",
    "Bearer",
    "Digest",
    "DPoP",
    "GNAP",
    "Hawk",
    "HOBA",
    "Mutual",
    "Negotiate",
    "NTLM",
    "OAuth",
    "PrivateToken",
    "Token",
    "vapid",
];

/// Schemes are case-insensitive, and may be followed by any number of spaces (RFC 9110, 11.4).
fn credentials(value: Cow<'_, str>) -> Cow<'_, str> {
    let Some((scheme, rest)) = value.split_once([' ', '\t']) else { return value };
    let usual = SCHEMES.into_iter().find(|usual| usual.eq_ignore_ascii_case(scheme));
    let usual = usual.map_or_else(|| Cow::Owned(scheme.to_ascii_lowercase()), Cow::Borrowed);
    let credentials = rest.trim_start_matches([' ', '\t']);
    if usual == scheme && credentials.len() == rest.len() && value.as_bytes()[scheme.len()] == b' ' {
        return value;
    }
    format!("{usual} {credentials}").into()
}

/// Removes the optional quotes around a cookie (RFC 6265, 4.1.1) and the escapes that Python servers decode within them.
/// Also decodes percent-encoding, as PHP, Node and .NET do.
fn cookie(value: Cow<'_, str>) -> Cow<'_, str> {
    if !value.bytes().any(|byte| matches!(byte, b'"' | b'%' | b'+')) {
        return value;
    }
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let bare = quoted.map_or(Cow::Borrowed(value.as_bytes()), |inside| without_backslashes(inside.as_bytes()));
    String::from_utf8_lossy(&decoded(&bare)).into_owned().into()
}

/// Decodes `\"` to `"`, and `\145` to `e`.
fn without_backslashes(quoted: &[u8]) -> Cow<'_, [u8]> {
    if !quoted.contains(&b'\\') {
        return Cow::Borrowed(quoted);
    }
    let (mut plain, mut rest) = (Vec::with_capacity(quoted.len()), quoted);
    while let [first, behind @ ..] = rest {
        let (byte, behind) = match (first, behind) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..]) => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), behind)
            }
            (b'\\', [escaped, behind @ ..]) => (*escaped, behind),
            (byte, behind) => (*byte, behind),
        };
        plain.push(byte);
        rest = behind;
    }
    Cow::Owned(plain)
}

/// Decodes percent-encoding. A `+`, escaped or not, becomes a space. An invalid `%` is kept.
fn decoded(written: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(written.len()), written);
    while let [first, behind @ ..] = rest {
        let escape = match (first, behind) {
            (b'%', [high, low, ..]) => hexadecimal(*high).zip(hexadecimal(*low)),
            _ => None,
        };
        let (byte, length) = escape.map_or((*first, 1), |(high, low)| (high << 4 | low, 3));
        // Upstreams disagree whether a plus is a space, so both spellings share one key.
        plain.push(if byte == b'+' { b' ' } else { byte });
        rest = &rest[length..];
    }
    plain
}

fn hexadecimal(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_credentials_are_one() {
        for (written, usual) in [
            ("Bearer x", "Bearer x"),
            ("bEARER  \t x", "Bearer x"),
            ("Bearer\tx", "Bearer x"),
            ("basic QTpi", "Basic QTpi"),
            ("X-Own  a=b, c", "x-own a=b, c"),
            ("OnlyAToken", "OnlyAToken"),
            ("", ""),
            ("Bearer ", "Bearer "),
        ] {
            assert_eq!(credentials(written.into()), usual, "{written}");
        }
        assert!(matches!(credentials("Bearer x".into()), Cow::Borrowed(_)));
    }

    #[test]
    fn spellings_of_a_cookie_are_one() {
        for (written, plain) in [
            ("secret", "secret"),
            ("s%65cret", "secret"),
            ("\"secret\"", "secret"),
            ("\"s%65cret\"", "secret"),
            (r#""\163e\cret""#, "secret"),
            ("a+b", "a b"),
            ("a%2Bb", "a b"),
            ("a%20b", "a b"),
            ("\"", "\""),
            ("\"a", "\"a"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            (r"a\b", r"a\b"),
            ("%ff", "\u{fffd}"),
            ("", ""),
            ("\"\"", ""),
            (r#""\""#, r"\"),
        ] {
            assert_eq!(cookie(written.into()), plain, "{written}");
        }
        assert!(matches!(cookie("c2Vzc2lvbg==".into()), Cow::Borrowed(_)));
    }
}
