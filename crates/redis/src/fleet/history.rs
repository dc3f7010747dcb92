//! The history of published changes.

use serde::{Deserialize, Serialize};
use tidegate_core::Timestamp;
use tidegate_rules::Mode;

use super::control::FleetControl;
use super::error::FleetError;
use super::published::end;
use super::session::FleetSession;
use super::signature::Signature;
use crate::link::Announcements;

/// Maximum number of changes that are kept.
const MOST_CHANGES: usize = 50;
/// Maximum total size of the changes, in bytes. The oldest are dropped first.
pub(super) const LARGEST_HISTORY: usize = 4 << 20;

/// A published change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedChange {
    /// The version of the change.
    pub version: u64,
    /// The signature of the change.
    #[serde(flatten)]
    pub signed: Signature,
    /// The change itself.
    #[serde(flatten)]
    pub kind: ChangeKind,
}

/// The kinds of changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// New rules.
    Rules {
        /// The name of the file.
        name: String,
        /// The text of the file; `None` if it was too large to be kept.
        text: Option<String>,
        /// The version to which the rules were rolled back; `None` if the rules are new.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rollback_to: Option<u64>,
    },
    /// A switch of modes.
    Mode {
        /// The rule; `None` stands for all rules.
        rule: Option<String>,
        /// The mode; `None` if a switch was reverted.
        mode: Option<Mode>,
        /// When the switch ends by itself.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "end")]
        until: Option<Timestamp>,
    },
}

/// The changes, latest first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct History {
    changes: Vec<PublishedChange>,
}

impl History {
    /// Parses a history. An invalid one counts as empty, because only rollbacks depend on it.
    pub(super) fn read(bytes: &[u8]) -> History {
        if bytes.len() > LARGEST_HISTORY {
            return History::default();
        }
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// Adds a change. Drops the oldest changes if there are too many, and the text of rules that are too large to be kept.
    pub(super) fn record(&mut self, change: PublishedChange) -> Result<String, FleetError> {
        self.changes.insert(0, change);
        self.changes.truncate(MOST_CHANGES);
        loop {
            let written = serde_json::to_string(self);
            let written = written.map_err(|error| FleetError::unreadable("the history".to_owned(), error))?;
            if written.len() <= LARGEST_HISTORY {
                return Ok(written);
            }
            if self.changes.len() > 1 {
                self.changes.pop();
            } else if let Some(ChangeKind::Rules { text, .. }) = self.changes.first_mut().map(|change| &mut change.kind)
            {
                *text = None;
            }
        }
    }
}

impl FleetControl {
    /// The last published changes, latest first: at most fifty, and at most 4 MiB.
    ///
    /// # Errors
    /// Fails if Redis does not answer.
    pub async fn history(&self) -> Result<Vec<PublishedChange>, FleetError> {
        let mut session = self.connect(Announcements::Unwanted).await?;
        Ok(session.history().await?.changes)
    }
}

impl FleetSession {
    pub(super) async fn history(&mut self) -> Result<History, FleetError> {
        let key = self.keys.history();
        match self.string(&key, LARGEST_HISTORY).await {
            Ok(bytes) => Ok(History::read(&bytes)),
            Err(FleetError::Unreadable { .. }) => Ok(History::default()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(version: u64, text: &str) -> PublishedChange {
        let signed = Signature { who: "ann".to_owned(), at: Timestamp::from_secs(1_700_000_000) };
        let kind = ChangeKind::Rules { name: "rules.yaml".to_owned(), text: Some(text.to_owned()), rollback_to: None };
        PublishedChange { version, signed, kind }
    }

    fn versions(history: &History) -> Vec<u64> {
        history.changes.iter().map(|change| change.version).collect()
    }

    #[test]
    fn a_history_is_read_as_it_was_written() {
        let mut history = History::default();
        history.record(change(1, "rules: []")).unwrap();
        let until = Some(Timestamp::from_secs(1_700_000_900));
        let kind = ChangeKind::Mode { rule: Some("login".to_owned()), mode: Some(Mode::Off), until };
        let written = history.record(PublishedChange { kind, ..change(2, "") }).unwrap();
        assert_eq!(History::read(written.as_bytes()).changes, history.changes);
        assert_eq!(versions(&history), [2, 1]);
        for nonsense in ["", "hello", "[]", r#"{"changes":[{"version":-1}]}"#] {
            assert_eq!(History::read(nonsense.as_bytes()).changes, [], "{nonsense}");
        }
    }

    #[test]
    fn the_oldest_changes_are_dropped_first() {
        let mut history = History::default();
        for version in 1..=60 {
            history.record(change(version, "rules: []")).unwrap();
        }
        assert_eq!(versions(&history), (11..=60).rev().collect::<Vec<_>>());
        let large = "#".repeat(LARGEST_HISTORY / 3);
        for version in 61..=64 {
            assert!(history.record(change(version, &large)).unwrap().len() <= LARGEST_HISTORY);
        }
        assert_eq!(versions(&history), [64, 63]);
    }

    #[test]
    fn rules_that_are_too_large_are_remembered_without_their_text() {
        let mut history = History::default();
        let written = history.record(change(1, &"#".repeat(LARGEST_HISTORY))).unwrap();
        let kind = ChangeKind::Rules { name: "rules.yaml".to_owned(), text: None, rollback_to: None };
        assert_eq!(History::read(written.as_bytes()).changes, [PublishedChange { kind, ..change(1, "") }]);
    }
}
