//! Published rules and modes, and their format in Redis.
//!
//! The data consists of three strings: the *head* contains version, author and time; the *rules* are the text of a rules
//! file; the *modes* are the switches. The head is small, because every node reads it every second. Data from Redis is not
//! trusted.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidegate_core::Timestamp;
use tidegate_rules::{Mode, Switches};

use super::error::{FleetError, PublishError};
use super::mode_change::ModeChange;
use super::signature::Signature;

pub(super) const LARGEST_HEAD: usize = 8 << 10;
pub(super) const LARGEST_RULES: usize = 16 << 20;
pub(super) const LARGEST_MODES: usize = 1 << 20;

const LONGEST_NAME: usize = 200;
const FORMAT: u32 = 1;

/// The published rules and modes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The number of changes so far, to rules or modes.
    pub version: u64,
    /// The signature of the last change.
    pub signed: Signature,
    /// The rules; `None` if each node has its own.
    pub rules: Option<PublishedRules>,
    /// The switches of modes.
    pub modes: PublishedModes,
    /// The time of reading, by the clock of Redis.
    pub now: Timestamp,
}

/// The published rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedRules {
    /// The version that published these rules.
    pub version: u64,
    /// The name of the file.
    pub name: String,
    /// The text of the file.
    pub text: String,
    /// The signature of their publication.
    pub signed: Signature,
}

/// The published switches of modes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedModes {
    /// The switch of all rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Switched>,
    /// The switches of single rules, by id.
    #[serde(default)]
    pub rules: BTreeMap<String, Switched>,
}

/// A switch to a mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// The mode.
    pub mode: Mode,
    /// When the switch ends; `None` if it lasts until it is reverted. Nodes of versions without ends keep it until it is
    /// reverted.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "end")]
    pub until: Option<Timestamp>,
    /// The signature of the switch.
    #[serde(flatten)]
    pub signed: Signature,
}

/// The end of a switch, in microseconds.
pub(super) mod end {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Timestamp};

    pub(in crate::fleet) fn serialize<S: Serializer>(
        end: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        end.map(Timestamp::as_micros).serialize(serializer)
    }

    pub(in crate::fleet) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Timestamp::from_micros))
    }
}

impl Switched {
    /// Returns `true` if it has ended.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl PublishedModes {
    /// The switches in force at this time, for a limiter.
    #[must_use]
    pub fn switches_at(&self, now: Timestamp) -> Switches {
        let mut switches = Switches::new();
        for (rule, switched) in self.each().filter(|(_, switched)| !switched.is_over(now)) {
            match rule {
                None => switches.switch_all(Some(switched.mode)),
                Some(rule) => switches.switch(rule, Some(switched.mode)),
            }
            if let Some(until) = switched.until {
                switches.set_end(rule, until);
            }
        }
        switches
    }

    /// All switches, including ended ones: of all rules (`None`), and of single rules.
    pub fn each(&self) -> impl Iterator<Item = (Option<&str>, &Switched)> {
        let all = self.all.iter().map(|switched| (None, switched));
        all.chain(self.rules.iter().map(|(rule, switched)| (Some(rule.as_str()), switched)))
    }

    /// The switches that are applied or reverted when `modes` replace these. `who` is the author of reverts.
    pub(super) fn changes_to(&self, modes: &PublishedModes, who: &str) -> Vec<ModeChange> {
        let present: BTreeMap<Option<&str>, &Switched> = modes.each().collect();
        let before: BTreeMap<Option<&str>, &Switched> = self.each().collect();
        let new = present.iter().filter(|(rule, switched)| before.get(*rule) != Some(switched));
        let switched = new.map(|(rule, switched)| ModeChange {
            rule: rule.map(str::to_owned),
            mode: Some(switched.mode),
            until: switched.until,
            who: switched.signed.who.clone(),
        });
        let gone = before.keys().filter(|rule| !present.contains_key(*rule));
        let reverted =
            gone.map(|rule| ModeChange { rule: rule.map(str::to_owned), mode: None, until: None, who: who.to_owned() });
        switched.chain(reverted).collect()
    }

