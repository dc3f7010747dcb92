//! Formatting of numbers and times for people.

use tidegate_core::time::Date;
use tidegate_core::{Micros, Timestamp};

use crate::replay::report::UnkeyedRequests;

/// Formats a number such as `1 234 567`.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Formats a share such as `2.81 %`. A share that is neither 0 nor 1 is never shown as `0 %` or `100 %`.
pub(super) fn share(part: u64, whole: u64) -> String {
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    match percent {
        _ if part == 0 => "0 %".to_owned(),
        _ if part == whole => "100 %".to_owned(),
        percent if percent < 0.01 => "< 0.01 %".to_owned(),
        percent if percent > 99.99 => "> 99.99 %".to_owned(),
        percent => format!("{percent:.2} %"),
    }
}

/// Formats an instant such as `2026-11-15 09:22:00`, in UTC.
pub(super) fn instant(micros: u64) -> String {
    let (Date { year, month, day }, time) = Date::of(Timestamp::from_micros(micros));
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", time / 3_600, time / 60 % 60, time % 60)
}

/// Formats a span such as `1s`, `2min` or `1.5ms`.
pub(super) fn span(micros: u64) -> String {
    match micros {
        0..10_000 => Micros::new(micros).to_string(),
        10_000..1_000_000 => format!("{}ms", micros.div_ceil(1_000)),
        1_000_000..100_000_000 if !micros.is_multiple_of(1_000_000) => format!("{:.1}s", micros as f64 / 1e6),
        1_000_000..120_000_000 => format!("{}s", micros / 1_000_000),
        120_000_000..7_200_000_000 => format!("{}min", micros.div_ceil(60_000_000)),
        7_200_000_000..172_800_000_000 => format!("{:.1}h", micros as f64 / 3.6e9),
        _ => format!("{:.1}day", micros as f64 / 8.64e10),
    }
}

/// Untrusted text without control characters, truncated.
pub(super) fn plain(text: &str, longest: usize) -> String {
    let mut plain: String = text.chars().take(longest).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(longest).is_some() {
        plain.push('…');
    }
    plain
}

/// A note on requests that lack the key of a rule. `is_alone` if the rule only supplies the key.
pub(super) fn unkeyed_note(unkeyed: &UnkeyedRequests, is_alone: bool) -> String {
    let UnkeyedRequests { rule, key, requests, of } = unkeyed;
    let lacking = match requests.cmp(of) {
        std::cmp::Ordering::Less => format!("{} of {} have no", number(*requests), count(*of, "request")),
        _ => "no request in the log has a".to_owned(),
    };
    let whose = if is_alone { String::new() } else { format!(", the key of {rule}") };
    format!("{lacking} `{}`{whose}: such requests count as one key", key.join("`, `"))
}

/// Formats a count such as `1 line` or `2 lines`.
pub(super) fn count(of: u64, what: &str) -> String {
    format!("{} {what}{}", number(of), if of == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_read_well() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1 000", "1 234 567"]);
        assert_eq!(share(0, 5), "0 %");
        assert_eq!(share(1, 1_000_000), "< 0.01 %");
        assert_eq!(share(999_999, 1_000_000), "> 99.99 %");
        assert_eq!(share(1, 66), "1.52 %");
        assert_eq!(share(999, 1_000), "99.90 %");
        assert_eq!(instant(0), "1970-01-01 00:00:00");
        assert_eq!(instant(1_709_208_000_000_000), "2024-02-29 12:00:00");
        assert_eq!(instant(951_782_399_000_000), "2000-02-28 23:59:59");
        assert_eq!(instant(4_107_542_400_000_000), "2100-03-01 00:00:00");
        assert_eq!(
            [1_500, 250_000, 1_000_000, 1_500_000, 7_200_000_000].map(span),
            ["1.5ms", "250ms", "1s", "1.5s", "2.0h"]
        );
        assert_eq!(plain("a\u{1b}[31mb", 9), "a\u{fffd}[31mb");
        assert_eq!(plain("abcdef", 3), "abc…");
    }
}
