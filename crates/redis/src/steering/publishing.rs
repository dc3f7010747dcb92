//! Publishing: the version, the text and the modes change together, or not at all.
//!
//! A change is made by reading what there is, writing what is to be, and telling Redis to do so only if nobody has
//! written in between (`WATCH`). Otherwise it begins anew with what is there then.

use tidegate_core::{Micros, Timestamp};
use tidegate_rules::Mode;

use super::Steering;
use super::applying::parse;
use super::error::{PublishError, SteeringError};
use super::history::{ChangeKind, PublishedChange};
use super::published::{
    Edition, Head, LARGEST_HEAD, LARGEST_MODES, LARGEST_RULES, PublishedModes, RulesHead, Signature, Switched, at_most,
    name, write_json,
};
use super::session::{Contents, FleetSession};
use crate::link::{Announcements, Bound, Commands};

/// How often a change begins anew because others were quicker.
const MOST_ATTEMPTS: usize = 20;
/// The most rules that are switched one by one.
const MOST_SWITCHES: usize = 1_000;

/// Something that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Its version.
    pub version: u64,
    /// When, by the clock of Redis.
    pub at: Timestamp,
    /// Who made the change before it, and when; `None` if it is the first.
    pub before: Option<Signature>,
}

/// Which rules to put into a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All of them.
    All,
    /// The one of this id.
    Rule(String),
}

enum Change<'a> {
    Rules { name: String, text: &'a str, rollback_to: Option<u64> },
    Mode { target: &'a Target, mode: Option<Mode>, lasting: Option<Micros> },
}

impl Steering {
    /// Publishes rules: the text of a file, and what the file is called. They replace those that were published before.
    ///
    /// If a version is `expected`, nothing is published unless that is the present one; 0 is that of a Redis where
    /// nothing is published yet.
    ///
    /// # Errors
    /// If the rules have errors, if another version was expected, or if Redis does not do it.
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

    /// Publishes the rules of an earlier version again. They get a version of their own; modes stay as they are.
    ///
    /// # Errors
    /// If the version is not in the [history](Steering::history) or brought no rules, if its rules are published already or have
    /// errors, if another version was expected, or if Redis does not do it.
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
        // Rules that an earlier Tidegate could use may have errors for this one.
        parse(file.clone(), text.clone()).await.map_err(PublishError::Broken)?;
        self.publish(&Change::Rules { name: file.clone(), text, rollback_to: Some(version) }, who, expected).await
    }

    /// Puts one rule, or all of them, into a mode; `None` takes that back. It holds for all nodes, until it is taken
    /// back, whatever rules they have.
    ///
    /// # Errors
    /// If another version was expected, or if Redis does not do it.
    pub async fn publish_mode(
        &self,
        target: &Target,
        mode: Option<Mode>,
        who: &str,
        expected: Option<u64>,
    ) -> Result<Publication, PublishError> {
        self.publish(&Change::Mode { target, mode, lasting: None }, who, expected).await
    }

    /// As [`Steering::publish_mode`], for so long: every node takes it back by itself, by its own clock, also while Redis is
    /// away. It begins now, by the clock of Redis.
    ///
    /// # Errors
    /// As [`Steering::publish_mode`].
    pub async fn publish_mode_for(
        &self,
        target: &Target,
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
        if let Change::Mode { target: Target::Rule(rule), .. } = change {
            name("the rule", rule)?;
        }
        let mut session = self.connect(Announcements::Unwanted).await?;
        for _ in 0..MOST_ATTEMPTS {
            let draft = Draft::begin(&mut session, change, &who, expected).await?;
            match draft.commit(&mut session).await {
                Ok(true) => return Ok(draft.publication),
                Ok(false) => {}
                Err(SteeringError::Unreachable { reason }) => return self.find_out(draft, reason).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(PublishError::Crowded)
    }

    /// The connection broke when everything was sent: looks whether it has arrived.
    async fn find_out(&self, draft: Draft, reason: String) -> Result<Publication, PublishError> {
        let head = async { self.connect(Announcements::Unwanted).await?.head().await };
        match head.await {
            Ok(Some(head)) if head.edition == draft.edition => Ok(draft.publication),
            Ok(_) | Err(_) => Err(PublishError::Unknown { reason }),
        }
    }
}

/// What is to be written, and under which names.
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
                    Target::All => None,
                    Target::Rule(rule) => Some(rule.clone()),
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

    /// Writes it, unless somebody has written something else in between.
    async fn commit(&self, session: &mut FleetSession) -> Result<bool, SteeringError> {
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
    target: &Target,
    switched: Option<Switched>,
    now: Timestamp,
) -> Result<PublishedModes, PublishError> {
    modes.take_ended(now);
    match (target, switched) {
        (Target::All, switched) => modes.all = switched,
        (Target::Rule(rule), Some(switched)) => {
            modes.rules.insert(rule.clone(), switched);
        }
        (Target::Rule(rule), None) => {
            modes.rules.remove(rule);
        }
    }
    if modes.rules.len() > MOST_SWITCHES {
        return Err(PublishError::TooManySwitches { most: MOST_SWITCHES });
    }
    Ok(modes)
}