    /// Removes and returns the switches that have ended.
    pub(super) fn take_ended(&mut self, now: Timestamp) -> Vec<(Option<String>, Switched)> {
        let all = self.all.take_if(|switched| switched.is_over(now)).map(|switched| (None, switched));
        let single = self.rules.extract_if(.., |_, switched| switched.is_over(now));
        all.into_iter().chain(single.map(|(rule, switched)| (Some(rule), switched))).collect()
    }
}

/// The identity of a version. It differs from that of every other version, even one with the same number after Redis lost
/// its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Edition {
    pub(super) version: u64,
    stamp: String,
}

impl Edition {
    pub(super) fn new(version: u64) -> Edition {
        Edition { version, stamp: format!("{:016x}", fastrand::u64(..)) }
    }
}

/// The summary that nodes poll to detect a new version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    format: u32,
    #[serde(flatten)]
    pub(super) edition: Edition,
    #[serde(flatten)]
    pub(super) signed: Signature,
    pub(super) rules: Option<RulesHead>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RulesHead {
    #[serde(flatten)]
    pub(super) edition: Edition,
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) signed: Signature,
}

impl Head {
    pub(super) const fn new(edition: Edition, signed: Signature, rules: Option<RulesHead>) -> Head {
        Head { format: FORMAT, edition, signed, rules }
    }

    /// Reads a head; `None` if there is none.
    pub(super) fn read(key: String, bytes: &[u8]) -> Result<Option<Head>, FleetError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        // The format is read first, because another format may have other fields.
        let Formatted { format } = read_json(&key, bytes, LARGEST_HEAD)?;
        if format != FORMAT {
            return Err(FleetError::unreadable(
                key,
                format_args!("it has format {format}, and this version reads format {FORMAT}"),
            ));
        }
        read_json(&key, bytes, LARGEST_HEAD).map(Some)
    }
}

#[derive(Deserialize)]
struct Formatted {
    format: u32,
}

impl PublishedModes {
    pub(super) fn read(key: &str, bytes: &[u8]) -> Result<PublishedModes, FleetError> {
        if bytes.is_empty() { Ok(PublishedModes::default()) } else { read_json(key, bytes, LARGEST_MODES) }
    }
}

pub(super) fn read_json<T: DeserializeOwned>(key: &str, bytes: &[u8], most: usize) -> Result<T, FleetError> {
    if bytes.len() > most {
        return Err(FleetError::unreadable(key.to_owned(), format_args!("it has more than {most} bytes")));
    }
    // Without this check, a list would be read as the fields of a map, in order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(FleetError::unreadable(key.to_owned(), "it is not a map"));
    }
    serde_json::from_slice(bytes).map_err(|error| FleetError::unreadable(key.to_owned(), error))
}

