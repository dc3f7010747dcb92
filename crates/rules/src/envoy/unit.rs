//! Units of time, as Envoy names them.

use tidegate_core::Micros;
use tidegate_core::limit::{FixedWindow, Limit, LimitError};

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All units, from the shortest to the longest.
    pub const ALL: [Unit; 7] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// The unit of this name, in any case.
    #[must_use]
    pub fn named(name: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit's name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// The length.
    #[must_use]
    pub const fn length(self) -> Micros {
        const DAY: u64 = 24 * 60 * 60;
        Micros::from_secs(match self {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 60 * 60,
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 30 * DAY,
            Unit::Year => 365 * DAY,
        })
    }
}

/// So many requests per unit: a limit as it is written in a file, and as responses show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PerUnit {
    /// The number of requests. Zero admits none.
    pub requests: u32,
    /// In how long.
    pub unit: Unit,
}

impl PerUnit {
    /// The limit that this is unless something else is said: a fixed window, counted from the epoch.
    ///
    /// # Errors
    /// None: every number of every unit can be counted.
    pub fn fixed_window(self) -> Result<Limit, LimitError> {
        FixedWindow::new(self.requests.into(), self.unit.length()).map(Limit::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_known_in_any_case() {
        for unit in Unit::ALL {
            assert_eq!(Unit::named(unit.name()), Some(unit));
            assert_eq!(Unit::named(&unit.name().to_uppercase()), Some(unit));
        }
        assert_eq!(Unit::named("MiNuTe"), Some(Unit::Minute));
        for unknown in ["", "unknown", "seconds", "fortnight", "min"] {
            assert_eq!(Unit::named(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn every_number_of_every_unit_is_a_limit() {
        for unit in Unit::ALL {
            for requests in [0, 1, u32::MAX] {
                let limit = PerUnit { requests, unit }.fixed_window().unwrap();
                assert_eq!(limit.capacity(), u64::from(requests));
            }
        }
    }
}
