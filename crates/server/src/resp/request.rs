//! Parser of requests in the Redis protocol, without copying.
//!
//! A request is an array of bulk strings (`*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n`), in RESP2 and RESP3 alike, or an inline
//! command, which is a line of words. Arrays do not nest. The parser remembers its position, so that a request that
//! arrives byte by byte is parsed once. It rejects a request that exceeds the bounds as soon as the length is
//! announced, before memory is allocated for it.

use tidegate_core::Micros;

use super::inline;
use super::word_span::{Spans, WordSpan};

/// Maximum size of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBounds {
    /// Maximum number of words, including the command's name.
    pub words: usize,
    /// Maximum number of bytes, including the framing.
    pub bytes: usize,
}

/// Maximum length of a line that announces a length, which is longer than any allowed length.
const LONGEST_COUNT: usize = 32;

/// Violation of the protocol. The start of the next request is unknown, so the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*` was not followed by a number of words.
    #[error("invalid multibulk length")]
    WordCount,
    /// More words than a request may have.
    #[error("invalid multibulk length: a request has at most {most} arguments here")]
    TooManyWords {
        /// The maximum.
        most: usize,
    },
    /// Unexpected byte at the start of a word.
    #[error("expected '$', got '{}'", got.escape_ascii())]
    NotAWord {
        /// Byte found instead.
        got: u8,
    },
    /// `$` was not followed by the length of a word.
    #[error("invalid bulk length")]
    WordLength,
    /// The request would exceed the maximum size.
    #[error("invalid bulk length: a request has at most {most} bytes here")]
    TooLong {
        /// The maximum.
        most: usize,
    },
    /// A word was not followed by a line break.
    #[error("expected a line break after the bulk")]
    NoLineBreak,
    /// A line without an end.
    #[error("too big inline request: a line has at most {most} bytes here")]
    LineTooLong {
        /// The maximum.
        most: usize,
    },
    /// Unbalanced quotes, or no whitespace after a closing quote.
    #[error("unbalanced quotes in request")]
    Quotes,
}

/// Words of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestWords<'a> {
    bytes: &'a [u8],
    spans: &'a [WordSpan],
}

impl<'a> RequestWords<'a> {
    pub(super) const fn new(bytes: &'a [u8], spans: &'a [WordSpan]) -> RequestWords<'a> {
        RequestWords { bytes, spans }
    }

    pub(super) const fn len(&self) -> usize {
        self.spans.len()
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).and_then(|span| self.bytes.get(span.begin..span.end))
    }

    /// The words from index `from` on.
    pub(super) fn after(&self, from: usize) -> RequestWords<'a> {
        RequestWords { bytes: self.bytes, spans: self.spans.get(from..).unwrap_or_default() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let RequestWords { bytes, spans } = *self;
        spans.iter().filter_map(move |span| bytes.get(span.begin..span.end))
    }

    /// An owned copy.
    pub(super) fn to_owned(self) -> OwnedWords {
        let mut owned = OwnedWords { bytes: Vec::new(), spans: Spans::new() };
        for word in self.iter() {
            let begin = owned.bytes.len();
            owned.bytes.extend_from_slice(word);
            owned.spans.push(WordSpan { begin, end: owned.bytes.len() });
        }
        owned
    }
}

/// Owned words.
#[derive(Clone, Debug)]
pub(super) struct OwnedWords {
    bytes: Vec<u8>,
    spans: Spans,
}

impl OwnedWords {
    pub(super) fn words(&self) -> RequestWords<'_> {
        RequestWords { bytes: &self.bytes, spans: &self.spans }
    }
}

/// Parses consecutive requests.
#[derive(Debug)]
pub(super) struct RequestReader {
    bounds: RequestBounds,
    spans: Spans,
    stage: ParseStage,
    /// Length of the request parsed or scanned so far.
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParseStage {
    /// Before the first byte.
    Start,
    /// Inside an inline command.
    Line,
    /// Before this many words.
    RequestWords(usize),
    /// Before `words` words, the first of `length` bytes.
    Word { words: usize, length: usize },
}

impl RequestReader {
    pub(super) fn new(bounds: RequestBounds) -> RequestReader {
        RequestReader { bounds, spans: Spans::new(), stage: ParseStage::Start, at: 0 }
    }

    /// Sets the bounds from the next request on.
    pub(super) const fn bound(&mut self, bounds: RequestBounds) {
        self.bounds = bounds;
    }

    /// Parses the request at the start of `bytes`. Returns its length once it is complete. The next call expects the
    /// same bytes with more appended or, after a complete request, the bytes that follow it.
    ///
    /// Quoted words of inline commands are unquoted in place.
    #[inline]
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Result<Option<usize>, ProtocolError> {
        if self.stage == ParseStage::Start {
            self.at = 0;
            self.spans.clear();
            match bytes.first() {
                None => return Ok(None),
                Some(b'*') => match self.number(bytes, ProtocolError::WordCount)? {
                    None => return Ok(None),
                    Some(count) => self.expect(count)?,
                },
                Some(_) => self.stage = ParseStage::Line,
            }
        }
        let done = if self.stage == ParseStage::Line { self.line(bytes)? } else { self.words_of(bytes)? };
        if !done {
            return Ok(None);
        }
        self.stage = ParseStage::Start;
        Ok(Some(self.at))
    }

    /// The words of the request that was just read from `bytes`.
    #[inline]
    pub(super) fn words<'a>(&'a self, bytes: &'a [u8]) -> RequestWords<'a> {
        RequestWords { bytes, spans: &self.spans }
    }

