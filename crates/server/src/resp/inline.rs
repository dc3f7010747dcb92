//! Inline commands: a line of words, as typed into `telnet` or `nc`.
//!
//! Words are separated by whitespace. Double-quoted words support `\n`, `\r`, `\t`, `\a`, `\b`, `\x1f` and a backslash
//! before any other character; single-quoted words only `\'`. A closing quote must be followed by whitespace or the
//! end.

use super::word_span::{Spans, WordSpan};

/// Unbalanced quotes, or no whitespace after a closing quote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unbalanced;

/// Splits a line into words, and unquotes them in place: unquoting never makes a word longer.
pub(super) fn split(line: &mut [u8], spans: &mut Spans) -> Result<(), Unbalanced> {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|&byte| is_space(byte)) {
            at += 1;
        }
        if at >= line.len() {
            return Ok(());
        }
        at = word(line, at, spans)?;
    }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c | 0)
}

/// Unquotes the word at `at`. Returns the start of the rest of the line.
fn word(line: &mut [u8], mut at: usize, spans: &mut Spans) -> Result<usize, Unbalanced> {
    let begin = at;
    let mut end = at;
    let mut quote = None;
    loop {
        let (meant, read) = match (quote, &line[at..]) {
            (None, []) => break,
            (Some(_), []) => return Err(Unbalanced),
            (None, [byte, ..]) if is_space(*byte) => break,
            (None, [open @ (b'"' | b'\''), ..]) => {
                quote = Some(*open);
                at += 1;
                continue;
            }
            (Some(open), [close, rest @ ..]) if open == *close => {
                if rest.first().is_some_and(|&byte| !is_space(byte)) {
                    return Err(Unbalanced);
                }
                at += 1;
                break;
            }
            (Some(b'"'), [b'\\', rest @ ..]) if !rest.is_empty() => escaped(rest),
            (Some(b'\''), [b'\\', b'\'', ..]) => (b'\'', 2),
            (_, [byte, ..]) => (*byte, 1),
        };
        line[end] = meant;
        end += 1;
        at += read;
    }
    spans.push(WordSpan { begin, end });
    Ok(at)
}

/// Decodes an escape sequence. Returns its character and its length.
fn escaped(rest: &[u8]) -> (u8, usize) {
    match rest {
        [b'x', high, low, ..] if let (Some(high), Some(low)) = (hex(*high), hex(*low)) => (high << 4 | low, 4),
        [b'n', ..] => (b'\n', 2),
        [b'r', ..] => (b'\r', 2),
        [b't', ..] => (b'\t', 2),
        [b'b', ..] => (0x08, 2),
        [b'a', ..] => (0x07, 2),
        [byte, ..] => (*byte, 2),
        [] => (b'\\', 1),
    }
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<String>, Unbalanced> {
        let (mut line, mut spans) = (line.as_bytes().to_vec(), Spans::new());
        split(&mut line, &mut spans)?;
        Ok(spans.iter().map(|span| line[span.begin..span.end].escape_ascii().to_string()).collect())
    }

    #[test]
    fn words_stand_apart_by_white_space() {
        assert_eq!(words("").unwrap(), [""; 0]);
        assert_eq!(words("  \t ").unwrap(), [""; 0]);
        assert_eq!(words(" PING \t a  b").unwrap(), ["PING", "a", "b"]);
    }

    #[test]
    fn quotes_hold_words_together() {
        assert_eq!(words(r#"echo "a b" 'c d' "" ''"#).unwrap(), ["echo", "a b", "c d", "", ""]);
        assert_eq!(words(r#"a"b c""#).unwrap(), ["ab c"]);
        assert_eq!(words(r#""it's" 'say "hi"'"#).unwrap(), [r"it\'s", r#"say \"hi\""#]);
    }

    #[test]
    fn escapes_mean_bytes() {
        assert_eq!(words(r#""\x41\x0a\n\r\t\\\"\q" 'it\'s\n'"#).unwrap(), [r#"A\n\n\r\t\\\"q"#, r"it\'s\\n"]);
        assert_eq!(words(r#""\xzz\x4""#).unwrap(), ["xzzx4"]);
    }

    #[test]
    fn quotes_that_do_not_close_or_do_not_end_a_word_are_refused() {
        for line in [r#"""#, r#"a "b"#, "'", r#""a"b"#, r#""\""#, r#""\"#, "'a'b"] {
            assert_eq!(words(line), Err(Unbalanced), "{line}");
        }
    }
}