/// The text of rules. The bytes are the result of a read of up to `most` bytes plus one.
pub(super) fn read_text(key: &str, bytes: Vec<u8>, most: usize) -> Result<String, FleetError> {
    if bytes.len() > most {
        return Err(FleetError::unreadable(key.to_owned(), format_args!("it has more than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| FleetError::unreadable(key.to_owned(), "it is not UTF-8"))
}

pub(super) fn write_json(what: &'static str, value: &impl Serialize, most: usize) -> Result<String, PublishError> {
    let text = serde_json::to_string(value).map_err(|error| FleetError::unreadable(what.to_owned(), error))?;
    at_most(what, text.len(), most)?;
    Ok(text)
}

pub(super) const fn at_most(what: &'static str, size: usize, most: usize) -> Result<(), PublishError> {
    if size > most { Err(PublishError::TooLarge { what, size, most }) } else { Ok(()) }
}

/// Validates a name, so that it can be displayed anywhere.
pub(super) fn name(what: &'static str, name: &str) -> Result<String, PublishError> {
    let is_fine =
        !name.trim().is_empty() && name.chars().count() <= LONGEST_NAME && !name.chars().any(char::is_control);
    if is_fine {
        return Ok(name.to_owned());
    }
    Err(PublishError::Name { what, name: name.chars().take(40).collect(), most: LONGEST_NAME })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed() -> Signature {
        Signature { who: "ann".to_owned(), at: Timestamp::from_secs(1_700_000_000) }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let rules = RulesHead { edition: Edition::new(3), name: "rules.yaml".to_owned(), signed: signed() };
        let head = Head::new(Edition::new(4), signed(), Some(rules));
        let text = write_json("the head", &head, LARGEST_HEAD).unwrap();
        assert_eq!(Head::read("k".to_owned(), text.as_bytes()), Ok(Some(head)));
        assert_eq!(Head::read("k".to_owned(), b""), Ok(None));
    }

    #[test]
    fn modes_are_read_as_they_were_written() {
        let mut modes = PublishedModes::default();
        modes.rules.insert("login".to_owned(), Switched { mode: Mode::Shadow, until: None, signed: signed() });
        let text = write_json("modes", &modes, LARGEST_MODES).unwrap();
        assert_eq!(text, r#"{"rules":{"login":{"mode":"shadow","who":"ann","at":1700000000000000}}}"#);
        assert_eq!(PublishedModes::read("k", text.as_bytes()), Ok(modes.clone()));
        assert_eq!(modes.switches_at(Timestamp::from_secs(0)).rules().collect::<Vec<_>>(), [("login", Mode::Shadow)]);
        assert_eq!(PublishedModes::read("k", b"{}"), Ok(PublishedModes::default()));
    }

    #[test]
    fn a_switch_with_an_end_holds_until_then() {
        let end = Timestamp::from_secs(1_700_000_900);
        let all = Some(Switched { mode: Mode::Off, until: Some(end), signed: signed() });
        let modes = PublishedModes { all, ..PublishedModes::default() };
        let text = write_json("modes", &modes, LARGEST_MODES).unwrap();
        assert!(text.contains(r#""until":1700000900000000"#), "{text}");
        assert_eq!(PublishedModes::read("k", text.as_bytes()), Ok(modes.clone()));
        let just_before = modes.switches_at(Timestamp::from_micros(end.as_micros() - 1));
        assert_eq!((just_before.all(), just_before.end(None)), (Some(Mode::Off), Some(end)));
        assert!(modes.switches_at(end).is_empty());
        // The format of nodes of versions without ends.
        #[derive(Deserialize)]
        struct Older {
            mode: Mode,
            #[serde(flatten)]
            signed: Signature,
        }
        let text = text.trim_start_matches(r#"{"all":"#).rsplit_once(r#","rules""#).unwrap().0;
        let older: Older = serde_json::from_str(text).unwrap();
        assert_eq!((older.mode, older.signed), (Mode::Off, signed()));
    }

    #[test]
    fn malformed_records_are_named() {
        let told = |text: &str| match Head::read("k".to_owned(), text.as_bytes()) {
            Err(error) => error.to_string(),
            Ok(head) => panic!("{head:?}"),
        };
        assert!(told("hello").starts_with("the value of `k` cannot be read: "));
        assert!(told(r#"{"format":2,"other":[]}"#).contains("it has format 2"));
        assert!(told(r#"{"format":1,"version":-1}"#).contains("cannot be read"));
        assert!(told(&"[".repeat(LARGEST_HEAD)).contains("cannot be read"));
        assert!(told(&" ".repeat(LARGEST_HEAD + 1)).contains("more than 8192 bytes"));
        assert!(PublishedModes::read("k", br#"{"all":{"mode":"maybe","who":"x","at":1}}"#).is_err());
        assert!(read_text("k", vec![0xff], 10).is_err());
        assert!(read_text("k", vec![b'a'; 11], 10).is_err());
    }

    #[test]
    fn names_can_be_shown_anywhere() {
        assert!(name("who", "Ann Example <ann@example.com>").is_ok());
        assert!(name("who", &"ü".repeat(200)).is_ok());
        for wrong in ["", " ", "a\u{1b}[31m", &"x".repeat(201)] {
            assert!(name("who", wrong).is_err(), "{wrong}");
        }
    }
}
