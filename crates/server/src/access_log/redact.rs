//! Secrets in queries.

use std::borrow::Cow;

use tidegate_rules::{Secret, is_secret_name};

/// A target or a URL with the values of secret parameters replaced by their hashes: `?api_key=%23` and 32 digits. Equal
/// values have equal hashes, so that a replay can distinguish clients.
pub(super) fn redacted<'t>(target: &'t str, secret: &Secret) -> Cow<'t, str> {
    let Some((path, query)) = target.split_once('?') else { return Cow::Borrowed(target) };
    if query.split('&').all(|parameter| secret_value(parameter).is_none()) {
        return Cow::Borrowed(target);
    }
    let mut text = String::with_capacity(target.len() + 32);
    text.push_str(path);
    let mut before = '?';
    for parameter in query.split('&') {
        text.push(before);
        before = '&';
        match secret_value(parameter) {
            Some(value) => {
                let (name, _) = parameter.split_once('=').unwrap_or((parameter, ""));
                text.push_str(name);
                text.push_str("=%23");
                text.push_str(&secret.hide(&value));
            }
            None => text.push_str(parameter),
        }
    }
    Cow::Owned(text)
}

/// Decoded value of a parameter with a secret name, also if the name is percent-encoded (`%61pi_key`).
fn secret_value(parameter: &str) -> Option<Cow<'_, str>> {
    let (name, value) = form_urlencoded::parse(parameter.as_bytes()).next()?;
    (is_secret_name(&name) && !value.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
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
            ("https://b.example/?session=hunter2", format!("https://b.example/?session=%23{hash}")),
        ] {
            assert_eq!(redacted(target, &secret), wanted, "{target}");
        }
    }
}
