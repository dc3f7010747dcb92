//! Units of time, with Envoy's names.

use tidegate_core::Micros;
use tidegate_core::limit::{FixedWindow, Limit, LimitError};

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateUnit {
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

impl RateUnit {
    /// All units, from the shortest to the longest.
    pub const ALL: [RateUnit; 7] = [
        RateUnit::Second,
        RateUnit::Minute,
        RateUnit::Hour,
        RateUnit::Day,
        RateUnit::Week,
        RateUnit::Month,
        RateUnit::Year,
    ];

    /// The unit of this name, in any case.
    #[must_use]
    pub fn named(name: &str) -> Option<RateUnit> {
        RateUnit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit's name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RateUnit::Second => "second",
            RateUnit::Minute => "minute",
            RateUnit::Hour => "hour",
            RateUnit::Day => "day",
            RateUnit::Week => "week",
            RateUnit::Month => "month",
            RateUnit::Year => "year",
        }
    }

    /// The length.
    #[must_use]
    pub const fn length(self) -> Micros {
        const DAY: u64 = 24 * 60 * 60;
        Micros::from_secs(match self {
            RateUnit::Second => 1,
            RateUnit::Minute => 60,
            RateUnit::Hour => 60 * 60,
            RateUnit::Day => DAY,
            RateUnit::Week => 7 * DAY,
            RateUnit::Month => 30 * DAY,
            RateUnit::Year => 365 * DAY,
        })
    }
}

/// A number of requests per unit: a limit as in a file and in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PerUnit {
    /// The number of requests. Zero admits none.
    pub requests: u32,
    /// The unit of time.
    pub unit: RateUnit,
}

impl PerUnit {
    /// The default limit: a fixed window, counted from the epoch.
    ///
    /// # Errors
    /// Never fails: every number of every unit can be counted.
    pub fn fixed_window(self) -> Result<Limit, LimitError> {
        FixedWindow::new(self.requests.into(), self.unit.length()).map(Limit::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_known_in_any_case() {
        for unit in RateUnit::ALL {
            assert_eq!(RateUnit::named(unit.name()), Some(unit));
            assert_eq!(RateUnit::named(&unit.name().to_uppercase()), Some(unit));
        }
        assert_eq!(RateUnit::named("MiNuTe"), Some(RateUnit::Minute));
        for unknown in ["", "unknown", "seconds", "fortnight", "min"] {
            assert_eq!(RateUnit::named(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn every_number_of_every_unit_is_a_limit() {
        for unit in RateUnit::ALL {
            for requests in [0, 1, u32::MAX] {
                let limit = PerUnit { requests, unit }.fixed_window().unwrap();
                assert_eq!(limit.capacity(), u64::from(requests));
            }
        }
    }
}
