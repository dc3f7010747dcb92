//! What a rule can be switched to, as operators say it.

use clap::ValueEnum;
use serde::Deserialize;
use tidegate_core::Micros;
use tidegate_rules::Mode;

/// The longest that a switch with an end may last.
pub(crate) const LONGEST_SWITCH: Micros = Micros::from_secs(366 * 86_400);

/// A mode, or none of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ModeChoice {
    /// It denies.
    Enforce,
    /// It counts and reports, and never denies.
    Shadow,
    /// It does nothing.
    Off,
    /// What the rules file says.
    #[serde(alias = "as_written")]
    #[value(alias = "as_written")]
    AsWritten,
}

impl ModeChoice {
    /// The mode; `None` for what the file says.
    pub(crate) const fn mode(self) -> Option<Mode> {
        match self {
            ModeChoice::Enforce => Some(Mode::Enforce),
            ModeChoice::Shadow => Some(Mode::Shadow),
            ModeChoice::Off => Some(Mode::Off),
            ModeChoice::AsWritten => None,
        }
    }
}
