//! The controllers, and their notation.

use std::fmt;
use std::str::FromStr;

use super::constants::{self, ConstantError, Constants};
use super::{Aimd, ControllerError, Gradient2, LimitRange, Sample, Vegas};

/// A computation of a concurrency limit from samples.
///
/// Its notation is a word, then bounds and constants that differ from the default: `aimd`, `vegas 1..1000`, `gradient2 20..200`,
/// `aimd 20..200 timeout 300ms backoff 0.8`. Constants have the names of fields.
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

    /// Returns `true` if the limit is currently lowered, to measure the server without a queue.
    #[must_use]
    pub fn is_probing(&self) -> bool {
        match self {
            LimitController::Aimd(_) => false,
            LimitController::Vegas(vegas) => vegas.is_probing(),
            LimitController::Gradient2(gradient) => gradient.is_probing(),
        }
    }

    /// Updates the limit from a sample, and returns the new limit.
    pub fn update(&mut self, sample: &Sample) -> u32 {
        match self {
            LimitController::Aimd(aimd) => aimd.update(sample),
            LimitController::Vegas(vegas) => vegas.update(sample),
            LimitController::Gradient2(gradient) => gradient.update(sample),
        }
        self.limit()
    }

    fn constants(&mut self) -> Constants<'_> {
        match self {
            LimitController::Aimd(aimd) => aimd.constants(),
            LimitController::Vegas(vegas) => vegas.constants(),
            LimitController::Gradient2(gradient) => gradient.constants(),
        }
    }

    /// The same controller with the same bounds and default constants.
    fn with_defaults(&self) -> LimitController {
        match self {
            LimitController::Aimd(aimd) => LimitController::Aimd(Aimd::new(aimd.range)),
            LimitController::Vegas(vegas) => LimitController::Vegas(Vegas::new(vegas.range)),
            LimitController::Gradient2(gradient) => LimitController::Gradient2(Gradient2::new(gradient.range)),
        }
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
        let (mut controller, mut default) = (self.clone(), self.with_defaults());
        write!(f, "{name} {min}..{max}{}", constants::changed(&controller.constants(), &default.constants()))
    }
}

impl FromStr for LimitController {
    type Err = ControllerError;

    fn from_str(text: &str) -> Result<LimitController, ControllerError> {
        let mut words = text.split_whitespace().peekable();
        let name = words.next().unwrap_or_default();
        // Names of constants begin with a letter; bounds do not.
        let range = words.next_if(|word| !word.starts_with(|first: char| first.is_ascii_alphabetic()));
        let range = |min, max| range.map_or(Ok(LimitRange { min, max }), str::parse);
        let mut controller = match name {
            "aimd" => LimitController::Aimd(Aimd::new(range(20, 200)?)),
            "vegas" => LimitController::Vegas(Vegas::new(range(1, 1_000)?)),
            "gradient2" => LimitController::Gradient2(Gradient2::new(range(20, 200)?)),
            other => return Err(ControllerError::Name(other.to_owned())),
        };
        constants::set(controller.constants(), words).map_err(ControllerError::Constant)?;
        match controller {
            LimitController::Vegas(vegas) if vegas.alpha > vegas.beta => {
                Err(ControllerError::Constant(ConstantError::Order("alpha", "beta")))
            }
            _ => Ok(controller),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_controller_parses_back() {
        for (text, printed) in [
            ("aimd", "aimd 20..200"),
            ("vegas", "vegas 1..1000"),
            ("  gradient2   5..1_000 ", "gradient2 5..1000"),
            ("aimd timeout 300ms backoff 0.8", "aimd 20..200 backoff 0.8 timeout 300ms"),
            ("vegas 1..1000 beta 6 alpha 2 initial 1_000", "vegas 1..1000 initial 1000 alpha 2"),
            ("gradient2 4..90 probe_first 9 tolerance 1.25", "gradient2 4..90 tolerance 1.25 probe_first 9"),
        ] {
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
            ("aimd 1..5 x", "there is no constant `x`; write `initial`, `backoff`, `timeout`"),
            (
                "gradient2 timeout 1s",
                "there is no constant `timeout`; write `initial`, `long_window`, `warm_up`, `tolerance`, `min_gradient`, `queue`, `smoothing`, `decay`, `backoff`, `probe_first`, `probe_retry`, `probe_surprise`, `probe_rise`, `probe_slope`, `probe_gain`",
            ),
            ("gradient2 tolerances 1.2", "there is no constant `tolerances`; write `tolerance`"),
            ("gradient2 tolerance", "`tolerance` has no value; write one such as `tolerance 1.5`"),
            ("gradient2 tolerance 2", "`tolerance 2` is not possible; write a number from 1 to 1.99"),
            ("gradient2 tolerance NaN", "`tolerance NaN` is not possible; write a number from 1 to 1.99"),
            ("aimd timeout 5", "`timeout 5` is not possible; write a time from 1ms to 1h"),
            ("aimd initial 9", "`initial 9` is not possible; write a whole number from 20 to 200"),
            ("aimd backoff 0.5 backoff 0.5", "`backoff` is set twice; write it once"),
            ("vegas alpha 7", "`alpha` is above `beta`; write at most that"),
        ] {
            assert_eq!(text.parse::<LimitController>().unwrap_err().to_string(), error);
        }
    }

    /// Every constant can be set, and is printed once set.
    #[test]
    fn all_constants_can_be_set() {
        for name in ["aimd", "vegas", "gradient2"] {
            let mut controller: LimitController = name.parse().unwrap();
            let names: Vec<_> = controller.constants().iter().map(|(name, _)| *name).collect();
            assert!(names.len() >= 3, "{names:?}");
            for constant in names {
                // One of these values is valid and differs from the default.
                let set = ["0.5", "0.25", "1.3", "42", "300ms"].iter().find_map(|value| {
                    let text = format!("{controller} {constant} {value}");
                    text.parse::<LimitController>().ok().filter(|set| *set != controller).map(|set| (text, set))
                });
                let (text, set) = set.unwrap_or_else(|| panic!("{name} {constant}"));
                assert_eq!(set.to_string(), text);
            }
        }
    }
}
