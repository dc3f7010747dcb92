//! Times and durations in the formats of servers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest plausible wait: that of a monthly quota.
pub(crate) const LONGEST_BELIEVED: Duration = Duration::from_hours(31 * 24);

/// Numbers from this value on are seconds since the Unix epoch, and not remaining seconds.
const EPOCH_SECONDS: f64 = 1e9;
/// Numbers from this value on are milliseconds since the Unix epoch.
const EPOCH_MILLIS: f64 = 1e12;

/// An integer of at most 15 digits.
pub(crate) fn whole(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.len() <= 15 && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// A number that is not negative, optionally with decimals: `12`, `0.25`.
pub(crate) fn decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    let (whole_part, decimals) = text.split_once('.').unwrap_or((text, "0"));
    whole(whole_part)?;
    whole(decimals)?;
    text.parse().ok()
}

/// Remaining seconds: `30`, `0.25`.
pub(crate) fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(decimal(text)?).ok()
}

/// The time from `now` to a date; zero if the date has passed.
pub(crate) fn until(date: SystemTime, now: SystemTime) -> Duration {
    date.duration_since(now).unwrap_or(Duration::ZERO)
}

/// A number of these units for which a server asks its client to wait. Any longer time is the longest that is believed: a client that
/// ignored it would come back at once.
pub(crate) fn asked(text: &str, unit: Duration) -> Option<Duration> {
    let text = text.trim();
    let (whole_part, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole_part) || !are_digits(decimals) {
        return None;
    }
    let seconds = text.parse::<f64>().ok()? * unit.as_secs_f64();
    Some(Duration::try_from_secs_f64(seconds).map_or(LONGEST_BELIEVED, |span| span.min(LONGEST_BELIEVED)))
}

/// The time from `now` to a date at which a server asks its client to come back, as [`asked`].
pub(crate) fn asked_until(date: SystemTime, now: SystemTime) -> Duration {
    until(date, now).min(LONGEST_BELIEVED)
}

/// Seconds to go, or seconds or milliseconds since the Unix epoch, told apart by their size.
pub(crate) fn seconds_or_epoch(text: &str, now: SystemTime) -> Option<Duration> {
    let number = decimal(text)?;
    if number < EPOCH_SECONDS {
        return seconds(text);
    }
    let since_epoch = if number < EPOCH_MILLIS { number } else { number / 1_000.0 };
    Some(until(UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(since_epoch).ok()?)?, now))
}

/// An HTTP date in any of its three formats: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn http_date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text.trim()).ok()
}

/// A duration with units, in Go's format: `6m0s`, `1.5s`, `20ms`.
pub(crate) fn units(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(unit_at);
        let unit_ends = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit_ends);
        let seconds_each = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let span = Duration::try_from_secs_f64(decimal(number)? * seconds_each).ok()?;
        sum = sum.checked_add(span)?;
        rest = behind;
    }
    Some(sum)
}

/// An RFC 3339 timestamp: `2026-11-17T21:40:00Z`, optionally with decimals or an offset.
pub(crate) fn rfc3339(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at(zone_at);
    let [year, month, day] = fields(date, '-', [4, 2, 2])?;
    let (time, decimals) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = fields(time, ':', [2, 2, 2])?;
    let is_real = (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !is_real || decimals.len() > 9 {
        return None;
    }
    let nanos = whole(decimals)? * 10_u64.pow(9 - u32::try_from(decimals.len()).ok()?);
    let day_seconds = hour * 3_600 + minute * 60 + second;
    let seconds = days_since_epoch(year, month, day)? * 86_400 + day_seconds;
    let local = UNIX_EPOCH + Duration::new(seconds, u32::try_from(nanos).ok()?);
    let (sign, offset) = zone.split_at(1);
    if sign.eq_ignore_ascii_case("z") {
        return offset.is_empty().then_some(local);
    }
    let [hours, minutes] = fields(offset, ':', [2, 2])?;
    let offset = Duration::from_secs(hours * 3_600 + minutes * 60);
    if sign == "+" { local.checked_sub(offset) } else { local.checked_add(offset) }
}

/// Numbers of fixed widths between separators.
fn fields<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[u64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, width) in numbers.iter_mut().zip(widths) {
        *number = parts.next().filter(|part| part.len() == width).and_then(whole)?;
    }
    parts.next().is_none().then_some(numbers)
}

