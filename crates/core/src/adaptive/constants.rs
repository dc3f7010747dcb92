//! Notation of the constants of controllers and windows: pairs of a name and a value, such as `tolerance 1.3 queue 8`.

use std::error::Error;
use std::fmt::{self, Write};
use std::ops::RangeInclusive;

use crate::notation::{closest, write_span};
use crate::time::Micros;

/// A constant that the notation can set, and its bounds.
pub(super) enum Constant<'a> {
    Number(&'a mut f64, RangeInclusive<f64>),
    Count(&'a mut u32, RangeInclusive<u32>),
    Span(&'a mut Micros, RangeInclusive<Micros>),
}

/// Constants of a controller or a window, by name.
pub(super) type Constants<'a> = Vec<(&'static str, Constant<'a>)>;

impl Constant<'_> {
    /// Sets the constant from text. Returns `false` if the text is not a value of its type, or out of bounds.
    fn set(&mut self, text: &str) -> bool {
        fn within<T: PartialOrd>(value: Option<T>, bounds: &RangeInclusive<T>) -> Option<T> {
            value.filter(|value| bounds.contains(value))
        }
        let digits = text.replace('_', "");
        match self {
            Constant::Number(number, bounds) => {
                within(digits.parse().ok(), bounds).map(|value| **number = value).is_some()
            }
            Constant::Count(count, bounds) => {
                within(digits.parse().ok(), bounds).map(|value| **count = value).is_some()
            }
            Constant::Span(span, bounds) => within(text.parse().ok(), bounds).map(|value| **span = value).is_some(),
        }
    }

    /// The present value.
    fn value(&self) -> String {
        match self {
            Constant::Number(number, _) => number.to_string(),
            Constant::Count(count, _) => count.to_string(),
            Constant::Span(span, _) => write_span(**span),
        }
    }

    /// Describes the values that can be set.
    fn bounds(&self) -> String {
        match self {
            Constant::Number(_, bounds) => format!("a number from {} to {}", bounds.start(), bounds.end()),
            Constant::Count(_, bounds) => format!("a whole number from {} to {}", bounds.start(), bounds.end()),
            Constant::Span(_, bounds) => {
                format!("a time from {} to {}", write_span(*bounds.start()), write_span(*bounds.end()))
            }
        }
    }
}

/// Sets constants from words: a name, its value, the next name.
pub(super) fn set<'t>(
    mut constants: Constants<'_>,
    mut words: impl Iterator<Item = &'t str>,
) -> Result<(), ConstantError> {
    let mut are_set = Vec::new();
    while let Some(name) = words.next() {
        let Some((known, constant)) = constants.iter_mut().find(|(known, _)| *known == name) else {
            let names: Vec<_> = constants.iter().map(|(known, _)| *known).collect();
            return Err(ConstantError::unknown(name, &names));
        };
        if are_set.contains(known) {
            return Err(ConstantError::Twice(name.to_owned()));
        }
        are_set.push(*known);
        let Some(text) = words.next() else {
            return Err(ConstantError::NoValue { name: name.to_owned(), example: constant.value() });
        };
        if !constant.set(text) {
            return Err(ConstantError::Value { text: format!("{name} {text}"), bounds: constant.bounds() });
        }
    }
    Ok(())
}

/// Notation of the constants that differ from their defaults, each preceded by a space.
pub(super) fn changed(constants: &Constants<'_>, defaults: &Constants<'_>) -> String {
    let mut text = String::new();
    for ((name, constant), (_, default)) in constants.iter().zip(defaults) {
        if constant.value() != default.value() {
            // Writing to a string does not fail.
            let _ = write!(text, " {name} {}", constant.value());
        }
    }
    text
}

/// Error for a constant that cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConstantError {
    /// No constant has this name.
    Unknown {
        /// The name.
        name: String,
        /// The valid names.
        help: String,
    },
    /// No value follows the name.
    NoValue {
        /// The name.
        name: String,
        /// An example of a value.
        example: String,
    },
    /// The value has the wrong type, or is out of bounds.
    Value {
        /// The name and the value.
        text: String,
        /// The values that can be set.
        bounds: String,
    },
    /// The constant is set twice.
    Twice(String),
    /// The first constant is above the second.
    Order(&'static str, &'static str),
}

impl ConstantError {
    fn unknown(name: &str, names: &[&str]) -> ConstantError {
        let help = closest(name, names.iter().copied()).map_or_else(
            || names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
            |close| format!("`{close}`"),
        );
        ConstantError::Unknown { name: name.to_owned(), help }
    }
}

impl fmt::Display for ConstantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConstantError::Unknown { name, help } => write!(f, "there is no constant `{name}`; write {help}"),
            ConstantError::NoValue { name, example } => {
                write!(f, "`{name}` has no value; write one such as `{name} {example}`")
            }
            ConstantError::Value { text, bounds } => write!(f, "`{text}` is not possible; write {bounds}"),
            ConstantError::Twice(name) => write!(f, "`{name}` is set twice; write it once"),
            ConstantError::Order(low, high) => write!(f, "`{low}` is above `{high}`; write at most that"),
        }
    }
}

impl Error for ConstantError {}
