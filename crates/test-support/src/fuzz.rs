//! Fuzz targets: tests that take arbitrary bytes.
//!
//! A target is a test that calls [`target!`](crate::fuzz_target) with a name. Under `cargo test` it runs on its corpus in `fuzz/NAME/corpus`,
//! and then for [`MOMENT`] on random bytes. `make fuzz TARGET=NAME` runs it under libFuzzer, guided by coverage, until it
//! is stopped. Inputs that failed are kept in the corpus under a descriptive name.
//!
//! Files of a corpus are plain input: a rules file is a rules file. Random bytes seldom form valid input, so a target
//! passes the words of its language to [`text`], which replaces non-ASCII bytes by words.

#[doc(hidden)]
pub use bolero;

#[doc(inline)]
pub use crate::fuzz_target as target;

use std::time::Duration;

/// The time for which a target runs on random bytes under `cargo test`.
pub const MOMENT: Duration = Duration::from_secs(1);

/// Starts a fuzz target with this name: `target!("limit").for_each(|bytes: &[u8]| …)`.
#[macro_export]
macro_rules! fuzz_target {
    ($name:literal) => {
        $crate::fuzz::bolero::check!(name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/", $name))
            .with_test_time($crate::fuzz::MOMENT)
    };
}

/// Escapes a non-ASCII byte, so that it is not replaced by a word.
const ITSELF: u8 = 0xFF;

/// Replaces non-ASCII bytes by words. `0xFF` escapes the next byte.
///
/// ```
/// let words = ["rules:", "limit: "];
/// assert_eq!(tidegate_test_support::fuzz::text(b"\x80\n- \x811/s", &words), b"rules:\n- limit: 1/s");
/// assert_eq!(tidegate_test_support::fuzz::text(b"\xff\xc3\xff\xa9", &words), "é".as_bytes());
/// ```
#[must_use]
pub fn text(bytes: &[u8], words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    let mut bytes = bytes.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            ITSELF => text.extend(bytes.next()),
            0x80.. if !words.is_empty() => {
                text.extend_from_slice(words[usize::from(byte - 0x80) % words.len()].as_ref());
            }
            _ => text.push(byte),
        }
    }
    text
}

/// The bytes split into pieces in four ways: as a whole, byte by byte, and with two sizes derived from the bytes.
pub fn in_pieces(bytes: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let sum = bytes.iter().fold(7_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    let length = bytes.len().max(1);
    [length, 1, 2 + sum % 7, 1 + sum % length].into_iter().map(|size| bytes.chunks(size).collect())
}
