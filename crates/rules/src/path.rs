//! Normalised paths: the one form of all spellings of a path that rules see.
//!
//! An earlier step decides which spellings reach a server, and in which form (`path_policy.rs`).
//!
//! | in the request | becomes | why |
//! |---|---|---|
//! | `//`, `///` | `/` | upstreams join empty segments |
//! | `/./`, `/../`, and their encoded forms | resolved; never above the root | as servers do |
//! | `%41`, `%7e` (letters, digits, `-._~`) | the character itself | RFC 3986: the same path |
//! | `%3a`, `%21` (delimiters that are valid in a path) | the character itself | nearly all servers decode them |
//! | `*` | its escape | it is a wildcard in patterns |
//! | `%c3%A9` (anything else encoded) | upper-case escapes: `%C3%A9` | RFC 3986: the same path |
//! | a byte that should have been encoded | its escape | the same path |
//! | `a.`, `a%20` (dots and spaces at the end of a segment) | `a` | Windows, and Caddy everywhere, do not distinguish them |
//! | `%2f`, `%5c`, `\` | kept as `%2F`, `%5C` | whether they separate segments depends on the upstream; here they never do |
//! | `%00`, and other encoded controls | kept as `%00` | distinct from the path without them |
//! | `%`, not followed by two digits | `%25` | it is a literal percent sign |
//! | a `/` at the end | dropped, unless it is the whole path | most servers treat both alike |
//! | anything from `?` or `#` | dropped | not part of the path |
//!
//! Case is kept: on most servers, paths are case-sensitive.

use std::borrow::Cow;

/// The normalised path. Borrowed if it was normalised already, as nearly all paths are.
#[must_use]
pub fn normalize(path: &str) -> Cow<'_, str> {
    if is_normal(path.as_bytes()) { Cow::Borrowed(path) } else { Cow::Owned(rewrite(path)) }
}

pub(super) const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Bytes that are valid in a path without an escape.
pub(super) const fn is_plain(byte: u8) -> bool {
    is_unreserved(byte)
        || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@')
}

/// Bytes that are literal in a normalised path, and never escaped there.
const fn is_normal_byte(byte: u8) -> bool {
    is_plain(byte) && byte != b'*'
}

fn is_normal(path: &[u8]) -> bool {
    let [b'/', segments @ ..] = path else { return false };
    if segments.is_empty() {
        return true;
    }
    segments.split(|&byte| byte == b'/').all(is_normal_segment)
}

fn is_normal_segment(segment: &[u8]) -> bool {
    if segment.is_empty() || segment.ends_with(b".") || segment.ends_with(SPACE.as_bytes()) {
        return false;
    }
    let mut rest = segment;
    loop {
        match rest {
            [] => return true,
            [byte, after @ ..] if is_normal_byte(*byte) => rest = after,
            [b'%', digits @ ..] if is_normal_escape(digits) => rest = &digits[2..],
            _ => return false,
        }
    }
}

/// Two upper-case digits of an escape that must be kept.
fn is_normal_escape(digits: &[u8]) -> bool {
    let upper = |byte: &u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(byte);
    digits.len() >= 2 && digits[..2].iter().all(upper) && escape(digits).is_some_and(|byte| !is_normal_byte(byte))
}

/// A space in a normalised path.
const SPACE: &str = "%20";

fn rewrite(path: &str) -> String {
    let path = &path[..path.find(['?', '#']).unwrap_or(path.len())];
    let mut segments: Vec<String> = Vec::new();
    for mut segment in path.split('/').map(segment) {
        if segment == ".." {
            segments.pop();
            continue;
        }
        while let Some(shorter) = segment.strip_suffix('.').or_else(|| segment.strip_suffix(SPACE)) {
            segment.truncate(shorter.len());
        }
        if !segment.is_empty() {
            segments.push(segment);
        }
    }
    format!("/{}", segments.join("/"))
}

