//! Instants as logs write them, in UTC.

use std::io::Write;

use tidegate_core::Timestamp;
use tidegate_core::time::Date;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `15:20:01`, of the seconds since midnight.
fn time_of_day(seconds: u64) -> String {
    format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// `2026-11-17T15:20:01.123456Z`
pub(super) fn rfc3339(at: Timestamp, out: &mut Vec<u8>) {
    let (Date { year, month, day }, seconds) = Date::of(at);
    let (time, micros) = (time_of_day(seconds), at.as_micros() % 1_000_000);
    // Writing to memory does not fail.
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{time}.{micros:06}Z");
}

/// `17/Nov/2026:15:20:01 +0000`
pub(super) fn common(at: Timestamp, out: &mut Vec<u8>) {
    let (Date { year, month, day }, seconds) = Date::of(at);
    let (month, time) = (MONTHS[usize::try_from(month - 1).unwrap_or(0) % MONTHS.len()], time_of_day(seconds));
    let _ = write!(out, "{day:02}/{month}/{year:04}:{time} +0000");
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
