//! JSON in other encodings than UTF-8.

/// Turns JSON in UTF-16 or UTF-32, with or without a byte order mark, into UTF-8, and takes the mark off UTF-8. It comes in
/// pieces of any size.
///
/// The first two characters of an object are ASCII, so the zeros among the first four bytes tell the encoding (as RFC 4627,
/// section 3 says).
#[derive(Debug, Default)]
pub(super) struct Decoder {
    form: Option<Form>,
    /// Bytes of a character, or of the beginning, that is not whole yet.
    begun: [u8; 4],
    count: usize,
    /// The first half of a pair of UTF-16.
    high: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Utf8,
    Utf16 { big_endian: bool },
    Utf32 { big_endian: bool },
}

impl Form {
    /// The form of a text that begins like this, and how many bytes its mark takes.
    const fn of(beginning: [u8; 4]) -> (Form, usize) {
        match beginning {
            [0, 0, 0xFE, 0xFF] => (Form::Utf32 { big_endian: true }, 4),
            [0xFF, 0xFE, 0, 0] => (Form::Utf32 { big_endian: false }, 4),
            [0xFE, 0xFF, ..] => (Form::Utf16 { big_endian: true }, 2),
            [0xFF, 0xFE, ..] => (Form::Utf16 { big_endian: false }, 2),
            [0xEF, 0xBB, 0xBF, _] => (Form::Utf8, 3),
            [0, 0, 0, _] => (Form::Utf32 { big_endian: true }, 0),
            [_, 0, 0, 0] => (Form::Utf32 { big_endian: false }, 0),
            [0, _, 0, _] => (Form::Utf16 { big_endian: true }, 0),
            [_, 0, _, 0] => (Form::Utf16 { big_endian: false }, 0),
            _ => (Form::Utf8, 0),
        }
    }
}

impl Decoder {
    /// Hands the next piece on in UTF-8.
    pub(super) fn feed(&mut self, mut bytes: &[u8], next: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            match self.form {
                Some(Form::Utf8) => return next(bytes),
                Some(Form::Utf16 { big_endian }) => {
                    if let Some(unit) = self.take::<2>(&mut bytes) {
                        let unit = if big_endian { u16::from_be_bytes(unit) } else { u16::from_le_bytes(unit) };
                        self.unit(unit, next);
                    }
                }
                Some(Form::Utf32 { big_endian }) => {
                    if let Some(unit) = self.take::<4>(&mut bytes) {
                        let unit = if big_endian { u32::from_be_bytes(unit) } else { u32::from_le_bytes(unit) };
                        character(char::from_u32(unit), next);
                    }
                }
                None => {
                    if let Some(beginning) = self.take::<4>(&mut bytes) {
                        let (form, mark) = Form::of(beginning);
                        self.form = Some(form);
                        self.feed(&beginning[mark..], next);
                    }
                }
            }
        }
    }

    /// The next `N` bytes, once all have come.
    fn take<const N: usize>(&mut self, bytes: &mut &[u8]) -> Option<[u8; N]> {
        while self.count < N {
            let (&first, rest) = bytes.split_first()?;
            self.begun[self.count] = first;
            self.count += 1;
            *bytes = rest;
        }
        self.count = 0;
        self.begun.first_chunk().copied()
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

/// A character, or the mark of one that cannot be read.
fn character(char: Option<char>, next: &mut dyn FnMut(&[u8])) {
    next(char.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "{\"é€😀\": [1]}";

    fn decoded(bytes: &[u8], size: usize) -> String {
        let (mut decoder, mut text) = (Decoder::default(), Vec::new());
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
    fn halves_of_characters_are_marked() {
        let bytes: Vec<u8> =
            [0x7B, 0x22, 0xD800, 0xD800, 0x41, 0xDC00].into_iter().flat_map(u16::to_be_bytes).collect();
        assert_eq!(decoded(&bytes, 3), "{\"\u{fffd}\u{fffd}A\u{fffd}");
    }
}
