//! Keys as operators name them: by values, by hashes, or as `/v1/keys/top` prints them.

use std::collections::BTreeSet;

use http::StatusCode;
use tidegate_core::{Key, Limit};
use tidegate_rules::{NamedKey, NoSuchKey, PartName, Rule};

use crate::engine::Engine;
use crate::metrics::{Ranking, TopKey};
use crate::problem::Problem;

/// Digits of a complete hash.
const WHOLE: usize = 32;
/// Minimum number of digits of a truncated hash.
const SHORTEST: usize = 8;

/// The parts of a key, each in full.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedParts(Vec<NamedPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum NamedPart {
    Clear(String),
    Hash(String),
}

/// Borrowed form of [`NamedParts`].
pub(super) struct KeyNames<'p>(Vec<PartName<'p>>);

impl NamedParts {
    /// Resolves the parts of a key of `id`, a rule or a limit. Truncated hashes are looked up among recent keys and the
    /// keys that the rules name.
    pub(super) fn resolve(engine: &Engine, id: &str, given: Option<Vec<String>>) -> Result<NamedParts, Problem> {
        let present = engine.limiter().rules();
        // An unknown rule is reported when the key is looked up.
        let Some(rule) = present.rules.rule_of(id) else { return Ok(NamedParts(Vec::new())) };
        let wanted: Vec<_> = rule.key_parts().collect();
        let is_shared = given.as_ref().is_some_and(Vec::is_empty);
        let given = given.unwrap_or_default();
        if given.len() != wanted.len() && !is_shared {
            let parts = wanted.into_iter().map(|part| part.name).collect();
            return Err(NoSuchKey::Parts { rule: rule.id().to_owned(), parts, given: given.len() }.into());
        }
        let is_cut = |(text, secret): (&String, bool)| match hash_digits(text) {
            Some(digits) if secret => digits.len() < WHOLE,
            _ => text.ends_with('…'),
        };
        let secrets: Vec<bool> = wanted.iter().map(|part| part.secret).collect();
        let read = |parts: Vec<String>| {
            let parts = parts.into_iter().zip(&secrets).map(|(text, &secret)| NamedPart::read(text, secret));
            NamedParts(parts.collect())
        };
        if !given.iter().zip(secrets.iter().copied()).any(is_cut) {
            return Ok(read(given));
        }
        let mut found =
            known_keys(engine, limit_ids(rule)).filter(|known| matches(&given, known)).collect::<BTreeSet<_>>();
        if let ([text], true) = (&given[..], found.is_empty()) {
            let known = present.rules.known_hashes().map(|hash| format!("#{hash}"));
            found = known.filter(|hash| hash.starts_with(&**text)).map(|hash| KnownKey::whole(vec![hash])).collect();
        }
        let mut wholes: Vec<Vec<String>> = found.into_iter().map(|known| known.whole).collect();
        wholes.dedup();
        match wholes.len() {
            1 => Ok(read(wholes.remove(0))),
            0 if !given.iter().zip(&secrets).any(|(text, secret)| *secret && hash_digits(text).is_some()) => {
                // The key has no hashed parts: a value may look like a truncated one.
                Ok(read(given))
            }
            0 => Err(not_found(format!(
                "no recently seen key of `{}`, and no key that the rules name, begins with {}. Send all 32 digits of the hash, as in `in_full` of /v1/keys/top, or the secret itself.",
                rule.id(),
                given.join(", "),
            ))),
            number => Err(not_found(format!(
                "{number} keys of `{}` begin with {}. Send all 32 digits of the hash, as in `in_full` of /v1/keys/top, or the secret itself.",
                rule.id(),
                given.join(", "),
            ))),
        }
    }

    pub(super) fn names(&self) -> KeyNames<'_> {
        let names = self.0.iter().map(|part| match part {
            NamedPart::Clear(value) => PartName::Clear(value),
            NamedPart::Hash(hash) => PartName::Hash(hash),
        });
        KeyNames(names.collect())
    }
}

impl KeyNames<'_> {
    /// The key with these parts.
    pub(super) fn key<'k>(&'k self, rule: &'k str, tier: Option<&'k str>) -> NamedKey<'k> {
        NamedKey { rule, parts: &self.0, tier }
    }
}

