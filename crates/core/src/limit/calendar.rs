//! UTC calendar windows.

use crate::time::{Date, Micros, Timestamp};

const DAY: u64 = 86_400_000_000;

/// A unit of the UTC calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Calendar {
    /// Midnight to midnight.
    Day,
    /// Monday to Sunday.
    Week,
    /// The first to the last of a month.
    Month,
    /// January to December.
    Year,
}

impl Calendar {
    /// The beginning of the unit that contains `now`, and the beginning of the next one.
    #[must_use]
    pub fn around(self, now: Timestamp) -> (Timestamp, Timestamp) {
        let day = now.as_micros() / DAY;
        let (from, to) = match self {
            Calendar::Day => (day, day + 1),
            Calendar::Week => {
                // The epoch was a Thursday: three days after a Monday.
                let monday = (day + 3) / 7 * 7;
                (monday.saturating_sub(3), monday + 4)
            }
            Calendar::Month => {
                let (Date { year, month, .. }, _) = Date::of(now);
                let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
                (first_day(year, month), first_day(next_year, next_month))
            }
            Calendar::Year => {
                let (Date { year, .. }, _) = Date::of(now);
                (first_day(year, 1), first_day(year + 1, 1))
            }
        };
        (Timestamp::from_micros(from * DAY), Timestamp::from_micros(to * DAY))
    }

    /// The longest duration of this unit.
    #[must_use]
    pub const fn longest(self) -> Micros {
        let days = match self {
            Calendar::Day => 1,
            Calendar::Week => 7,
            Calendar::Month => 31,
            Calendar::Year => 366,
        };
        Micros::new(days * DAY)
    }
}

/// The day (since the epoch) on which a month begins.
fn first_day(year: u64, month: u64) -> u64 {
    Date { year, month, day: 1 }.days_since_epoch().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(calendar: Calendar, secs: u64) -> (u64, u64) {
        let (from, to) = calendar.around(Timestamp::from_secs(secs));
        (from.as_micros() / 1_000_000, to.as_micros() / 1_000_000)
    }

    #[test]
    fn months_and_years_follow_the_calendar() {
        // 2024-02-29T12:00:00Z
        assert_eq!(around(Calendar::Month, 1_709_208_000), (1_706_745_600, 1_709_251_200));
        assert_eq!(around(Calendar::Year, 1_709_208_000), (1_704_067_200, 1_735_689_600));
        // 2100 is no leap year: 2100-03-01T00:00:00Z follows the 28th.
        assert_eq!(around(Calendar::Month, 4_107_542_399), (4_105_123_200, 4_107_542_400));
        assert_eq!(around(Calendar::Month, 0), (0, 31 * 86_400));
    }

    #[test]
    fn weeks_begin_on_monday() {
        // 2026-11-15 is a Sunday; its week began on 2026-11-09.
        assert_eq!(around(Calendar::Week, 1_794_700_800), (1_794_182_400, 1_794_787_200));
        assert_eq!(around(Calendar::Week, 0), (0, 4 * 86_400));
    }

    #[test]
    fn every_day_lies_in_the_stretch_it_is_given_and_stretches_meet() {
        for calendar in [Calendar::Day, Calendar::Week, Calendar::Month, Calendar::Year] {
            let mut now = Timestamp::EPOCH;
            while now < Timestamp::from_secs(300 * 366 * 86_400).min(Timestamp::MAX - calendar.longest()) {
                let (from, to) = calendar.around(now);
                assert!(from <= now && now < to, "{calendar:?} {now:?}");
                assert!(to.since(from) <= calendar.longest());
                assert_eq!(calendar.around(to - Micros::new(1)), (from, to));
                assert_eq!(calendar.around(to).0, to);
                now = to;
            }
        }
    }
}
