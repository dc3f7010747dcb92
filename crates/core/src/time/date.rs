//! Dates of the calendar, in UTC.

use crate::time::Timestamp;

const SECONDS_PER_DAY: u64 = 86_400;
/// Days from 1 March of the year 0 to the Unix epoch.
const DAYS_BEFORE_EPOCH: i64 = 719_468;
/// Days in 400 years, after which the calendar repeats.
const DAYS_PER_ERA: u64 = 146_097;

/// A day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// The year.
    pub year: u64,
    /// The month, from 1 to 12.
    pub month: u64,
    /// The day of the month, from 1.
    pub day: u64,
}

impl Date {
    /// The date, if it exists.
    ///
    /// ```
    /// use tidegate_core::time::Date;
    ///
    /// assert_eq!(Date::new(2024, 2, 29).and_then(|day| day.days_since_epoch().try_into().ok()), Some(19_782_u64));
    /// assert_eq!(Date::new(2023, 2, 29), None);
    /// ```
    #[must_use]
    pub const fn new(year: u64, month: u64, day: u64) -> Option<Date> {
        let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let longest = match month {
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            4 | 6 | 9 | 11 => 30,
            2 if is_leap => 29,
            2 => 28,
            _ => return None,
        };
        // The bound on the year prevents overflow in the arithmetic.
        if day < 1 || day > longest || year > 1_000_000 { None } else { Some(Date { year, month, day }) }
    }

    /// The date of an instant, and the seconds since its midnight.
    #[must_use]
    pub const fn of(at: Timestamp) -> (Date, u64) {
        let seconds = at.as_micros() / 1_000_000;
        // Years are counted from March, so that the leap day is the last day of its year and months follow one pattern: 153
        // days in every five months.
        let days = seconds / SECONDS_PER_DAY + DAYS_BEFORE_EPOCH.unsigned_abs();
        let (era, days) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
        let year = (days - days / 1_460 + days / 36_524 - days / (DAYS_PER_ERA - 1)) / 365;
        let days = days - (365 * year + year / 4 - year / 100);
        let from_march = (5 * days + 2) / 153;
        let day = days - (153 * from_march + 2) / 5 + 1;
        let (month, next_year) = if from_march < 10 { (from_march + 3, 0) } else { (from_march - 9, 1) };
        (Date { year: era * 400 + year + next_year, month, day }, seconds % SECONDS_PER_DAY)
    }

    /// Days from the Unix epoch to this date; negative before 1970.
    #[must_use]
    pub const fn days_since_epoch(self) -> i64 {
        let (year, from_march) =
            if self.month > 2 { (self.year, self.month - 3) } else { (self.year.wrapping_sub(1), self.month + 9) };
        let (year, from_march, day) = (year.cast_signed(), from_march.cast_signed(), self.day.cast_signed());
        let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        year * 365 + leap_days + (153 * from_march + 2) / 5 + day - 1 - DAYS_BEFORE_EPOCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_days_agree_for_eight_hundred_years() {
        let last_day = Timestamp::MAX.as_micros() / 1_000_000 / SECONDS_PER_DAY;
        let mut expected = Date { year: 1970, month: 1, day: 1 };
        for days in 0..292_194_u64 {
            assert_eq!(expected.days_since_epoch(), days.cast_signed());
            if days < last_day {
                assert_eq!(Date::of(Timestamp::from_secs(days * SECONDS_PER_DAY + 7)), (expected, 7));
            }
            let Date { year, month, day } = expected;
            let next_days = [(year, month, day + 1), (year, month + 1, 1), (year + 1, 1, 1)];
            expected = next_days.into_iter().find_map(|(year, month, day)| Date::new(year, month, day)).unwrap();
        }
    }

    #[test]
    fn days_that_do_not_exist_are_no_dates() {
        for (year, month, day) in
            [(2023, 2, 29), (2100, 2, 29), (2024, 4, 31), (2024, 0, 1), (2024, 13, 1), (2024, 1, 0)]
        {
            assert_eq!(Date::new(year, month, day), None, "{year}-{month}-{day}");
        }
        assert_eq!(Date::new(1969, 12, 31).map(Date::days_since_epoch), Some(-1));
        assert_eq!(Date::new(0, 1, 1).map(Date::days_since_epoch), Some(-719_528));
    }
}
