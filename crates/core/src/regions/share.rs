//! A share of a limit, in parts per million.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;

const MILLION: u32 = 1_000_000;

/// A share of a whole, from nothing to all of it, in parts per million.
///
/// ```
/// use tidegate_core::regions::Share;
///
/// let share: Share = "12.5%".parse()?;
/// assert_eq!(share.of(1_000), 125);
/// assert_eq!(share.to_string(), "12.5%");
/// # Ok::<(), tidegate_core::regions::ShareError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    /// No share.
    pub const NONE: Share = Share(0);
    /// The whole.
    pub const WHOLE: Share = Share(MILLION);
    /// One percentage point.
    pub const POINT: Share = Share(MILLION / 100);

    /// A share in parts per million. `None` if that is more than the whole.
    #[must_use]
    pub const fn of_million(parts: u32) -> Option<Share> {
        if parts <= MILLION { Some(Share(parts)) } else { None }
    }

    /// A share in percent, at most the whole.
    #[must_use]
    pub const fn percent(percent: u32) -> Share {
        if percent >= 100 { Share::WHOLE } else { Share(percent * Share::POINT.0) }
    }

    /// The number of parts per million.
    #[must_use]
    pub const fn parts_per_million(self) -> u32 {
        self.0
    }

    /// Returns `true` if the share is 0.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// This share of a count, rounded down.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.0) / u128::from(MILLION);
        u64::try_from(part).unwrap_or(whole)
    }

    /// The sum of both shares. `None` if that is more than the whole.
    #[must_use]
    pub const fn checked_add(self, other: Share) -> Option<Share> {
        Share::of_million(self.0 + other.0)
    }

    /// The difference, or none if the other share is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Share) -> Share {
        Share(self.0.saturating_sub(other.0))
    }
}

/// Adds shares, up to the whole.
impl Add for Share {
    type Output = Share;

    fn add(self, other: Share) -> Share {
        self.checked_add(other).unwrap_or(Share::WHOLE)
    }
}

/// Subtracts shares, down to none.
impl Sub for Share {
    type Output = Share;

    fn sub(self, other: Share) -> Share {
        self.saturating_sub(other)
    }
}

/// Displays a share in percent, such as `60%` or `12.5%`.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (points, rest) = (self.0 / Share::POINT.0, self.0 % Share::POINT.0);
        if rest == 0 {
            return write!(f, "{points}%");
        }
        let digits = format!("{rest:04}");
        write!(f, "{points}.{}%", digits.trim_end_matches('0'))
    }
}

/// The error for text that is not a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareError {
    text: String,
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a share: write 0% to 100%, with up to four decimals", self.text)
    }
}

impl std::error::Error for ShareError {}

/// Parses a share in percent, with or without the sign: `60%`, `60`, `33.3333%`.
impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Share, ShareError> {
        let number = text.trim();
        let number = number.strip_suffix('%').unwrap_or(number).trim_end();
        let (points, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = || {
            if !is_number(points) || !is_number(decimals) || decimals.len() > 4 {
                return None;
            }
            let points: u32 = points.parse().ok().filter(|points| *points <= 100)?;
            let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
            Share::of_million(points * Share::POINT.0 + decimals)
        };
        parsed().ok_or_else(|| ShareError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_they_are_written() {
        for (text, parts) in [("60%", 600_000), ("0%", 0), ("100%", 1_000_000), ("12.5%", 125_000), ("0.0001%", 1)] {
            let share: Share = text.parse().unwrap();
            assert_eq!((share.parts_per_million(), share.to_string().as_str()), (parts, text));
        }
        assert_eq!("33".parse(), Ok(Share::percent(33)));
        assert_eq!(" 5.50 % ".parse::<Share>().unwrap().to_string(), "5.5%");
        for wrong in ["", "%", "101%", "100.0001%", "-1%", "1e1%", "1.23456%", "a", ".5%", "5.%"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_are_rounded_down() {
        let third = Share::of_million(333_333).unwrap();
        assert_eq!((third.of(10), third.of(0), Share::WHOLE.of(u64::MAX)), (3, 0, u64::MAX));
    }
}
