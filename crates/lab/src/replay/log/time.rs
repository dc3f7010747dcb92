//! Times in logs.

use std::cell::Cell;

use tidegate_core::Timestamp;
use tidegate_core::time::Date;

/// An instant, and whether it is known only to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogTime {
    pub(super) at: Timestamp,
    pub(super) whole: bool,
}

/// Days from the epoch to a day of the calendar, or `None` if there is no such day. Before 1970 it is negative.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let part = |number: i64| u64::try_from(number).ok();
    Date::new(part(year)?, part(month)?, part(day)?).map(Date::days_since_epoch)
}

fn number(digits: &[u8]) -> Option<i64> {
    let digit = |sum: Option<i64>, byte: &u8| {
        sum.filter(|_| byte.is_ascii_digit()).map(|sum| sum * 10 + i64::from(byte - b'0'))
    };
    digits.iter().fold(Some(0), digit)
}

/// Seconds since the epoch of a day, a time `HH:MM:SS` and a zone in seconds east.
fn seconds(day: i64, time: &[u8], east: i64) -> Option<u64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = *time else { return None };
    let (hour, minute, second) = (number(&[h1, h2])?, number(&[m1, m2])?, number(&[s1, s2])?);
    // A leap second counts as the first second of the next minute.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    u64::try_from(day * 86_400 + hour * 3_600 + minute * 60 + second - east).ok()
}

/// `Z`, `+0200` or `+02:00`, in seconds east.
fn zone(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        b"Z" | b"z" => return Some(0),
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match *digits {
        [a, b, c, d] | [a, b, b':', c, d] => (number(&[a, b])?, number(&[c, d])?),
        [a, b] => (number(&[a, b])?, 0),
        _ => return None,
    };
    (hours <= 15 && minutes <= 59).then_some(sign * (hours * 3_600 + minutes * 60))
}

/// `10/Oct/2000:13:55:36 -0700`, as in common and combined logs.
pub(super) fn common(text: &[u8]) -> Option<Timestamp> {
    let [d1, d2, b'/', m1, m2, m3, b'/', y1, y2, y3, y4, b':', time @ ..] = text else { return None };
    let month = match [*m1, *m2, *m3] {
        [b'J', b'a', b'n'] => 1,
        [b'F', b'e', b'b'] => 2,
        [b'M', b'a', b'r'] => 3,
        [b'A', b'p', b'r'] => 4,
        [b'M', b'a', b'y'] => 5,
        [b'J', b'u', b'n'] => 6,
        [b'J', b'u', b'l'] => 7,
        [b'A', b'u', b'g'] => 8,
        [b'S', b'e', b'p'] => 9,
        [b'O', b'c', b't'] => 10,
        [b'N', b'o', b'v'] => 11,
        [b'D', b'e', b'c'] => 12,
        _ => return None,
    };
    let day = days(number(&[*y1, *y2, *y3, *y4])?, month, number(&[*d1, *d2])?)?;
    let (time, rest) = time.split_at_checked(8)?;
    let east = zone(rest.strip_prefix(b" ")?)?;
    seconds(day, time, east).map(Timestamp::from_secs)
}

/// RFC 3339, such as `2026-11-15T09:22:00.123Z`. A space instead of `T`, and a zone without a colon, are allowed.
fn rfc3339(text: &[u8]) -> Option<LogTime> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' ', rest @ ..] = text else { return None };
    let day = days(number(&[*y1, *y2, *y3, *y4])?, number(&[*m1, *m2])?, number(&[*d1, *d2])?)?;
    let (time, rest) = rest.split_at_checked(8)?;
    let (fraction, rest) = match rest {
        [b'.' | b',', rest @ ..] => rest.split_at(rest.iter().take_while(|byte| byte.is_ascii_digit()).count()),
        rest => (&[][..], rest),
    };
    let east = zone(rest.strip_prefix(b" ").unwrap_or(rest))?;
    let seconds = seconds(day, time, east)?;
    let at = Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros(fraction)));
    Some(LogTime { at, whole: fraction.is_empty() })
}

/// The first six digits after a decimal point.
fn micros(fraction: &[u8]) -> u64 {
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(6);
    digits.fold(0, |micros, digit| micros * 10 + u64::from(digit - b'0'))
}

