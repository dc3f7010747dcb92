//! Minimal parser of ASN.1 (DER), for public keys and certificates.

/// Reads consecutive values.
#[derive(Clone, Copy)]
pub(crate) struct Der<'d>(&'d [u8]);

pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

impl<'d> Der<'d> {
    pub(crate) const fn new(bytes: &'d [u8]) -> Der<'d> {
        Der(bytes)
    }

    /// The next value with its tag; `None` at the end, and if it is malformed.
    pub(crate) fn next(&mut self) -> Option<(u8, &'d [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    /// The next value, if it has this tag.
    pub(crate) fn value(&mut self, wanted: u8) -> Option<&'d [u8]> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, value)| value)
    }

    /// Contents of the next value, if it has this tag.
    pub(crate) fn inside(&mut self, wanted: u8) -> Option<Der<'d>> {
        self.value(wanted).map(Der)
    }

    pub(crate) const fn is_at_end(self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_read_in_their_order() {
        let mut der = Der::new(&[0x30, 3, 0x06, 1, 7, 0x03, 0x81, 2, 8, 9]);
        assert_eq!(der.inside(SEQUENCE).and_then(|mut inner| inner.value(OBJECT_IDENTIFIER)), Some(&[7][..]));
        assert_eq!(der.value(BIT_STRING), Some(&[8, 9][..]));
        assert!(der.is_at_end());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes: Vec<u8>) {
            let mut der = Der::new(&bytes);
            let mut read = 0;
            while let Some((_, value)) = der.next() {
                read += 2 + value.len();
            }
            prop_assert!(read <= bytes.len());
        }
    }
}
