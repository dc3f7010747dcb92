//! A completed run of the program.
#![allow(dead_code, reason = "not every test needs everything")]

use std::process::Output;

use serde_json::Value;

pub(crate) struct Ran(pub(crate) Output);

impl Ran {
    pub(crate) fn code(&self) -> Option<i32> {
        self.0.status.code()
    }

    pub(crate) fn out(&self) -> &str {
        std::str::from_utf8(&self.0.stdout).unwrap()
    }

    pub(crate) fn err(&self) -> &str {
        std::str::from_utf8(&self.0.stderr).unwrap()
    }

    /// The output of a successful run.
    pub(crate) fn good(&self) -> &str {
        assert_eq!(self.code(), Some(0), "{}{}", self.out(), self.err());
        self.out()
    }

    /// The error message of a failed run.
    pub(crate) fn bad(&self) -> &str {
        assert_eq!(self.code(), Some(1), "{}{}", self.out(), self.err());
        self.err()
    }

    /// The error message of a run with invalid arguments.
    pub(crate) fn usage_error(&self) -> &str {
        assert_eq!((self.code(), self.out()), (Some(2), ""), "{}", self.err());
        self.err()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.out()).unwrap_or_else(|error| panic!("{error}: {}{}", self.out(), self.err()))
    }
}
