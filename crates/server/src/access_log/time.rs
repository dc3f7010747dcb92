//! Instants as logs write them, in UTC.

use std::io::Write;

use tidegate_core::Timestamp;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// An instant as a date and a time of day.
struct Civil {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
    micros: u64,
}

impl Civil {
    fn of(at: Timestamp) -> Civil {
        let (seconds, micros) = (at.as_micros() / 1_000_000, at.as_micros() % 1_000_000);
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        // Years from March on, so that leap days come last, in eras of 400 years.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        Civil {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            hour: of_day / 3_600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            micros,
        }
    }
}

/// `2026-11-17T15:20:01.123456Z`
pub(super) fn rfc3339(at: Timestamp, out: &mut Vec<u8>) {
    let Civil { year, month, day, hour, minute, second, micros } = Civil::of(at);
    // Writing to memory does not fail.
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z");
}

/// `17/Nov/2026:15:20:01 +0000`
pub(super) fn common(at: Timestamp, out: &mut Vec<u8>) {
    let Civil { year, month, day, hour, minute, second, .. } = Civil::of(at);
    let month = usize::try_from(month).ok().and_then(|month| MONTHS.get(month.checked_sub(1)?)).unwrap_or(&"Jan");
    let _ = write!(out, "{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000");
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
