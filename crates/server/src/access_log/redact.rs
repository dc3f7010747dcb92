//! Secrets in queries.

use std::borrow::Cow;

use tidegate_core::rules::{Secret, is_secret_name};
use tidegate_core::syntax;

/// A target or a URL with the values of secret parameters replaced by their hashes: `?api_key=%23` and 32 digits. Values that
/// are the same stay the same, so that a replay tells clients apart.
pub(super) fn redacted<'t>(target: &'t str, secret: &Secret) -> Cow<'t, str> {
    let Some((path, query)) = target.split_once('?') else { return Cow::Borrowed(target) };
    if !query.split('&').any(is_secret_parameter) {
        return Cow::Borrowed(target);
    }
    let mut text = String::with_capacity(target.len() + 32);
    text.push_str(path);
    let mut before = '?';
    for parameter in query.split('&') {
        text.push(before);
        before = '&';
        match parameter.split_once('=') {
            Some((name, value)) if is_secret_parameter(parameter) && !value.is_empty() => {
                text.push_str(name);
                text.push_str("=%23");
                let value = syntax::parameters(parameter, &decoded(name)).next().unwrap_or(Cow::Borrowed(value));
                text.push_str(&secret.hide(&value));
            }
            _ => text.push_str(parameter),
        }
    }
    Cow::Owned(text)
}

fn is_secret_parameter(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, _)| {
        if name.contains(['%', '+']) { is_secret_name(&decoded(name)) } else { is_secret_name(name) }
    })
}

/// A name without its escapes: what is spelled `%61pi_key` is secret too.
fn decoded(name: &str) -> Cow<'_, str> {
    if !name.contains(['%', '+']) {
        return Cow::Borrowed(name);
    }
    let bytes = name.as_bytes();
    let (mut text, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let escape = bytes.get(at + 1..at + 3).filter(|_| byte == b'%');
        let escape = escape.and_then(|digits| std::str::from_utf8(digits).ok());
        let escape = escape.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        at += if escape.is_some() { 3 } else { 1 };
        text.push(escape.unwrap_or(if byte == b'+' { b' ' } else { byte }));
    }
    Cow::Owned(String::from_utf8_lossy(&text).into_owned())
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
