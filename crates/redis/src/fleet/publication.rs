//! Publication of changes: version, text and modes change together, or not at all.
//!
//! A change consists of a read and a transaction. Redis runs the transaction only if nothing was written in between
//! (`WATCH`). Otherwise the change is attempted again with the new state.

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::Mode;

use super::applied::parse;
use super::control::FleetControl;
use super::error::{FleetError, PublishError};
use super::history::{ChangeKind, PublishedChange};
use super::published::{
    Edition, Head, LARGEST_HEAD, LARGEST_MODES, LARGEST_RULES, PublishedModes, RulesHead, Switched, at_most, name,
    write_json,
};
use super::session::{Contents, FleetSession};
use super::signature::Signature;
use crate::link::{Announcements, Bound, Commands};

/// Maximum number of attempts of a change, while concurrent changes succeed.
const MOST_ATTEMPTS: usize = 20;
/// Maximum number of rules with their own switch.
const MOST_SWITCHES: usize = 1_000;

/// A published change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The version.
    pub version: u64,
    /// The time of the change, by the clock of Redis.
    pub at: Timestamp,
    /// The signature of the previous change; `None` if this is the first.
    pub before: Option<Signature>,
}

/// The rules to which a switch of modes applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicationTarget {
    /// All rules.
    All,
    /// The rule with this id.
    Rule(String),
}

