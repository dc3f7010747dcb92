//! One spelling for values that HTTP lets clients write in several ways.
//!
//! An upstream takes `secret`, `"secret"` and `s%65cret` for the same cookie, and `Bearer x` and `bearer  x` for the same
//! credentials. If each spelling were a key of its own, one client would have as many limits as there are spellings. Where
//! upstreams disagree on whether two spellings are equal they are one key: clients that differ in nothing else share a limit,
//! and none has two.

use std::borrow::Cow;

use super::fact_name::FactName;

impl FactName {
    /// The spelling of a value by which keys know it.
    pub(super) fn canonical<'v>(&self, value: Cow<'v, str>) -> Cow<'v, str> {
        match self {
            FactName::Host => host(value),
            FactName::Method => method(value),
            FactName::Cookie(_) => cookie(value),
            FactName::Header(name) if is_credentials(name) => credentials(value),
            FactName::Header(_)
            | FactName::ApiKey
            | FactName::User
            | FactName::Tier
            | FactName::Query(_)
            | FactName::Claim(_)
            | FactName::Descriptor(_) => value,
        }
    }

    /// Whether conditions are held against a value as it is written, too: people may have written it down that way.
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

/// A host without the dot that may end it. Seldom in another case, and handed on as it is otherwise.
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

/// Schemes of credentials in their usual spelling, which is what people write in conditions. Others are in lower case.
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

/// A scheme has no case, and any number of blanks may follow it (RFC 9110, 11.4).
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

/// Without the quotes that may stand around a cookie (RFC 6265, 4.1.1) and the escapes that Python's servers read there, and
/// decoded, as PHP, Node and .NET do.
fn cookie(value: Cow<'_, str>) -> Cow<'_, str> {
    if !value.bytes().any(|byte| matches!(byte, b'"' | b'%' | b'+')) {
        return value;
    }
    let quoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let bare = quoted.map_or(Cow::Borrowed(value.as_bytes()), |inside| without_backslashes(inside.as_bytes()));
    String::from_utf8_lossy(&decoded(&bare)).into_owned().into()
}

/// `\"` is `"`, and `\145` is `e`.
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

/// Escapes decoded, with blanks for `+`. A `%` that begins no escape stands for itself.
fn decoded(written: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::with_capacity(written.len()), written);
    while let [first, behind @ ..] = rest {
        let escape = match (first, behind) {
            (b'%', [high, low, ..]) => hexadecimal(*high).zip(hexadecimal(*low)),
            _ => None,
        };
        let (byte, length) = escape.map_or((*first, 1), |(high, low)| (high << 4 | low, 3));
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
