//! Quotes and escapes in logs.

use std::borrow::Cow;

/// The part of `text` up to the next unescaped quote, the offset of that quote, and whether the part has escapes.
#[inline]
pub(super) fn up_to_quote(text: &str) -> Option<(&str, usize, bool)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    let mut escaped = false;
    loop {
        let at = from + memchr::memchr2(b'"', b'\\', bytes.get(from..)?)?;
        if bytes[at] == b'"' {
            return Some((&text[..at], at, escaped));
        }
        escaped = true;
        from = at + 2;
    }
}

/// Decodes the escapes of web servers: `\"`, `\\`, `\x22`, `\t` and others.
pub(super) fn from_log(text: &str) -> Cow<'_, str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match *rest {
            [b'x', high, low, ref after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(hex(high) << 4 | hex(low));
                rest = after;
            }
            [one, ref after @ ..] => {
                bytes.push(match one {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'b' => 8,
                    b'v' => 11,
                    b'f' => 12,
                    other => other,
                });
                rest = after;
            }
            [] => bytes.push(b'\\'),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

const fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 0,
    }
}

/// Decodes the escapes of JSON. Text with an invalid escape stays unchanged.
pub(super) fn from_json(raw: &str) -> Cow<'_, str> {
    let quoted = format!("\"{raw}\"");
    serde_json::from_str::<String>(&quoted).map_or(Cow::Borrowed(raw), Cow::Owned)
}

/// The method and the target of `GET /a HTTP/1.1`. Targets may contain unencoded spaces.
pub(super) fn split_request(request: &str) -> Option<(&str, &str)> {
    let (method, rest) = request.split_at(memchr::memchr(b' ', request.as_bytes())?);
    let rest = rest.trim_start_matches(' ');
    let target = match memchr::memrchr(b' ', rest.as_bytes()) {
        Some(space) if rest[space + 1..].starts_with("HTTP/") => rest[..space].trim_end_matches(' '),
        _ => rest,
    };
    let is_method =
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-' || byte == b'_');
    (is_method && !target.is_empty()).then_some((method, target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_ends_where_it_is_not_escaped() {
        assert_eq!(up_to_quote(r#"plain" rest"#), Some(("plain", 5, false)));
        assert_eq!(up_to_quote(r#"a\"b\\" rest"#), Some((r#"a\"b\\"#, 6, true)));
        for open in ["", "open", r"open\", r#"open\""#] {
            assert_eq!(up_to_quote(open), None, "{open}");
        }
    }

    #[test]
    fn escapes_become_what_they_stand_for() {
        assert_eq!(from_log(r#"\x22caf\xC3\xA9\x22 \"\\ \t\q"#), "\"café\" \"\\ \tq");
        assert_eq!(from_log(r"bad \xZZ \"), "bad xZZ \\");
        assert_eq!(from_json(r"a\u0020\/b"), "a /b");
        assert_eq!(from_json(r"\q"), r"\q");
    }
}
