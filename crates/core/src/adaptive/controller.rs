//! The controllers, and their notation.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use super::{Aimd, Gradient2, Sample, Vegas};

/// The greatest limit that can be set.
const MOST: u32 = 1_000_000;

/// A computation of a concurrency limit from samples.
///
/// Its notation is a word, and bounds if they differ from the default: `aimd`, `vegas 1..1000`, `gradient2 20..200`.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitController {
    /// Additive increase, multiplicative decrease.
    Aimd(Aimd),
    /// The queue that a round trip implies.
    Vegas(Vegas),
    /// The ratio of the usual round trip to the present one.
    Gradient2(Gradient2),
}

impl LimitController {
    /// Sets the seed of the jitter of probes. Controllers with equal seeds and samples compute equal limits.
    #[must_use]
    pub fn seed(self, seed: u64) -> LimitController {
        match self {
            LimitController::Aimd(_) => self,
            LimitController::Vegas(vegas) => LimitController::Vegas(vegas.seed(seed)),
            LimitController::Gradient2(gradient) => LimitController::Gradient2(gradient.seed(seed)),
        }
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self {
            LimitController::Aimd(aimd) => aimd.limit(),
            LimitController::Vegas(vegas) => vegas.limit(),
            LimitController::Gradient2(gradient) => gradient.limit(),
        }
    }

    /// Whether the limit is lowered at present, to measure the server without a queue.
    #[must_use]
    pub fn is_probing(&self) -> bool {
        match self {
            LimitController::Aimd(_) => false,
            LimitController::Vegas(vegas) => vegas.is_probing(),
            LimitController::Gradient2(gradient) => gradient.is_probing(),
        }
    }

    /// Follows a sample, and returns the limit after it.
    pub fn update(&mut self, sample: &Sample) -> u32 {
        match self {
            LimitController::Aimd(aimd) => aimd.update(sample),
            LimitController::Vegas(vegas) => vegas.update(sample),
            LimitController::Gradient2(gradient) => gradient.update(sample),
        }
        self.limit()
    }

    /// The bounds of the limit.
    #[must_use]
    pub const fn range(&self) -> LimitRange {
        match self {
            LimitController::Aimd(aimd) => aimd.range,
            LimitController::Vegas(vegas) => vegas.range,
            LimitController::Gradient2(gradient) => gradient.range,
        }
    }
}

impl fmt::Display for LimitController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            LimitController::Aimd(_) => "aimd",
            LimitController::Vegas(_) => "vegas",
            LimitController::Gradient2(_) => "gradient2",
        };
        let LimitRange { min, max } = self.range();
        write!(f, "{name} {min}..{max}")
    }
}

impl FromStr for LimitController {
    type Err = ControllerError;

    fn from_str(text: &str) -> Result<LimitController, ControllerError> {
        let mut words = text.split_whitespace();
        let (name, range) = (words.next().unwrap_or_default(), words.next());
        if let Some(extra) = words.next() {
            return Err(ControllerError::Extra(extra.to_owned()));
        }
        let range = |usual| range.map_or(Ok(usual), str::parse);
        match name {
            "aimd" => Ok(LimitController::Aimd(Aimd::new(range(LimitRange { min: 20, max: 200 })?))),
            "vegas" => Ok(LimitController::Vegas(Vegas::new(range(LimitRange { min: 1, max: 1_000 })?))),
            "gradient2" => Ok(LimitController::Gradient2(Gradient2::new(range(LimitRange { min: 20, max: 200 })?))),
            other => Err(ControllerError::Name(other.to_owned())),
        }
    }
}

/// The bounds of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRange {
    min: u32,
    max: u32,
}

impl LimitRange {
    /// Bounds from 1 to 1 000 000, `min` not above `max`.
    ///
    /// # Errors
    /// If they are not.
    pub fn new(min: u32, max: u32) -> Result<LimitRange, ControllerError> {
        if (1..=max).contains(&min) && max <= MOST {
            Ok(LimitRange { min, max })
        } else {
            Err(ControllerError::Range(format!("{min}..{max}")))
        }
    }

    pub(super) fn min(self) -> f64 {
        f64::from(self.min)
    }

    pub(super) fn clamp(self, limit: f64) -> f64 {
        // The first bound also takes what is not a number.
        limit.max(f64::from(self.min)).min(f64::from(self.max))
    }

    /// A limit as a whole number, at least 1.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "limits are from 1 to a million")]
    pub(super) fn whole(limit: f64) -> u32 {
        limit.max(1.0) as u32
    }
}

impl FromStr for LimitRange {
    type Err = ControllerError;

    fn from_str(text: &str) -> Result<LimitRange, ControllerError> {
        let wrong = || ControllerError::Range(text.to_owned());
        let (min, max) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.replace('_', "").parse().map_err(|_| wrong());
        LimitRange::new(number(min)?, number(max)?).map_err(|_| wrong())
    }
}

/// The error for text that is not a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerError {
    /// The first word names no controller.
    Name(String),
    /// The bounds are not two numbers in order.
    Range(String),
    /// Something follows the bounds.
    Extra(String),
}

impl fmt::Display for ControllerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControllerError::Name(name) => {
                write!(f, "`{name}` is not an adaptive limit; write `gradient2`, `vegas` or `aimd`")
            }
            ControllerError::Range(text) => {
                write!(f, "`{text}` are not bounds; write the lowest and the highest limit, such as `20..200`")
            }
            ControllerError::Extra(text) => write!(f, "`{text}` is not expected after the bounds"),
        }
    }
}

impl Error for ControllerError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_controller_parses_back() {
        for (text, printed) in
            [("aimd", "aimd 20..200"), ("vegas", "vegas 1..1000"), ("  gradient2   5..1_000 ", "gradient2 5..1000")]
        {
            let parsed: LimitController = text.parse().unwrap();
            assert_eq!(parsed.to_string(), printed);
            assert_eq!(printed.parse::<LimitController>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, error) in [
            ("", "`` is not an adaptive limit; write `gradient2`, `vegas` or `aimd`"),
            ("gradient", "`gradient` is not an adaptive limit; write `gradient2`, `vegas` or `aimd`"),
            ("aimd 200", "`200` are not bounds; write the lowest and the highest limit, such as `20..200`"),
            ("aimd 0..5", "`0..5` are not bounds; write the lowest and the highest limit, such as `20..200`"),
            ("aimd 9..5", "`9..5` are not bounds; write the lowest and the highest limit, such as `20..200`"),
            (
                "aimd 1..9999999",
                "`1..9999999` are not bounds; write the lowest and the highest limit, such as `20..200`",
            ),
            ("aimd 1..5 x", "`x` is not expected after the bounds"),
        ] {
            assert_eq!(text.parse::<LimitController>().unwrap_err().to_string(), error);
        }
    }
}
