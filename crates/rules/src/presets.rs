//! Presets: named limits for common cases.

use super::fact_name::FactName;
use super::rule::{KeyPart, OnStoreFailure};
use tidegate_core::limit::Limit;

/// A common case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preset {
    /// Five attempts per minute from one address, exactly; denied while the store is unavailable.
    Login,
    /// Three hundred in three hours per user.
    Posts,
    /// Three hundred per minute per user, possibly in bursts.
    Reads,
    /// Five per day per user.
    Messages,
}

pub(super) const PRESETS: [(&str, Preset); 4] =
    [("login", Preset::Login), ("posts", Preset::Posts), ("reads", Preset::Reads), ("messages", Preset::Messages)];

impl Preset {
    pub(super) fn key(self) -> Vec<KeyPart> {
        match self {
            Preset::Login => vec![KeyPart::ADDRESS],
            Preset::Posts | Preset::Reads | Preset::Messages => vec![KeyPart::Fact(FactName::User)],
        }
    }

    pub(super) const fn on_store_failure(self) -> OnStoreFailure {
        match self {
            Preset::Login => OnStoreFailure::Deny,
            Preset::Posts | Preset::Reads | Preset::Messages => OnStoreFailure::Allow { at_most: None },
        }
    }

    pub(super) fn limit(self) -> Limit {
        let text = match self {
            Preset::Login => "log 5/min",
            Preset::Posts => "sliding 300/3h",
            Preset::Reads => "300/min",
            Preset::Messages => "fixed 5/day",
        };
        #[expect(clippy::expect_used, reason = "a test parses each of these four")]
        text.parse().expect("a preset is a limit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_limit() {
        for (name, preset) in PRESETS {
            assert!(preset.limit().capacity() > 0, "{name}");
        }
    }
}
