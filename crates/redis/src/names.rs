//! Names of keys in Redis.
//!
//! `prefix:{tag}:rule` is the state of a client under a rule. The tag represents the client's key. All limits of one client
//! have the same tag, so in a cluster they are in one slot. `prefix:{tag}~receipt.number` is a held charge of that client, and
//! `prefix:{tag}~region.born.number:rule` marks that a transfer from a region has charged its state.
//!
//! A rule that is a [part](part_of) of a split limit has another tag, so that the parts of one key are on different
//! servers: `prefix:{alice~2of4}:exports~2of4`.
//!
//! Tags are readable: `{acme,alice}` is the key with two parts. Special characters are percent-encoded (`%2C`). A long key
//! is truncated, followed by a hash of the whole key: `{the beginning#0a1b…}`.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Key, RuleId};

use crate::slots::slot_of;

/// Maximum length of a tag that is not truncated.
const LONGEST_TAG: usize = 128;
/// The length of the part of a longer tag that is kept.
const BEGINNING: usize = 32;
/// The tag of the key shared by all requests. That key has no parts, and an empty tag would not be a hash tag.
const GLOBAL: &[u8] = b"*";
/// An empty part.
const EMPTY: &[u8] = b"%";

/// The names of keys under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

/// The error for a prefix with braces, which would change the hash tag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{prefix}\" cannot be the prefix of keys: leave out the braces, which are hash tags of Redis Cluster")]
pub struct PrefixError {
    prefix: String,
}

impl Names {
    /// Names with this prefix, so that several programs can share a Redis.
    ///
    /// # Errors
    /// Fails if the prefix contains a brace.
    pub fn new(prefix: &str) -> Result<Names, PrefixError> {
        let prefix = prefix.to_owned();
        if prefix.contains(['{', '}']) { Err(PrefixError { prefix }) } else { Ok(Names { prefix }) }
    }

    /// The name of the state of `key` under `rule`.
    pub(crate) fn state(&self, rule: &RuleId, key: &Key<'_>) -> Vec<u8> {
        let mut name = self.tagged(rule, key, 1 + rule.as_str().len());
        name.push(b':');
        name.extend_from_slice(rule.as_str().as_bytes());
        name
    }