impl NamedPart {
    fn read(text: String, secret: bool) -> NamedPart {
        match hash_digits(&text) {
            Some(digits) if secret && digits.len() == WHOLE => NamedPart::Hash(digits.to_ascii_lowercase()),
            _ => NamedPart::Clear(text),
        }
    }
}

/// A key under one of Envoy's descriptors, or under the limits that come with requests for a domain.
pub(super) struct DescriptorKey {
    /// Values that the file leaves open, in the order of the entries.
    pub(super) key: Key<'static>,
    /// Limit of the descriptor; `None` if requests are unlimited or come with their limit.
    pub(super) limit: Option<Limit>,
}

impl DescriptorKey {
    /// The key with these values under the descriptor with this id; `None` if there is no such descriptor. Truncated
    /// values are looked up among recent keys.
    pub(super) fn resolve(
        engine: &Engine,
        id: &str,
        given: Option<&[String]>,
    ) -> Result<Option<DescriptorKey>, Problem> {
        let present = engine.limiter().rules();
        let mut domains = present.rules.domains();
        let limit = domains.find_map(|domain| {
            let listed = domain.limited_descriptors().find(|descriptor| descriptor.id.as_str() == id);
            listed.map(|descriptor| descriptor.limit()).or_else(|| domain.is_override(id).then_some(None))
        });
        let Some(limit) = limit else { return Ok(None) };
        let given = given.unwrap_or_default();
        let mut wholes = BTreeSet::new();
        if given.iter().any(|part| part.ends_with('…')) {
            let known = known_keys(engine, vec![id.to_owned()]).filter(|known| matches(given, known));
            wholes.extend(known.map(|known| known.whole));
        }
        if wholes.len() > 1 {
            return Err(not_found(format!(
                "{} keys of `{id}` begin with {}. Send the parts in full, as in `in_full` of /v1/keys/top.",
                wholes.len(),
                given.join(", "),
            )));
        }
        let whole = wholes.pop_first();
        let parts: Vec<&str> = whole.as_deref().unwrap_or(given).iter().map(String::as_str).collect();
        let key = match &parts[..] {
            [] => Key::GLOBAL,
            [only] => Key::from(*only),
            several => Key::of(several),
        };
        Ok(Some(DescriptorKey { key: key.owned(), limit }))
    }
}

/// Digits of a possible hash or its prefix: `#` and 8 to 32 hexadecimal digits.
fn hash_digits(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('#')?;
    let is_hash = (SHORTEST..=WHOLE).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(digits)
}

fn not_found(detail: String) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, detail)
}

/// A key that the server has seen.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KnownKey {
    whole: Vec<String>,
    readable: Vec<String>,
}

impl KnownKey {
    fn whole(whole: Vec<String>) -> KnownKey {
        KnownKey { readable: whole.clone(), whole }
    }
}

fn limit_ids(rule: &Rule) -> Vec<String> {
    rule.limit_ids().map(|id| id.as_str().to_owned()).collect()
}

/// Recent keys under limits with these ids.
fn known_keys(engine: &Engine, ids: Vec<String>) -> impl Iterator<Item = KnownKey> {
    let top = [Ranking::Traffic, Ranking::Denials].map(|ranking| engine.metrics().top_keys(ranking, usize::MAX).keys);
    let of_rule = top.into_iter().flatten().filter(move |top| ids.contains(&top.rule));
    of_rule.filter_map(|TopKey { key, in_full, .. }| in_full.map(|whole| KnownKey { whole, readable: key }))
}

fn matches(given: &[String], known: &KnownKey) -> bool {
    let is_it = |((given, whole), readable): ((&String, &String), &String)| {
        given == whole || given == readable || (hash_digits(given).is_some() && whole.starts_with(&**given))
    };
    given.len() == known.whole.len() && given.iter().zip(&known.whole).zip(&known.readable).all(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_told_from_values() {
        assert_eq!(hash_digits("#fa94eb5a"), Some("fa94eb5a"));
        for value in ["fa94eb5a", "#fa94eb5", "#fa94eb5g", "#", "", &format!("#{}", "a".repeat(33))] {
            assert_eq!(hash_digits(value), None, "{value}");
        }
        let whole = format!("#{}", "A".repeat(32));
        assert_eq!(NamedPart::read(whole.clone(), true), NamedPart::Hash("a".repeat(32)));
        assert_eq!(NamedPart::read(whole.clone(), false), NamedPart::Clear(whole));
    }
}