fn segment(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        match escape(after).filter(|_| *byte == b'%') {
            Some(decoded) => {
                rest = &after[2..];
                push(&mut out, decoded, is_normal_byte(decoded));
            }
            None => push(&mut out, *byte, is_normal_byte(*byte)),
        }
    }
    out
}

pub(super) fn push(out: &mut String, byte: u8, stands_for_itself: bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if stands_for_itself {
        out.push(char::from(byte));
    } else {
        out.push('%');
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 0xf)]));
    }
}

/// The byte for two hexadecimal digits.
pub(super) fn escape(digits: &[u8]) -> Option<u8> {
    let digit = |index: usize| char::from(*digits.get(index)?).to_digit(16);
    u8::try_from(digit(0)? << 4 | digit(1)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_spelling_of_a_path_is_one_path() {
        for spelling in [
            "/a/b",
            "/a/b/",
            "//a//b",
            "/a/./b",
            "/a/x/../b",
            "/./a/b/.",
            "/a/b/c/..",
            "/../a/b",
            "/../../a/b",
            "a/b",
            "/%61/%62",
            "/a/%2e/b",
            "/a/x/%2e%2E/b",
            "/a/x/.%2e/b",
            "/a/b?q=/x/../y",
            "/a/b#frag",
            "/a/b//?",
            "///a/b///",
        ] {
            assert_eq!(normalize(spelling), "/a/b", "{spelling}");
        }
    }

    #[test]
    fn different_paths_stay_different() {
        for (path, normal) in [
            ("/", "/"),
            ("", "/"),
            ("//", "/"),
            ("/..", "/"),
            ("/.", "/"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%5cb", "/a%5Cb"),
            ("/a\\b", "/a%5Cb"),
            ("/a%00", "/a%00"),
            ("/a%0a", "/a%0A"),
            ("/a\0", "/a%00"),
            ("/%C3%a9", "/%C3%A9"),
            ("/é", "/%C3%A9"),
            ("/100%", "/100%25"),
            ("/100%25", "/100%25"),
            ("/%zz", "/%25zz"),
            ("/%4", "/%254"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/A", "/A"),
            ("/...", "/"),
            ("/a./b%20/c. .%20", "/a/b/c"),
            ("/.%20./a", "/a"),
            ("/.a/b.c/..d", "/.a/b.c/..d"),
            ("/a;v=1", "/a;v=1"),
            ("/a:b@c", "/a:b@c"),
            ("/%3F", "/%3F"),
            ("/a%3bv%3d1%21", "/a;v=1!"),
            ("/a*b", "/a%2Ab"),
            ("/a%2ab", "/a%2Ab"),
            ("/%2f%2e%2e%2f", "/%2F..%2F"),
        ] {
            assert_eq!(normalize(path), normal, "{path}");
        }
    }

    #[test]
    fn a_normal_path_is_not_copied() {
        for path in ["/", "/api/v1/users/42", "/a%20b/%C3%A9", "/%2F", "/.well-known/x", "/a.b/..c"] {
            assert!(matches!(normalize(path), Cow::Borrowed(_)), "{path}");
        }
    }

    proptest! {
        #[test]
        fn normalising_twice_is_normalising_once(path in "(/|\\.|%2[eEfF]|%|[a-c0-9]|\\PC){0,30}") {
            let once = normalize(&path).into_owned();
            prop_assert!(once.starts_with('/'));
            prop_assert!(once == "/" || !once.ends_with('/'));
            prop_assert!(!once.contains("//"));
            prop_assert!(once.split('/').all(|segment| segment != "." && segment != ".."));
            prop_assert_eq!(normalize(&once).into_owned(), once);
        }

        #[test]
        fn encoding_a_letter_changes_nothing(path in "(/[a-z.]{1,5}){1,5}", at in 0_usize..30) {
            let mut encoded = String::new();
            for (index, c) in path.chars().enumerate() {
                if index == at && c != '/' {
                    encoded.push_str(&format!("%{:02x}", c as u32));
                } else {
                    encoded.push(c);
                }
            }
            prop_assert_eq!(normalize(&encoded), normalize(&path));
        }
    }
}
