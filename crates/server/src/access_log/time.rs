//! Timestamps in the formats of logs, in UTC.

use std::cell::Cell;

use tidegate_core::Timestamp;
use tidegate_core::time::Date;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const SECOND: u64 = 1_000_000;

thread_local! {
    /// The last second written by this thread, as text: most lines fall into the same second as the line before.
    static LAST: Cell<(u64, [u8; 19])> = const { Cell::new((0, *b"1970-01-01T00:00:00")) };
}

/// `2026-11-17T15:20:01.123456Z`
pub(super) fn rfc3339(at: Timestamp, out: &mut Vec<u8>) {
    let second = at.as_micros() / SECOND;
    // The cell of a terminating thread has been destroyed.
    let last = LAST.try_with(Cell::get).ok().filter(|&(last, _)| last == second);
    let text = last.map_or_else(|| date_and_time(at), |(_, text)| text);
    if last.is_none() {
        let _ = LAST.try_with(|last| last.set((second, text)));
    }
    out.extend_from_slice(&text);
    out.push(b'.');
    out.extend_from_slice(&digits::<6>(at.as_micros() % SECOND));
    out.push(b'Z');
}

/// `17/Nov/2026:15:20:01 +0000`
pub(super) fn common(at: Timestamp, out: &mut Vec<u8>) {
    let (Date { year, month, day }, seconds) = Date::of(at);
    let month = MONTHS[usize::try_from(month - 1).unwrap_or(0) % MONTHS.len()];
    out.extend_from_slice(&digits::<2>(day));
    out.push(b'/');
    out.extend_from_slice(month.as_bytes());
    out.push(b'/');
    out.extend_from_slice(&digits::<4>(year));
    out.push(b':');
    out.extend_from_slice(&time_of_day(seconds));
    out.extend_from_slice(b" +0000");
}

/// `2026-11-17T15:20:01`
fn date_and_time(at: Timestamp) -> [u8; 19] {
    let (Date { year, month, day }, seconds) = Date::of(at);
    let mut text = *b"yyyy-mm-ddThh:mm:ss";
    text[..4].copy_from_slice(&digits::<4>(year));
    text[5..7].copy_from_slice(&digits::<2>(month));
    text[8..10].copy_from_slice(&digits::<2>(day));
    text[11..].copy_from_slice(&time_of_day(seconds));
    text
}

/// `15:20:01`, from the seconds since midnight.
fn time_of_day(seconds: u64) -> [u8; 8] {
    let [[h, hh], [m, mm], [s, ss]] = [seconds / 3_600, seconds / 60 % 60, seconds % 60].map(digits::<2>);
    [h, hh, b':', m, mm, b':', s, ss]
}

/// The last `N` decimal digits of a number.
pub(super) fn digits<const N: usize>(mut number: u64) -> [u8; N] {
    let mut text = [b'0'; N];
    for digit in text.iter_mut().rev() {
        *digit += u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_dates_of_the_calendar() {
        for (micros, date, in_common) in [
            (0, "1970-01-01T00:00:00.000000Z", "01/Jan/1970:00:00:00 +0000"),
            (951_827_696_000_001, "2000-02-29T12:34:56.000001Z", "29/Feb/2000:12:34:56 +0000"),
            (1_709_251_199_999_999, "2024-02-29T23:59:59.999999Z", "29/Feb/2024:23:59:59 +0000"),
            (1_709_251_200_000_000, "2024-03-01T00:00:00.000000Z", "01/Mar/2024:00:00:00 +0000"),
            (4_102_444_799_500_000, "2099-12-31T23:59:59.500000Z", "31/Dec/2099:23:59:59 +0000"),
        ] {
            let (mut one, mut other) = (Vec::new(), Vec::new());
            rfc3339(Timestamp::from_micros(micros), &mut one);
            common(Timestamp::from_micros(micros), &mut other);
            assert_eq!(
                (String::from_utf8_lossy(&one), String::from_utf8_lossy(&other)),
                (date.into(), in_common.into())
            );
        }
    }
}
