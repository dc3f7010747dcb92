//! Mode that an operator chooses for a rule.

use clap::ValueEnum;
use serde::Deserialize;
use tidegate_core::Micros;
use tidegate_rules::Mode;

/// Maximum duration of a switch.
pub(crate) const LONGEST_SWITCH: Micros = Micros::from_secs(366 * 86_400);

/// A mode, or the one in the rules file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ModeChoice {
    /// Denies requests over the limit.
    Enforce,
    /// Counts and reports, but never denies.
    Shadow,
    /// Neither decides nor counts.
    Off,
    /// The mode in the rules file.
    #[serde(alias = "as_written")]
    #[value(alias = "as_written")]
    AsWritten,
}

impl ModeChoice {
    /// The mode; `None` for the mode in the rules file.
    pub(crate) const fn mode(self) -> Option<Mode> {
        match self {
            ModeChoice::Enforce => Some(Mode::Enforce),
            ModeChoice::Shadow => Some(Mode::Shadow),
            ModeChoice::Off => Some(Mode::Off),
            ModeChoice::AsWritten => None,
        }
    }
}
