//! Receipts as text, kept by clients.
//!
//! The text contains everything that a store needs to settle an admission, so that any node of a fleet can settle it,
//! even one that was started later. Its holder can settle this admission and no other: the id cannot be guessed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_core::limit::ChargeMark;
use tidegate_core::receipt::{Held, ReceiptId};
use tidegate_core::{Key, Limit, Receipt, RuleId, varint};

/// Version of the format, stored in the first byte.
const VERSION: u8 = 1;
/// Maximum length of a receipt's text.
const LONGEST: usize = 64 * 1_024;

/// Text that is not a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a receipt: send it exactly as it was received")]
pub struct NotAReceipt;

/// Encodes the receipts of a request as one word. `None` if there is nothing to settle.
#[must_use]
pub fn write(receipts: &[Receipt]) -> Option<String> {
    if receipts.is_empty() {
        return None;
    }
    let mut bytes = vec![VERSION];
    varint::write(&mut bytes, receipts.len() as u64);
    for Receipt { id, held } in receipts {
        bytes.extend_from_slice(&id.get().to_be_bytes());
        varint::write(&mut bytes, held.len() as u64);
        for Held { rule, key, limit, taken, mark } in held {
            text(&mut bytes, rule.as_str().as_bytes());
            varint::write(&mut bytes, key.parts().count() as u64);
            key.parts().for_each(|part| text(&mut bytes, part));
            text(&mut bytes, limit.to_string().as_bytes());
            varint::write(&mut bytes, *taken);
            varint::write(&mut bytes, mark.0);
            varint::write(&mut bytes, mark.1);
        }
    }
    Some(URL_SAFE_NO_PAD.encode(bytes))
}

/// Decodes receipts.
///
/// # Errors
/// If the text is not a receipt.
pub fn read(word: &[u8]) -> Result<Vec<Receipt>, NotAReceipt> {
    if word.len() > LONGEST {
        return Err(NotAReceipt);
    }
    let bytes = URL_SAFE_NO_PAD.decode(word).map_err(|_| NotAReceipt)?;
    let mut rest = ByteReader(&bytes);
    let receipts = rest.receipts().ok_or(NotAReceipt)?;
    if rest.0.is_empty() { Ok(receipts) } else { Err(NotAReceipt) }
}

fn text(bytes: &mut Vec<u8>, text: &[u8]) {
    varint::write(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

/// Remaining bytes of a text.
struct ByteReader<'b>(&'b [u8]);

impl<'b> ByteReader<'b> {
    fn receipts(&mut self) -> Option<Vec<Receipt>> {
        if self.take(1)? != [VERSION] {
            return None;
        }
        (0..self.count()?).map(|_| self.receipt()).collect()
    }

    fn receipt(&mut self) -> Option<Receipt> {
        let id = ReceiptId::new(u128::from_be_bytes(self.take(16)?.try_into().ok()?));
        let held = (0..self.count()?).map(|_| self.held()).collect::<Option<_>>()?;
        Some(Receipt { id, held })
    }

    fn held(&mut self) -> Option<Held> {
        let rule = RuleId::new(std::str::from_utf8(self.text()?).ok()?);
        let parts = (0..self.count()?).map(|_| self.text()).collect::<Option<Vec<_>>>()?;
        let limit: Limit = std::str::from_utf8(self.text()?).ok()?.parse().ok()?;
        let (taken, mark) = (self.number()?, ChargeMark(self.number()?, self.number()?));
        Some(Held { rule, key: Key::of(parts), limit, taken, mark })
    }

    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn text(&mut self) -> Option<&'b [u8]> {
        let length = self.count()?;
        self.take(length)
    }

    /// Reads a number of items. Each takes at least one byte, so their number is at most that of the remaining bytes.
    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= self.0.len())
    }

    fn number(&mut self) -> Option<u64> {
        varint::read(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_test_support::fuzz::{target, text};

    use super::*;

    fn receipt(id: u128, held: Vec<Held>) -> Receipt {
        Receipt { id: ReceiptId::new(id), held }
    }

    fn held(rule: &str, parts: &[&str], limit: &str, taken: u64, mark: ChargeMark) -> Held {
        Held { rule: RuleId::new(rule), key: Key::of(parts), limit: limit.parse().unwrap(), taken, mark }
    }

    #[test]
    fn receipts_round_trip() {
        let one = receipt(7, vec![held("r", &["alice"], "concurrent 10 ttl 30s", 1, ChargeMark(0, 0))]);
        let two = receipt(
            u128::MAX,
            vec![
                held("a", &[], "20/s burst 50", u64::MAX, ChargeMark(1, u64::MAX)),
                held("b.hourly", &["", "x,y", &"z".repeat(300)], "shaper 10/s queue 50", 127, ChargeMark(128, 1 << 40)),
            ],
        );
        for receipts in [vec![one.clone()], vec![two.clone()], vec![one, two]] {
            let word = write(&receipts).unwrap();
            assert!(word.bytes().all(|byte| byte.is_ascii_graphic()));
            assert_eq!(read(word.as_bytes()), Ok(receipts));
        }
        assert_eq!(write(&[]), None);
    }

    #[test]
    fn truncated_or_extended_text_is_not_a_receipt() {
        let word = write(&[receipt(7, vec![held("r", &["alice"], "10/s", 1, ChargeMark(0, 0))])]).unwrap();
        for end in 0..word.len() {
            assert_eq!(read(&word.as_bytes()[..end]), Err(NotAReceipt));
        }
        assert_eq!(read(format!("{word}AAAA").as_bytes()), Err(NotAReceipt));
        assert_eq!(read(&[b'A'; 2 * LONGEST]), Err(NotAReceipt));
    }

    /// Any bytes are either rejected or round-trip.
    #[test]
    fn any_bytes_are_a_receipt_or_not() {
        target!("receipt").for_each(|bytes: &[u8]| {
            // The input is tried both as text and as decoded bytes.
            for word in [bytes.to_vec(), URL_SAFE_NO_PAD.encode(text(bytes, &[&[VERSION]])).into_bytes()] {
                let Ok(receipts) = read(&word) else { continue };
                let held: usize = receipts.iter().map(|receipt| receipt.held.len()).sum();
                assert!(receipts.len() + held <= word.len());
                if let Some(written) = write(&receipts) {
                    assert_eq!(read(written.as_bytes()), Ok(receipts));
                }
            }
        });
    }
}
