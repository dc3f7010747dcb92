//! Secrets in queries.

use std::borrow::Cow;

use tidegate_rules::Secret;
use tidegate_rules::syntax::{is_secret_parameter, replace_values};

/// A target or a URL with the values of secret parameters replaced by their hashes: `?api_key=%23` and 32 digits. Equal
/// values have equal hashes, so that a replay can distinguish clients. Parameters are those that rules read.
pub(super) fn redacted<'t>(target: &'t str, secret: &Secret) -> Cow<'t, str> {
    let Some((path, query)) = target.split_once('?') else { return Cow::Borrowed(target) };
    let hidden = |name: &str, value: &str| {
        (!value.is_empty() && is_secret_parameter(name)).then(|| format!("%23{}", secret.hide(value)))
    };
    match replace_values(query, hidden) {
        Cow::Borrowed(_) => Cow::Borrowed(target),
        Cow::Owned(query) => Cow::Owned(format!("{path}?{query}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_rules::syntax::parameters;

    use super::*;

    #[test]
    fn values_of_secret_parameters_become_hashes_and_nothing_else_changes() {
        let secret = Secret::new(b"0123456789abcdef");
        let hash = secret.hide("hunter2");
        for (target, wanted) in [
            ("/a", "/a".to_owned()),
            ("/a?x=1&y=2", "/a?x=1&y=2".to_owned()),
            ("/a?x=1&api_key=hunter2&y=2", format!("/a?x=1&api_key=%23{hash}&y=2")),
            ("/a?Access_Token=hunter2", format!("/a?Access_Token=%23{hash}")),
            ("/a?%61pi_%6bey=hunter%32", format!("/a?%61pi_%6bey=%23{hash}")),
            ("/a?token=&key", "/a?token=&key".to_owned()),
            ("/?x=1;api_key=hunter2", format!("/?x=1;api_key=%23{hash}")),
            ("/?x=1;api_key=hunter2;y=2&z", format!("/?x=1;api_key=%23{hash};y=2&z")),
            ("/?api_key=hunter2;y=2&z", format!("/?api_key=%23{}&z", secret.hide("hunter2;y=2"))),
            ("/?p%00in=hunter2&pIn[]=hunter2", format!("/?p%00in=%23{hash}&pIn[]=%23{hash}")),
            ("https://b.example/?session=hunter2", format!("https://b.example/?session=%23{hash}")),
        ] {
            assert_eq!(redacted(target, &secret), wanted, "{target}");
        }
    }

    proptest! {
        #[test]
        fn rules_read_only_hashes_of_secrets_in_what_is_logged(
            query in "(api_key|api\\.key|%61pi_key|to%00ken|token\\[\\]|pIn|page|=|=|&|;|%3B|%26|hunter|2|#|\\?|\\+|%){0,16}",
        ) {
            let secret = Secret::new(b"0123456789abcdef");
            let target = format!("/?{query}");
            let logged = redacted(&target, &secret);
            let logged = logged.strip_prefix("/?").unwrap();
            for name in ["api_key", "token", "pin"] {
                for value in parameters(logged, name) {
                    let is_hash = value.strip_prefix('#').is_some_and(|hash| hash.len() == 32);
                    prop_assert!(value.is_empty() || is_hash, "{} in {}", value, logged);
                }
            }
        }
    }
}
