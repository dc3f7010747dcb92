//! Unsigned LEB128: numbers as seven bits per byte, lowest first.

/// Appends a number. The last byte is below 128.
pub fn write(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Reads a number, and moves `bytes` past it. `None` if the bytes end within the number, or if it has more than 64 bits.
pub fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_take_a_byte_for_seven_bits() {
        for (number, length) in [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (u64::MAX, 10)] {
            let mut bytes = Vec::new();
            write(&mut bytes, number);
            assert_eq!(bytes.len(), length, "{number}");
            assert_eq!(read(&mut bytes.as_slice()), Some(number));
        }
    }

    #[test]
    fn numbers_that_end_early_or_have_too_many_bits_are_refused() {
        assert_eq!(read(&mut [].as_slice()), None);
        assert_eq!(read(&mut [0x80].as_slice()), None);
        let mut too_wide = [0xff; 10];
        too_wide[9] = 2;
        assert_eq!(read(&mut too_wide.as_slice()), None);
        assert_eq!(read(&mut [0x80; 11].as_slice()), None);
    }

    proptest! {
        #[test]
        fn numbers_round_trip(numbers: Vec<u64>) {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| write(&mut bytes, *number));
            let mut rest = bytes.as_slice();
            for number in numbers {
                prop_assert_eq!(read(&mut rest), Some(number));
            }
            prop_assert!(rest.is_empty());
        }
    }
}