    /// The name of the held charge `number` of the receipt `id`, to `key` under `rule`.
    pub(crate) fn hold(&self, (rule, key): (&RuleId, &Key<'_>), id: ReceiptId, number: usize) -> Vec<u8> {
        let mut name = self.tagged(rule, key, 40);
        name.extend_from_slice(format!("~{id}.{number}").as_bytes());
        name
    }

    /// The slot of all names that belong to `key` under `rule`.
    pub(crate) fn slot(&self, rule: &RuleId, key: &Key<'_>) -> u16 {
        slot_of(&self.tagged(rule, key, 0))
    }

    fn tagged(&self, rule: &RuleId, key: &Key<'_>, more: usize) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + 3 + LONGEST_TAG.min(48) + more);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b":{");
        write_tag(&mut name, key);
        if let Some(part) = part_of(rule) {
            name.push(b'~');
            name.extend_from_slice(part.as_bytes());
        }
        name.push(b'}');
        name
    }
}

impl Default for Names {
    /// Names with the prefix `tidegate`.
    fn default() -> Names {
        Names { prefix: "tidegate".to_owned() }
    }
}

/// `2of4` if the id of the rule ends with `~2of4`, which means part 2 of 4 of a split limit.
pub(crate) fn part_of(rule: &RuleId) -> Option<&str> {
    let (_, part) = rule.as_str().rsplit_once('~')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    part.split_once("of").is_some_and(|(number, all)| is_number(number) && is_number(all)).then_some(part)
}

fn write_tag(name: &mut Vec<u8>, key: &Key<'_>) {
    let start = name.len();
    for part in key.parts() {
        if name.len() > start {
            name.push(b',');
        }
        if part.is_empty() {
            name.extend_from_slice(EMPTY);
        }
        // Encoding a byte takes at least one byte, so the rest of a very long part cannot fit.
        for &byte in part.iter().take(LONGEST_TAG + 1) {
            write_byte(name, byte);
        }
        if name.len() > start + LONGEST_TAG {
            name.truncate(start + BEGINNING);
            name.extend_from_slice(format!("#{:032x}", hash(key)).as_bytes());
            return;
        }
    }
    if name.len() == start {
        name.extend_from_slice(GLOBAL);
    }
}

fn write_byte(name: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let is_plain = byte.is_ascii_graphic() && !b"%,{}#*".contains(&byte);
    if is_plain {
        name.push(byte);
    } else {
        name.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// A hash that is the same on every node, so that a fleet shares its counters.
fn hash(key: &Key<'_>) -> u128 {
    let mut hasher = SipHasher24::new_with_key(b"tidegate, a name");
    for part in key.parts() {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish128().as_u128()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn state(rule: &str, key: &Key<'_>) -> String {
        String::from_utf8(Names::default().state(&RuleId::new(rule), key)).unwrap()
    }

    #[test]
    fn names_can_be_read() {
        assert_eq!(state("burst", &Key::from("alice")), "tidegate:{alice}:burst");
        assert_eq!(state("per user", &Key::of(["acme", "2001:db8::/64"])), "tidegate:{acme,2001:db8::/64}:per user");
        assert_eq!(state("all", &Key::GLOBAL), "tidegate:{*}:all");
        assert_eq!(
            state("odd", &Key::of(["", "*", "{a}", "a,b", "50%", "\u{e9}"])),
            "tidegate:{%,%2A,%7Ba%7D,a%2Cb,50%25,%C3%A9}:odd"
        );
    }

    #[test]
    fn long_keys_are_cut_and_told_apart() {
        let long = |last| Key::of(["x".repeat(10_000), last]);
        let (one, other) = (state("rule", &long("1".to_owned())), state("rule", &long("2".to_owned())));
        assert!(one.starts_with("tidegate:{xxxx") && one.ends_with("}:rule") && one.len() < 100, "{one}");
        assert_ne!(one, other);
    }

    #[test]
    fn a_prefix_has_no_braces() {
        assert_eq!(Names::new("a{b"), Err(PrefixError { prefix: "a{b".to_owned() }));
        assert!(Names::new("").is_ok());
    }

    #[test]
    fn parts_of_a_split_limit_have_tags_of_their_own() {
        let key = Key::from("alice");
        assert_eq!(state("exports~2of4", &key), "tidegate:{alice~2of4}:exports~2of4");
        assert_eq!(state("exports~2of4", &Key::GLOBAL), "tidegate:{*~2of4}:exports~2of4");
        for whole in ["exports~of4", "exports~2of", "exports~2", "exports~2of4/x", "2of4"] {
            assert_eq!(state(whole, &key), format!("tidegate:{{alice}}:{whole}"));
        }
        let (names, rule, other) = (Names::default(), RuleId::new("exports~2of4"), RuleId::new("exports~3of4"));
        assert_eq!(slot_of(&names.hold((&rule, &key), ReceiptId::new(1), 0)), names.slot(&rule, &key));
        assert_ne!(names.slot(&other, &key), names.slot(&rule, &key));
    }

    fn part() -> impl Strategy<Value = Vec<u8>> {
        let tricky = prop::sample::select(b"%,{}#*~:.0Aa2B \xff\x00".to_vec());
        prop_oneof![
            4 => prop::collection::vec(tricky.clone(), 0..4),
            1 => prop::collection::vec(any::<u8>(), 0..4),
            1 => prop::collection::vec(tricky, 40..140),
        ]
    }

    fn named() -> impl Strategy<Value = (String, Vec<Vec<u8>>)> {
        ("[a:{}~.0]{0,3}", prop::collection::vec(part(), 0..3))
    }

    proptest! {
        #[test]
        fn rules_and_keys_never_share_a_name(
            (rule, parts) in named(), (other_rule, other_parts) in named(), id in any::<u128>(), number in 0_usize..3,
        ) {
            let names = Names::default();
            let (key, other_key) = (Key::of(&parts), Key::of(&other_parts));
            let (one, other) = (names.state(&RuleId::new(&rule), &key), names.state(&RuleId::new(&other_rule), &other_key));
            prop_assert_eq!(one == other, (&rule, &parts) == (&other_rule, &other_parts));
            let hold = names.hold((&RuleId::new(&other_rule), &other_key), ReceiptId::new(id), number);
            prop_assert_ne!(&one, &hold);
            prop_assert_eq!(tag(&one) == tag(&hold), parts == other_parts);
        }
    }

    /// The part of a key that determines its slot in a cluster.
    fn tag(name: &[u8]) -> &[u8] {
        let start = name.iter().position(|&byte| byte == b'{').unwrap() + 1;
        let length = name[start..].iter().position(|&byte| byte == b'}').unwrap();
        assert!(length > 0, "no tag at all");
        &name[start..start + length]
    }
}