/// Unix time, such as `1763198520` or `1763198520.123`, or in milliseconds or microseconds, distinguished by magnitude.
pub(super) fn unix(text: &[u8]) -> Option<LogTime> {
    let whole = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, fraction) = text.split_at(whole);
    let fraction = match fraction {
        [] => fraction,
        [b'.', fraction @ ..] if fraction.iter().all(u8::is_ascii_digit) => fraction,
        // Some programs write an exponent: 1.7631985e9.
        rest if rest.iter().any(|byte| matches!(byte, b'e' | b'E')) => return exponent(text),
        _ => return None,
    };
    if digits.is_empty() || digits.len() > 17 {
        return None;
    }
    let number = u64::try_from(number(digits)?).ok()?;
    let (at, whole) = match number {
        0..100_000_000_000 => (number.saturating_mul(1_000_000).saturating_add(micros(fraction)), fraction.is_empty()),
        100_000_000_000..100_000_000_000_000 => (number * 1_000, false),
        _ => (number, false),
    };
    Some(LogTime { at: Timestamp::from_micros(at), whole })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just before")]
fn exponent(text: &[u8]) -> Option<LogTime> {
    let seconds: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let in_reach = (0.0..9e9).contains(&seconds);
    in_reach.then(|| LogTime { at: Timestamp::from_micros((seconds * 1e6) as u64), whole: seconds.fract() == 0.0 })
}

/// A time in any of the forms above.
pub(super) fn any(text: &[u8]) -> Option<LogTime> {
    match text {
        [_, _, _, _, b'-', ..] => rfc3339(text),
        [_, _, b'/', ..] => common(text).map(|at| LogTime { at, whole: true }),
        _ => unix(text),
    }
}

/// Parses times with a cache of the last one: in a busy log most lines have the same second as the previous line.
#[derive(Debug, Default)]
pub(super) struct TimeParser {
    last: Cell<([u8; 26], Timestamp)>,
}

impl TimeParser {
    #[inline]
    pub(super) fn common(&self, text: &[u8]) -> Option<Timestamp> {
        let Ok(whole) = <[u8; 26]>::try_from(text) else { return common(text) };
        let (last, at) = self.last.get();
        if whole == last {
            return Some(at);
        }
        let at = common(text)?;
        self.last.set((whole, at));
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Option<u64> {
        any(text.as_bytes()).map(|stamp| stamp.at.as_micros())
    }

    #[test]
    fn zones_lead_to_the_same_instant() {
        let instant = Some(971_211_336_000_000);
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:20:55:36 +0000",
            "11/Oct/2000:02:25:36 +0530",
            "2000-10-10T20:55:36Z",
            "2000-10-10T20:55:36+00:00",
            "2000-10-10 13:55:36 -0700",
            "2000-10-10T13:55:36-07",
            "971211336",
            "971211336.000",
            "971211336000",
            "971211336000000",
            "9.71211336e8",
        ] {
            assert_eq!(at(text), instant, "{text}");
        }
    }

    #[test]
    fn fractions_count_to_the_microsecond() {
        assert_eq!(at("2000-10-10T20:55:36.5Z"), Some(971_211_336_500_000));
        assert_eq!(at("2000-10-10T20:55:36.123456789+02:00"), Some(971_204_136_123_456));
        assert_eq!(at("971211336.0015"), Some(971_211_336_001_500));
        assert!(any(b"2000-10-10T20:55:36Z").is_some_and(|stamp| stamp.whole));
        assert!(any(b"971211336.5").is_some_and(|stamp| !stamp.whole));
    }

    #[test]
    fn other_texts_are_no_instants() {
        for text in [
            "",
            "-",
            "soon",
            "30/Feb/2024:00:00:00 +0000",
            "29/Feb/2023:00:00:00 +0000",
            "10/Okt/2000:13:55:36 -0700",
            "10/Oct/2000:24:00:00 +0000",
            "10/Oct/2000:13:55:36",
            "10/Oct/2000:13:55:36 0700",
            "2000-13-01T00:00:00Z",
            "2000-10-10T20:55:36",
            "1963-10-10T20:55:36Z",
            "12:30",
            "1e400",
            "99999999999999999999",
            "1.2.3",
        ] {
            assert_eq!(at(text), None, "{text}");
        }
        assert!(at("29/Feb/2024:00:00:00 +0000").is_some());
    }

    #[test]
    fn the_remembered_instant_is_the_last_one() {
        let stamps = TimeParser::default();
        for text in
            ["10/Oct/2000:13:55:36 -0700", "10/Oct/2000:13:55:36 -0700", "10/Oct/2000:13:55:37 -0700", "nonsense"]
        {
            assert_eq!(stamps.common(text.as_bytes()), common(text.as_bytes()));
        }
    }
}
