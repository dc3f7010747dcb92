//! What a request really cost, as its response says.

use std::fmt;

use super::field::FieldPath;
use crate::time::MAX_EXACT;

/// Where a response says what its request really cost: one place, or several whose numbers are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    terms: Vec<SettleTerm>,
}

/// One place, and what each unit there costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleTerm {
    /// Where the number stands.
    pub from: SettleSource,
    /// What it is multiplied by.
    pub times: u64,
}

/// A place in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleSource {
    /// A header, by its name in small letters.
    Header(String),
    /// A field of its body, which is JSON or a stream of events with JSON in them.
    Body(FieldPath),
}

impl Settle {
    pub(super) fn new(terms: Vec<SettleTerm>) -> Settle {
        Settle { terms }
    }

    /// The places.
    #[must_use]
    pub fn terms(&self) -> &[SettleTerm] {
        &self.terms
    }

    /// What a request cost, by what `read` finds in each place: numbers as they are written. Places without a number count
    /// for nothing; `None` if none has any.
    ///
    /// ```
    /// use tidegate_core::Request;
    /// use tidegate_core::rules::{RuleSet, SettleSource};
    ///
    /// let rules = RuleSet::parse("rules.yaml", "
    /// rules:
    ///   - id: money
    ///     limit: { limit: fixed 5_000_000/day, settle: { body:usage.cost: 1_000_000 } }
    /// ")?;
    /// let request = Request::new("POST", "/v1/chat/completions");
    /// let matched = rules.rules.matching(&request);
    /// let (limit, settle) = matched.settled().next().ok_or("it is settled")?;
    /// assert_eq!(limit.as_str(), "money");
    /// assert_eq!(settle.cost(|_| Some("0.0123")), Some(12_300));
    /// assert_eq!(settle.cost(|_| None::<&str>), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cost<T: AsRef<str>>(&self, read: impl Fn(&SettleSource) -> Option<T>) -> Option<u64> {
        let said = self.terms.iter().filter_map(|term| multiplied(read(&term.from)?.as_ref(), term.times));
        said.reduce(u64::saturating_add).map(|cost| cost.min(MAX_EXACT))
    }
}

impl fmt::Display for SettleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettleSource::Header(name) => write!(f, "header:{name}"),
            SettleSource::Body(path) => write!(f, "body:{path}"),
        }
    }
}

impl fmt::Display for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let plus = if index == 0 { "" } else { " + " };
            match term.times {
                1 => write!(f, "{plus}{}", term.from)?,
                times => write!(f, "{plus}{times} × {}", term.from)?,
            }
        }
        Ok(())
    }
}

/// A decimal number, times a whole one, rounded up to a whole one. `None` if it is none, or negative.
fn multiplied(number: &str, times: u64) -> Option<u64> {
    let (digits, exponent) = match number.trim().split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (number.trim(), 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    // Digits beyond these are far below what is counted, or far above.
    const MOST_DIGITS: usize = 18;
    let significant = whole.bytes().chain(fraction.bytes()).skip_while(|byte| *byte == b'0');
    let kept = significant.clone().take(MOST_DIGITS);
    let dropped = significant.clone().skip(MOST_DIGITS);
    let mantissa = kept.fold(0_u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
    let is_more = dropped.clone().any(|digit| digit != b'0');
    let dropped = i32::try_from(dropped.count()).ok()?;
    let power = exponent.checked_add(dropped)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    // What was dropped only rounds up.
    let product = (mantissa + u128::from(is_more)) * u128::from(times);
    if product == 0 {
        return Some(0);
    }
    let most = u128::from(MAX_EXACT);
    let ten_to = |power: u32| 10_u128.checked_pow(power);
    let scaled = match u32::try_from(power) {
        Ok(power) => ten_to(power).and_then(|scale| product.checked_mul(scale)).unwrap_or(most),
        Err(_) => ten_to(power.unsigned_abs()).map_or(1, |scale| product.div_ceil(scale)),
    };
    u64::try_from(scaled.min(most)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_multiplied_exactly_and_rounded_up() {
        for (number, times, product) in [
            ("480", 1, Some(480)),
            (" 480 ", 3, Some(1_440)),
            ("0", 5, Some(0)),
            ("0.000", 5, Some(0)),
            ("12.0", 1, Some(12)),
            ("12.1", 1, Some(13)),
            ("0.1", 10, Some(1)),
            ("0.0123", 1_000_000, Some(12_300)),
            ("1.5e3", 1, Some(1_500)),
            ("15E-1", 2, Some(3)),
            ("1e-400", 1, Some(1)),
            ("1e400", 1, Some(MAX_EXACT)),
            ("0e400", 1, Some(0)),
            ("99999999999999999999999", 7, Some(MAX_EXACT)),
            ("0.30000000000000000000000000000000004", 10, Some(4)),
            ("0.30000000000000000000000000000000000", 10, Some(3)),
            ("5", 0, Some(0)),
            ("-1", 1, None),
            ("+1", 1, None),
            ("", 1, None),
            (".5", 1, None),
            ("1e", 1, None),
            ("1e99999999999", 1, None),
            ("0x10", 1, None),
            ("12 tokens", 1, None),
        ] {
            assert_eq!(multiplied(number, times), product, "{number} times {times}");
        }
    }
}
