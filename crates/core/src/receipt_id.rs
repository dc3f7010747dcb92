//! Ids of admissions.

use std::fmt;
use std::str::FromStr;

/// The id of one admission of a store.
///
/// Any caller that knows an id can settle its admission, so stores draw ids that cannot be guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiptId(u128);

impl ReceiptId {
    /// The id of admissions that are never settled.
    pub const ANONYMOUS: ReceiptId = ReceiptId(0);

    /// The id with this number.
    #[must_use]
    pub const fn new(id: u128) -> ReceiptId {
        ReceiptId(id)
    }

    /// The number of this id.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ReceiptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The error for text that is not the id of a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptIdError;

impl fmt::Display for ReceiptIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a receipt's id is 32 hexadecimal digits")
    }
}

impl std::error::Error for ReceiptIdError {}

impl FromStr for ReceiptId {
    type Err = ReceiptIdError;

    fn from_str(text: &str) -> Result<ReceiptId, ReceiptIdError> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ReceiptIdError);
        }
        u128::from_str_radix(text, 16).map(ReceiptId).map_err(|_| ReceiptIdError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_and_read_alike() {
        let id = ReceiptId::new(0x0123_4567_89ab_cdef);
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in ["", "12", "+0000000000000000000000000000001", &"g".repeat(32), &"1".repeat(33)] {
            assert_eq!(wrong.parse::<ReceiptId>(), Err(ReceiptIdError), "{wrong}");
        }
    }
}
