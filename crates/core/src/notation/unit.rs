//! Units of time.

use crate::limit::Calendar;
use crate::time::Micros;

pub(super) struct TimeUnit {
    /// The name that is printed, and further names that are accepted.
    pub(super) names: &'static [&'static str],
    pub(super) micros: u64,
    /// The calendar unit with that name.
    pub(super) calendar: Option<Calendar>,
}

impl TimeUnit {
    const fn new(names: &'static [&'static str], micros: u64) -> TimeUnit {
        TimeUnit { names, micros, calendar: None }
    }

    const fn days(names: &'static [&'static str], days: u64, calendar: Calendar) -> TimeUnit {
        TimeUnit { names, micros: days * 86_400_000_000, calendar: Some(calendar) }
    }

    pub(super) fn named(name: &str) -> Option<&'static TimeUnit> {
        let name = name.to_lowercase();
        UNITS.iter().find(|unit| unit.names.contains(&name.as_str()))
    }

    /// The largest unit of which `span` is a multiple, and the number of units.
    pub(super) fn measuring(span: Micros) -> (u64, &'static TimeUnit) {
        let largest = UNITS.iter().rev().find(|unit| span.get() > 0 && span.get().is_multiple_of(unit.micros));
        let unit = largest.unwrap_or(&UNITS[0]);
        (span.get() / unit.micros, unit)
    }
}

/// All units, from the smallest to the largest.
pub(super) const UNITS: [TimeUnit; 9] = [
    TimeUnit::new(&["us", "µs", "microsecond", "microseconds"], 1),
    TimeUnit::new(&["ms", "millisecond", "milliseconds"], 1_000),
    TimeUnit::new(&["s", "sec", "secs", "second", "seconds"], 1_000_000),
    TimeUnit::new(&["min", "m", "mins", "minute", "minutes"], 60_000_000),
    TimeUnit::new(&["h", "hr", "hrs", "hour", "hours"], 3_600_000_000),
    TimeUnit::days(&["day", "d", "days"], 1, Calendar::Day),
    TimeUnit::days(&["week", "w", "weeks"], 7, Calendar::Week),
    TimeUnit::days(&["month", "months"], 30, Calendar::Month),
    TimeUnit::days(&["year", "y", "yr", "years"], 365, Calendar::Year),
];

/// The units that error messages name.
pub(super) const COMMON_UNITS: &str = "ms, s, min, h, day, week, month or year";
