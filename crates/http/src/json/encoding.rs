//! Decodes JSON in UTF-16 and UTF-32.

/// Converts JSON in UTF-16 or UTF-32 into UTF-8, and removes a byte order mark. The input arrives in pieces of any size.
///
/// The first two characters of an object are ASCII, so the zeros among the first four bytes identify the encoding (RFC 4627,
/// section 3).
#[derive(Debug, Default)]
pub(super) struct StringDecoder {
    encoding: Option<Encoding>,
    /// Bytes of an incomplete character, or of the first four bytes.
    partial: [u8; 4],
    count: usize,
    /// The high surrogate of an incomplete pair.
    high: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Utf8,
    Utf16 { big_endian: bool },
    Utf32 { big_endian: bool },
}

impl Encoding {
    /// The encoding of a text with these first bytes, and the length of its byte order mark.
    const fn of(beginning: [u8; 4]) -> (Encoding, usize) {
        match beginning {
            [0, 0, 0xFE, 0xFF] => (Encoding::Utf32 { big_endian: true }, 4),
            [0xFF, 0xFE, 0, 0] => (Encoding::Utf32 { big_endian: false }, 4),
            [0xFE, 0xFF, ..] => (Encoding::Utf16 { big_endian: true }, 2),
            [0xFF, 0xFE, ..] => (Encoding::Utf16 { big_endian: false }, 2),
            [0xEF, 0xBB, 0xBF, _] => (Encoding::Utf8, 3),
            [0, 0, 0, _] => (Encoding::Utf32 { big_endian: true }, 0),
            [_, 0, 0, 0] => (Encoding::Utf32 { big_endian: false }, 0),
            [0, _, 0, _] => (Encoding::Utf16 { big_endian: true }, 0),
            [_, 0, _, 0] => (Encoding::Utf16 { big_endian: false }, 0),
            _ => (Encoding::Utf8, 0),
        }
    }
}

impl StringDecoder {
    /// Decodes the next piece, and passes it to `next` in UTF-8.
    pub(super) fn feed(&mut self, mut bytes: &[u8], next: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            match self.encoding {
                Some(Encoding::Utf8) => return next(bytes),
                Some(Encoding::Utf16 { big_endian }) => {
                    if let Some(unit) = self.take::<2>(&mut bytes) {
                        let unit = if big_endian { u16::from_be_bytes(unit) } else { u16::from_le_bytes(unit) };
                        self.unit(unit, next);
                    }
                }
                Some(Encoding::Utf32 { big_endian }) => {
                    if let Some(unit) = self.take::<4>(&mut bytes) {
                        let unit = if big_endian { u32::from_be_bytes(unit) } else { u32::from_le_bytes(unit) };
                        character(char::from_u32(unit), next);
                    }
                }
                None => {
                    if let Some(beginning) = self.take::<4>(&mut bytes) {
                        let (encoding, mark) = Encoding::of(beginning);
                        self.encoding = Some(encoding);
                        self.feed(&beginning[mark..], next);
                    }
                }
            }
        }
    }

    /// The next `N` bytes, once all have arrived.
    fn take<const N: usize>(&mut self, bytes: &mut &[u8]) -> Option<[u8; N]> {
        while self.count < N {
            let (&first, rest) = bytes.split_first()?;
            self.partial[self.count] = first;
            self.count += 1;
            *bytes = rest;
        }
        self.count = 0;
        self.partial.first_chunk().copied()
    }

    fn unit(&mut self, unit: u16, next: &mut dyn FnMut(&[u8])) {
        if (0xD800..0xDC00).contains(&unit) {
            if self.high.replace(unit).is_some() {
                character(None, next);
            }
            return;
        }
        for decoded in char::decode_utf16(self.high.take().into_iter().chain([unit])) {
            character(decoded.ok(), next);
        }
    }
}

/// Passes a character to `next`, or U+FFFD for an invalid one.
fn character(char: Option<char>, next: &mut dyn FnMut(&[u8])) {
    next(char.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "{\"é€😀\": [1]}";

    fn decoded(bytes: &[u8], size: usize) -> String {
        let (mut decoder, mut text) = (StringDecoder::default(), Vec::new());
        bytes.chunks(size).for_each(|piece| decoder.feed(piece, &mut |utf8| text.extend_from_slice(utf8)));
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn every_encoding_becomes_utf_8_in_whatever_pieces() {
        let utf16 = |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<_>>();
        let utf32 =
            |text: &str, bytes: fn(u32) -> [u8; 4]| text.chars().flat_map(|c| bytes(c.into())).collect::<Vec<_>>();
        for text in [TEXT.to_owned(), format!("\u{feff}{TEXT}")] {
            for bytes in [
                text.clone().into_bytes(),
                utf16(&text, u16::to_be_bytes),
                utf16(&text, u16::to_le_bytes),
                utf32(&text, u32::to_be_bytes),
                utf32(&text, u32::to_le_bytes),
            ] {
                for size in 1..=bytes.len() {
                    assert_eq!(decoded(&bytes, size), TEXT, "{bytes:?} in pieces of {size}");
                }
            }
        }
    }

    #[test]
    fn unpaired_surrogates_become_replacement_characters() {
        let bytes: Vec<u8> =
            [0x7B, 0x22, 0xD800, 0xD800, 0x41, 0xDC00].into_iter().flat_map(u16::to_be_bytes).collect();
        assert_eq!(decoded(&bytes, 3), "{\"\u{fffd}\u{fffd}A\u{fffd}");
    }
}
