//! Switches of modes, as nodes report them.

use tidegate_core::Timestamp;
use tidegate_rules::Mode;

/// A published switch that this node has applied or reverted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange {
    /// The rule; `None` stands for all rules.
    pub rule: Option<String>,
    /// The mode; `None` if the switch was reverted.
    pub mode: Option<Mode>,
    /// When the switch ends by itself.
    pub until: Option<Timestamp>,
    /// The author.
    pub who: String,
}