    /// Starts an array. Arrays of zero or negative length are ignored.
    fn expect(&mut self, count: i64) -> Result<(), ProtocolError> {
        let words = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        if words > self.bounds.words {
            return Err(ProtocolError::TooManyWords { most: self.bounds.words });
        }
        self.stage = ParseStage::RequestWords(words);
        Ok(())
    }

    #[inline]
    fn words_of(&mut self, bytes: &[u8]) -> Result<bool, ProtocolError> {
        loop {
            let (words, length) = match self.stage {
                ParseStage::RequestWords(0) => return Ok(true),
                ParseStage::RequestWords(words) => {
                    match bytes.get(self.at) {
                        None => return Ok(false),
                        Some(b'$') => {}
                        Some(&got) => return Err(ProtocolError::NotAWord { got }),
                    }
                    let Some(length) = self.number(bytes, ProtocolError::WordLength)? else { return Ok(false) };
                    let length = usize::try_from(length).map_err(|_| ProtocolError::WordLength)?;
                    let end = self.at.saturating_add(length).saturating_add(2);
                    if end > self.bounds.bytes {
                        return Err(ProtocolError::TooLong { most: self.bounds.bytes });
                    }
                    self.stage = ParseStage::Word { words, length };
                    (words, length)
                }
                ParseStage::Word { words, length } => (words, length),
                ParseStage::Start | ParseStage::Line => return Ok(false),
            };
            let end = self.at + length;
            match bytes.get(end..end + 2) {
                None => return Ok(false),
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::NoLineBreak),
            }
            self.spans.push(WordSpan { begin: self.at, end });
            self.at = end + 2;
            self.stage = ParseStage::RequestWords(words - 1);
        }
    }

    /// Parses the number after the type byte, and advances past its line if that is complete.
    #[inline]
    fn number(&mut self, bytes: &[u8], wrong: ProtocolError) -> Result<Option<i64>, ProtocolError> {
        let rest = bytes.get(self.at + 1..).unwrap_or_default();
        // Fast path: nearly all numbers have one or two digits.
        match rest {
            [a @ b'0'..=b'9', b'\r', b'\n', ..] => {
                self.at += 4;
                return Ok(Some(i64::from(a - b'0')));
            }
            [a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', b'\n', ..] => {
                self.at += 5;
                return Ok(Some(i64::from(a - b'0') * 10 + i64::from(b - b'0')));
            }
            _ => {}
        }
        let examined = &rest[..rest.len().min(LONGEST_COUNT)];
        let Some(end) = examined.iter().position(|&byte| byte == b'\r') else {
            return if examined.len() == LONGEST_COUNT { Err(wrong) } else { Ok(None) };
        };
        match rest.get(end + 1) {
            None => return Ok(None),
            Some(b'\n') => {}
            Some(_) => return Err(wrong),
        }
        let number = integer(&rest[..end]).ok_or(wrong)?;
        self.at += 1 + end + 2;
        Ok(Some(number))
    }

    fn line(&mut self, bytes: &mut [u8]) -> Result<bool, ProtocolError> {
        let most = self.bounds.bytes;
        let fresh = bytes.get(self.at..).unwrap_or_default();
        let Some(end) = fresh.iter().position(|&byte| byte == b'\n').map(|found| self.at + found) else {
            self.at = bytes.len();
            return if bytes.len() >= most { Err(ProtocolError::LineTooLong { most }) } else { Ok(false) };
        };
        if end >= most {
            return Err(ProtocolError::LineTooLong { most });
        }
        let text = if end > 0 && bytes[end - 1] == b'\r' { end - 1 } else { end };
        inline::split(&mut bytes[..text], &mut self.spans).map_err(|inline::Unbalanced| ProtocolError::Quotes)?;
        if self.spans.len() > self.bounds.words {
            return Err(ProtocolError::TooManyWords { most: self.bounds.words });
        }
        self.at = end + 1;
        Ok(true)
    }
}

/// Parses an integer as strictly as Redis: digits after an optional minus, without a plus or leading zeros.
#[inline]
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (digits, negative) = match text {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut number = 0u64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // 19 digits always fit.
        number = number * 10 + u64::from(digit);
    }
    match negative {
        true if number == i64::MIN.unsigned_abs() => Some(i64::MIN),
        true => i64::try_from(number).ok().map(|number| -number),
        false => i64::try_from(number).ok(),
    }
}

/// Parses an integer that may have a `+` or leading zeros, as redis-cell does.
pub(super) fn lenient_integer(text: &[u8]) -> Option<i64> {
    // Fast path: most have neither.
    integer(text).or_else(|| std::str::from_utf8(text).ok()?.parse().ok())
}

/// Parses seconds with an optional fraction, to the microsecond: `60`, `0.5`. Saturates.
#[inline]
pub(super) fn seconds(text: &[u8]) -> Option<Micros> {
    if let Some(whole) = lenient_integer(text) {
        return u64::try_from(whole).ok().map(Micros::from_secs);
    }
    let (whole, fraction) = std::str::from_utf8(text).ok()?.split_once('.')?;
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let micros: u64 = format!("{fraction:0<6}").parse().ok()?;
    let whole: u64 = whole.parse().ok()?;
    Some(Micros::new(whole.saturating_mul(1_000_000).saturating_add(micros)))
}

#[cfg(test)]
mod tests;