enum Change<'a> {
    Rules { name: String, text: &'a str, rollback_to: Option<u64> },
    Mode { target: &'a PublicationTarget, mode: Option<Mode>, lasting: Option<Micros> },
}

impl FleetControl {
    /// Publishes rules: the text of a file and its name. They replace the published rules.
    ///
    /// If `expected` is given, the rules are published only if that is the present version. Before the first publication
    /// the version is 0.
    ///
    /// # Errors
    /// Fails if the rules have errors, another version was expected, or Redis fails.
    pub async fn publish_rules(
        &self,
        file: &str,
        text: &str,
        who: &str,
        expected: Option<u64>,
    ) -> Result<Publication, PublishError> {
        let file = name("the file's name", file)?;
        at_most("the text of the rules", text.len(), LARGEST_RULES)?;
        parse(file.clone(), text.to_owned()).await.map_err(PublishError::Broken)?;
        self.publish(&Change::Rules { name: file, text, rollback_to: None }, who, expected).await
    }

    /// Publishes the rules of an earlier version again, as a new version. Modes do not change.
    ///
    /// # Errors
    /// Fails if the version is not in the [history](FleetControl::history) or contains no rules, its rules are already
    /// published or have errors, another version was expected, or Redis fails.
    pub async fn roll_back(&self, version: u64, who: &str, expected: Option<u64>) -> Result<Publication, PublishError> {
        let changes = self.history().await?;
        let change =
            changes.iter().find(|change| change.version == version).ok_or(PublishError::NoSuchVersion { version })?;
        let ChangeKind::Rules { name: file, text: Some(text), .. } = &change.kind else {
            return Err(PublishError::NoRules { version });
        };
        let head = self.connect(Announcements::Unwanted).await?.head().await?;
        if head.and_then(|head| head.rules).is_some_and(|rules| rules.edition.version == version) {
            return Err(PublishError::AlreadyPublished { version });
        }
        // Rules that were valid for an earlier version of Tidegate may have errors for this one.
        parse(file.clone(), text.clone()).await.map_err(PublishError::Broken)?;
        self.publish(&Change::Rules { name: file.clone(), text, rollback_to: Some(version) }, who, expected).await
    }

    /// Switches one rule, or all rules, to a mode; `None` reverts the switch. It applies to all nodes, whatever rules they
    /// have, until it is reverted.
    ///
    /// # Errors
    /// Fails if another version was expected, or Redis fails.
    pub async fn publish_mode(
        &self,
        target: &PublicationTarget,
        mode: Option<Mode>,
        who: &str,
        expected: Option<u64>,
    ) -> Result<Publication, PublishError> {
        self.publish(&Change::Mode { target, mode, lasting: None }, who, expected).await
    }

    /// Like [`FleetControl::publish_mode`], for a limited time that begins now, by the clock of Redis. Every node reverts
    /// the switch by its own clock, even while Redis is unavailable.
    ///
    /// # Errors
    /// As [`FleetControl::publish_mode`].
    pub async fn publish_mode_for(
        &self,
        target: &PublicationTarget,
        mode: Mode,
        lasting: Micros,
        who: &str,
        expected: Option<u64>,
    ) -> Result<Publication, PublishError> {
        self.publish(&Change::Mode { target, mode: Some(mode), lasting: Some(lasting) }, who, expected).await
    }

    async fn publish(
        &self,
        change: &Change<'_>,
        who: &str,
        expected: Option<u64>,
    ) -> Result<Publication, PublishError> {
        let who = name("who publishes", who)?;
        if let Change::Mode { target: PublicationTarget::Rule(rule), .. } = change {
            name("the rule", rule)?;
        }
        let mut session = self.connect(Announcements::Unwanted).await?;
        for _ in 0..MOST_ATTEMPTS {
            let draft = Draft::begin(&mut session, change, &who, expected).await?;
            match draft.commit(&mut session).await {
                Ok(true) => return Ok(draft.publication),
                Ok(false) => {}
                Err(FleetError::Unreachable { reason }) => return self.find_out(draft, reason).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(PublishError::Crowded)
    }

    /// Determines whether a change was published after the connection broke.
    async fn find_out(&self, draft: Draft, reason: String) -> Result<Publication, PublishError> {
        let head = async { self.connect(Announcements::Unwanted).await?.head().await };
        match head.await {
            Ok(Some(head)) if head.edition == draft.edition => Ok(draft.publication),
            Ok(_) | Err(_) => Err(PublishError::Unknown { reason }),
        }
    }
}

/// The values of a change, by key.
struct Draft {
    publication: Publication,
    edition: Edition,
    values: [(String, String); 3],
}

impl Draft {
    async fn begin(
        session: &mut FleetSession,
        change: &Change<'_>,
        who: &str,
        expected: Option<u64>,
    ) -> Result<Draft, PublishError> {
        let (head, modes) = match session.watched_contents().await? {
            Some(Contents { head, modes, .. }) => (Some(head), modes),
            None => (None, PublishedModes::default()),
        };
        let present = head.as_ref().map_or(0, |head| head.edition.version);
        let before = head.as_ref().map(|head| head.signed.clone());
        if let Some(expected) = expected
            && expected != present
        {
            return Err(PublishError::Conflict { expected, found: present, by: before });
        }
        let edition = Edition::new(present.saturating_add(1));
        let signed = Signature { who: who.to_owned(), at: session.time().await? };
        let mut rules = head.and_then(|head| head.rules);
        let mut history = session.history().await?;
        let (value, kind) = match change {
            Change::Rules { name, text, rollback_to } => {
                rules = Some(RulesHead { edition: edition.clone(), name: name.clone(), signed: signed.clone() });
                let kind =
                    ChangeKind::Rules { name: name.clone(), text: Some((*text).to_owned()), rollback_to: *rollback_to };
                ((session.keys.rules(), (*text).to_owned()), kind)
            }
            Change::Mode { target, mode, lasting } => {
                let until = lasting.map(|lasting| signed.at + lasting);
                let new = mode.map(|mode| Switched { mode, until, signed: signed.clone() });
                let modes = switched(modes, target, new, signed.at)?;
                let rule = match target {
                    PublicationTarget::All => None,
                    PublicationTarget::Rule(rule) => Some(rule.clone()),
                };
                let value = (session.keys.modes(), write_json("what is switched", &modes, LARGEST_MODES)?);
                (value, ChangeKind::Mode { rule, mode: *mode, until })
            }
        };
        let change = PublishedChange { version: edition.version, signed: signed.clone(), kind };
        let history = (session.keys.history(), history.record(change)?);
        let publication = Publication { version: edition.version, at: signed.at, before };
        let head = Head::new(edition.clone(), signed, rules);
        let head = (session.keys.head(), write_json("the head", &head, LARGEST_HEAD)?);
        Ok(Draft { publication, edition, values: [value, history, head] })
    }

    /// Writes the change. Returns `false` if the data has changed since it was read.
    async fn commit(&self, session: &mut FleetSession) -> Result<bool, FleetError> {
        let mut commands = Commands::new();
        for (key, value) in &self.values {
            commands.add(&[b"SET", key.as_bytes(), value.as_bytes()], Bound::string(0));
        }
        let (channel, version) = (session.keys.news(), self.edition.version.to_string());
        commands.add(&[b"PUBLISH", channel.as_bytes(), version.as_bytes()], Bound::string(0));
        session.write(commands).await
    }
}

fn switched(
    mut modes: PublishedModes,
    target: &PublicationTarget,
    switched: Option<Switched>,
    now: Timestamp,
) -> Result<PublishedModes, PublishError> {
    modes.take_ended(now);
    match (target, switched) {
        (PublicationTarget::All, switched) => modes.all = switched,
        (PublicationTarget::Rule(rule), Some(switched)) => {
            modes.rules.insert(rule.clone(), switched);
        }
        (PublicationTarget::Rule(rule), None) => {
            modes.rules.remove(rule);
        }
    }
    if modes.rules.len() > MOST_SWITCHES {
        return Err(PublishError::TooManySwitches { most: MOST_SWITCHES });
    }
    Ok(modes)
}
