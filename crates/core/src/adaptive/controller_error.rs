//! The error for text that is not a controller.

use std::error::Error;
use std::fmt;

use super::ConstantError;

/// The error for text that is not a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControllerError {
    /// The first word names no controller.
    Name(String),
    /// The bounds are not two numbers in order.
    Range(String),
    /// A constant is wrong.
    Constant(ConstantError),
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
            ControllerError::Constant(error) => error.fmt(f),
        }
    }
}

impl Error for ControllerError {}