const fn days_of(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from the Unix epoch to a date. `None` before 1970.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    let leaps_before = |year: u64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    let years = year.checked_sub(1970)?;
    let of_months: u64 = (1..month).map(|month| days_of(year, month)).sum();
    Some(years * 365 + leaps_before(year) - leaps_before(1970) + of_months + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_reset_is_seconds_to_go_or_an_epoch_by_its_size() {
        let now = at(1_800_000_000);
        let minute = Some(Duration::from_mins(1));
        assert_eq!(seconds_or_epoch("60", now), minute);
        assert_eq!(seconds_or_epoch("1800000060", now), minute);
        assert_eq!(seconds_or_epoch("1800000060.000", now), minute);
        assert_eq!(seconds_or_epoch("1800000060000", now), minute);
        assert_eq!(seconds_or_epoch("1700000000", now), Some(Duration::ZERO));
        assert_eq!(seconds_or_epoch("1900000000", now), Some(Duration::from_secs(100_000_000)));
        assert_eq!(seconds_or_epoch("0.25", now), Some(Duration::from_millis(250)));
    }

    #[test]
    fn what_is_no_plain_number_is_ignored() {
        for text in ["", "-1", "+1", "1e3", "NaN", "inf", ".5", "5.", "1 2", "0x10", "9999999999999999", "1.2.3"] {
            assert_eq!(decimal(text), None, "{text}");
        }
    }

    #[test]
    fn a_wait_of_any_length_is_the_longest_that_is_believed() {
        let (second, millisecond) = (Duration::from_secs(1), Duration::from_millis(1));
        assert_eq!(asked("2.5", second), Some(Duration::from_millis(2_500)));
        assert_eq!(asked("250", millisecond), Some(Duration::from_millis(250)));
        let endless = "9".repeat(400);
        for text in ["2678400", "99999999", "9999999999999999", &endless] {
            assert_eq!(asked(text, second), Some(LONGEST_BELIEVED), "{text}");
        }
        for text in ["", "-1", "+1", "1e3", "NaN", "inf", ".5", "5.", "1 2", "1.2.3"] {
            assert_eq!(asked(text, second), None, "{text}");
        }
    }

    #[test]
    fn durations_in_units_are_read_as_go_prints_them() {
        assert_eq!(units("6m0s"), Some(Duration::from_mins(6)));
        assert_eq!(units("1m12.5s"), Some(Duration::from_millis(72_500)));
        assert_eq!(units("20ms"), Some(Duration::from_millis(20)));
        assert_eq!(units("1d2h"), Some(Duration::from_hours(26)));
        for text in ["", "6", "s", "6m0", "1y", "-1s", "1 s"] {
            assert_eq!(units(text), None, "{text}");
        }
    }

    #[test]
    fn timestamps_are_read_with_decimals_and_offsets() {
        let expected = Some(at(1_795_000_000));
        assert_eq!(rfc3339("2026-11-18T11:06:40Z"), expected);
        assert_eq!(rfc3339("2026-11-18T12:06:40+01:00"), expected);
        assert_eq!(rfc3339("2026-11-18T05:36:40-05:30"), expected);
        assert_eq!(rfc3339("2026-11-18T11:06:40.250Z"), expected.map(|at| at + Duration::from_millis(250)));
        for text in [
            "2026-11-18",
            "2026-13-18T11:06:40Z",
            "2026-02-29T00:00:00Z",
            "1969-12-31T00:00:00Z",
            "2026-11-18T11:06:40",
        ] {
            assert_eq!(rfc3339(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn rfc3339_agrees_with_http_dates(seconds in 0_u64..4_102_444_800) {
            let date = httpdate::fmt_http_date(at(seconds));
            let (day, rest) = (&date[5..7], &date[8..]);
            let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
            let month = months.iter().position(|month| rest.starts_with(month)).unwrap() + 1;
            let stamp = format!("{}-{month:02}-{day}T{}Z", &rest[4..8], &rest[9..17]);
            prop_assert_eq!(rfc3339(&stamp), Some(at(seconds)));
        }

        #[test]
        fn no_text_makes_a_reader_panic(text in ".{0,40}") {
            let now = at(1_800_000_000);
            let _ = (seconds(&text), units(&text), seconds_or_epoch(&text, now), rfc3339(&text), http_date(&text));
            prop_assert!(asked(&text, Duration::from_secs(1)).is_none_or(|span| span <= LONGEST_BELIEVED));
        }
    }
}
