//! The key that secrets are hashed with.

use tidegate_rules::{RuleSet, Secret};

use super::error::InvalidValue;
use super::{ConfigErrors, ConfigReader, Configuration, Layers, StartupArgs, StoreSettings};

const KEY: &str = "secrets.key";
const PREVIOUS: &str = "secrets.previous";

/// Value of `secrets.previous` if there was no key before.
const BUILT_IN: &str = "built-in";

impl Configuration {
    /// Key that a new server hashes secrets with. Default: a random key if state is in memory, and the built-in key
    /// otherwise, so that a fleet shares its counters.
    #[must_use]
    pub fn secret(&self) -> Secret {
        match (&self.secrets, &self.store) {
            (Some(secret), _) => secret.clone(),
            (None, StoreSettings::Memory { .. }) => Secret::random(),
            (None, StoreSettings::Redis { .. }) => Secret::default(),
        }
    }
}

/// The configured key and previous key, for commands that make no decisions; `None` if none is set.
///
/// # Errors
/// All errors in these settings, or in reading the file.
pub(crate) fn secret_given(
    given: &StartupArgs,
    variables: &[(String, String)],
) -> Result<Option<Secret>, ConfigErrors> {
    let (layers, _) = Layers::collect(given, variables)?;
    let mut reading =
        ConfigReader { layers: &layers, errors: Vec::new(), certificates: Vec::new(), warnings: Vec::new() };
    let secret = reading.secrets();
    if reading.errors.is_empty() { Ok(secret) } else { Err(ConfigErrors(reading.errors)) }
}

/// Warning about rules whose secrets are hashed with the built-in key in Redis; `None` if there are none.
pub(crate) fn built_in_key_warning(rules: &RuleSet) -> Option<String> {
    let first = rules.keyed_by_secrets().next().filter(|_| rules.secret().is_built_in())?;
    Some(format!(
        "`{KEY}` is not set, and the rule `{}` is keyed by a secret: secrets in Redis are hashed with a publicly known key, so that guesses can be tested against the hashes. `openssl rand -hex 16` makes a key; give it to all nodes",
        first.id()
    ))
}

/// Like [`built_in_key_warning`], for rules whose store is not known yet.
pub(crate) fn key_needed_note(rules: &RuleSet) -> Option<String> {
    let first = rules.keyed_by_secrets().next()?;
    Some(format!(
        "the rule `{}` is keyed by a secret: where state is in Redis, set `{KEY}` on all nodes; `openssl rand -hex 16` \
         makes one",
        first.id()
    ))
}

impl ConfigReader<'_> {
    /// The key and the previous key; `None` if none is set, or on an error.
    pub(super) fn secrets(&mut self) -> Option<Secret> {
        let is_set = |name| self.layers.get(name).is_some_and(|found| !found.values.is_empty());
        if is_set(PREVIOUS) && !is_set(KEY) {
            let help = "set `secrets.key` to the new key, or remove this";
            self.wrong(PREVIOUS, "there is no key that replaces it", help);
            return None;
        }
        let key = self.value(KEY, key);
        let previous = self.value(PREVIOUS, previous);
        match (key?, previous) {
            (key, None) => Some(key),
            (key, Some(previous)) => match key.with_previous(&previous) {
                Ok(secret) => Some(secret),
                Err(_) => {
                    let help = "write the key that was in use before, or remove it once the rotation is over";
                    self.wrong(PREVIOUS, "it is the same as `secrets.key`", help);
                    None
                }
            },
        }
    }
}

/// Parses a key. Errors do not quote it.
fn key(value: &str) -> Result<Secret, InvalidValue> {
    let secret = hexadecimal(value)?;
    if secret.is_built_in() {
        let help = "make one with `openssl rand -hex 16`";
        return Err(InvalidValue::new("this is the built-in key, which is publicly known", help));
    }
    Ok(secret)
}

fn previous(value: &str) -> Result<Secret, InvalidValue> {
    if value == BUILT_IN { Ok(Secret::default()) } else { hexadecimal(value) }
}

fn hexadecimal(value: &str) -> Result<Secret, InvalidValue> {
    value.parse().map_err(|_| {
        let digits = value.chars().filter(char::is_ascii_hexdigit).count();
        let problem = match value.chars().count() {
            length if length == digits => format!("a key has 32 hexadecimal digits, but this one has {digits}"),
            length => {
                format!("a key has 32 hexadecimal digits, but this one has {length} characters, of which {digits} are hexadecimal digits")
            }
        };
        InvalidValue::new(problem, "write the output of `openssl rand -hex 16`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "00112233445566778899aabbccddeeff";
    const OTHER: &str = "ffeeddccbbaa99887766554433221100";
    /// The bytes of `tidegate, no key` as a key.
    const PUBLIC: &str = "74696465676174652c206e6f206b6579";

    fn given(settings: &[(&str, &str)]) -> Result<Option<Secret>, String> {
        let flags = settings.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()])).collect();
        secret_given(&StartupArgs { file: None, flags }, &[]).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_key_is_read_with_its_previous_one() {
        let secret = |text: &str| text.parse::<Secret>().unwrap();
        assert_eq!(given(&[]), Ok(None));
        assert_eq!(given(&[(KEY, ONE)]), Ok(Some(secret(ONE))));
        let both = secret(ONE).with_previous(&secret(OTHER)).unwrap();
        assert_eq!(given(&[(KEY, ONE), (PREVIOUS, OTHER)]), Ok(Some(both)));
        let first = secret(ONE).with_previous(&Secret::default()).unwrap();
        assert_eq!(given(&[(KEY, ONE), (PREVIOUS, BUILT_IN)]), Ok(Some(first.clone())));
        assert_eq!(given(&[(KEY, ONE), (PREVIOUS, PUBLIC)]), Ok(Some(first)));
    }

    #[test]
    fn a_wrong_key_is_told_of_and_not_repeated() {
        for (settings, name, told) in [
            (&[(KEY, "hunter2")][..], "--secrets-key", "this one has 7 characters, of which 2 are"),
            (&[(KEY, "abc123")], "--secrets-key", "this one has 6"),
            (&[(KEY, "")], "--secrets-key", "this one has 0"),
            (&[(KEY, PUBLIC)], "--secrets-key", "the built-in key, which is publicly known"),
            (&[(KEY, BUILT_IN)], "--secrets-key", "32 hexadecimal digits"),
            (&[(KEY, ONE), (PREVIOUS, "hunter2")], "--secrets-previous", "32 hexadecimal digits"),
            (&[(KEY, ONE), (PREVIOUS, ONE)], "--secrets-previous", "the same as `secrets.key`"),
            (&[(PREVIOUS, ONE)], "--secrets-previous", "set `secrets.key`"),
        ] {
            let said = given(settings).unwrap_err();
            assert!(said.contains(name) && said.contains(told), "{settings:?}: {said}");
            assert!(!said.contains("hunter2") && !said.contains(ONE) && !said.contains("abc123"), "{said}");
        }
    }

    #[test]
    fn rules_are_warned_of_only_under_the_built_in_key() {
        let rules =
            |key: &str| RuleSet::parse("r", &format!("rules: [{{ id: a, key: {key}, limit: 1/s }}]")).unwrap().rules;
        assert!(built_in_key_warning(&rules("api_key")).is_some_and(|said| said.contains("openssl rand -hex 16")));
        assert_eq!(built_in_key_warning(&rules("user")), None);
        assert_eq!(built_in_key_warning(&rules("api_key").with_secret(ONE.parse().unwrap())), None);
    }
}
