//! Signals of overload in the outcomes of requests.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::notation::write_span;
use crate::time::Micros;

/// A condition on the requests of a window. A service that meets it is overloaded.
///
/// Notation: `latency > 200ms`, `p99 > 1s`, `errors > 5%`. `latency` stands for `p90`: more than a tenth of the
/// requests took longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverloadSignal {
    /// A percentile of the response times is above a bound.
    Latency {
        /// The percentile, from 1 to 99.
        percentile: u8,
        /// The bound.
        above: Micros,
    },
    /// More than a share of the requests failed.
    Errors {
        /// The share, in tenths of a percent.
        above_permille: u16,
    },
}

/// The percentile that `latency` stands for.
const USUAL_PERCENTILE: u8 = 90;

impl OverloadSignal {
    /// The share of requests that may be slow or fail, in tenths of a percent.
    #[must_use]
    pub fn tolerated_permille(&self) -> u16 {
        match self {
            OverloadSignal::Latency { percentile, .. } => 1_000 - u16::from(*percentile).min(100) * 10,
            OverloadSignal::Errors { above_permille } => *above_permille,
        }
    }
}

impl fmt::Display for OverloadSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            OverloadSignal::Latency { percentile: USUAL_PERCENTILE, above } => {
                write!(f, "latency > {}", write_span(above))
            }
            OverloadSignal::Latency { percentile, above } => write!(f, "p{percentile} > {}", write_span(above)),
            OverloadSignal::Errors { above_permille } if above_permille % 10 == 0 => {
                write!(f, "errors > {}%", above_permille / 10)
            }
            OverloadSignal::Errors { above_permille } => {
                write!(f, "errors > {}.{}%", above_permille / 10, above_permille % 10)
            }
        }
    }
}

impl FromStr for OverloadSignal {
    type Err = OverloadSignalError;

    fn from_str(text: &str) -> Result<OverloadSignal, OverloadSignalError> {
        let (name, bound) = text.split_once('>').ok_or(OverloadSignalError::Form)?;
        let (name, bound) = (name.trim(), bound.trim());
        if name == "errors" {
            let permille = bound.strip_suffix('%').and_then(permille).ok_or(OverloadSignalError::Share)?;
            return Ok(OverloadSignal::Errors { above_permille: permille });
        }
        let percentile = match name {
            "latency" => USUAL_PERCENTILE,
            name => match name.strip_prefix('p').and_then(|number| number.parse().ok()) {
                Some(percentile @ 1..=99) => percentile,
                _ => return Err(OverloadSignalError::Form),
            },
        };
        let above = bound.parse().ok().filter(|above: &Micros| !above.is_zero()).ok_or(OverloadSignalError::Span)?;
        Ok(OverloadSignal::Latency { percentile, above })
    }
}

/// A percentage from 0 to below 100, with at most one decimal.
fn permille(text: &str) -> Option<u16> {
    let (whole, tenths) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(tenths) || tenths.len() > 1 {
        return None;
    }
    let permille = whole.parse::<u16>().ok()?.checked_mul(10)?.checked_add(tenths.parse().ok()?)?;
    (permille < 1_000).then_some(permille)
}

/// The error for text that is not a signal. Its message describes the notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverloadSignalError {
    /// The text does not have the form of a signal.
    Form,
    /// The bound of a latency is not a span of time.
    Span,
    /// The bound of errors is not a percentage.
    Share,
}

impl fmt::Display for OverloadSignalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OverloadSignalError::Form => "write `latency > 200ms`, a percentile such as `p99 > 1s`, or `errors > 5%`",
            OverloadSignalError::Span => "write a span of time, such as `latency > 200ms`",
            OverloadSignalError::Share => "write a share below 100 %, such as `errors > 5%` or `errors > 0.5%`",
        })
    }
}

impl Error for OverloadSignalError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_signal_parses_back() {
        for (text, printed, tolerated) in [
            ("latency>200ms", "latency > 200ms", 100),
            ("p90 > 1s", "latency > 1s", 100),
            (" p99  >  1500ms ", "p99 > 1500ms", 10),
            ("errors > 5 %", "errors > 5%", 50),
            ("errors > 0.5%", "errors > 0.5%", 5),
            ("errors > 0%", "errors > 0%", 0),
        ] {
            let signal: OverloadSignal = text.parse().unwrap();
            assert_eq!((signal.to_string().as_str(), signal.tolerated_permille()), (printed, tolerated));
            assert_eq!(printed.parse(), Ok(signal));
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, error) in [
            ("", OverloadSignalError::Form),
            ("latency", OverloadSignalError::Form),
            ("latency < 1s", OverloadSignalError::Form),
            ("delay > 1s", OverloadSignalError::Form),
            ("p0 > 1s", OverloadSignalError::Form),
            ("p100 > 1s", OverloadSignalError::Form),
            ("p > 1s", OverloadSignalError::Form),
            ("latency > 5%", OverloadSignalError::Span),
            ("latency > 0s", OverloadSignalError::Span),
            ("errors > 5", OverloadSignalError::Share),
            ("errors > 100%", OverloadSignalError::Share),
            ("errors > -1%", OverloadSignalError::Share),
            ("errors > 0.55%", OverloadSignalError::Share),
            ("errors > .5%", OverloadSignalError::Share),
            ("errors > 99999999%", OverloadSignalError::Share),
        ] {
            assert_eq!(text.parse::<OverloadSignal>(), Err(error), "{text}");
        }
    }
}
