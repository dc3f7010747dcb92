//! Decimal numbers.

use tidegate_core::time::MAX_EXACT;

/// Parses a decimal number and multiplies it by `times`, rounded up to an integer. `None` if the text is not a number, or
/// negative.
pub(crate) fn multiplied(number: &str, times: u64) -> Option<u64> {
    let (digits, exponent) = match number.trim().split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, power(exponent)?),
        None => (number.trim(), 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    // Digits beyond these are insignificant, or make the number too large to count.
    const MOST_DIGITS: usize = 18;
    let significant = whole.bytes().chain(fraction.bytes()).skip_while(|byte| *byte == b'0');
    let kept = significant.clone().take(MOST_DIGITS);
    let dropped = significant.clone().skip(MOST_DIGITS);
    let mantissa = kept.fold(0_u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
    let is_more = dropped.clone().any(|digit| digit != b'0');
    let dropped = i32::try_from(dropped.count()).ok()?;
    let power = exponent.saturating_add(dropped).saturating_sub(i32::try_from(fraction.len()).ok()?);
    // Dropped digits only round up.
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

/// Parses an exponent. An extremely large one is clamped.
fn power(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let most = if text.starts_with('-') { i32::MIN } else { i32::MAX };
    Some(text.parse().unwrap_or(most))
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
            ("1e99999999999", 1, Some(MAX_EXACT)),
            ("1e-99999999999", 1, Some(1)),
            ("0e99999999999", 1, Some(0)),
            ("1.5e+2", 1, Some(150)),
            ("1e+-2", 1, None),
            ("0x10", 1, None),
            ("12 tokens", 1, None),
        ] {
            assert_eq!(multiplied(number, times), product, "{number} times {times}");
        }
    }
}
