//! Request targets: their parts, and the path policy applied to them.

use std::borrow::Cow;

use http::Uri;
use http::uri::PathAndQuery;
use tidegate_rules::syntax::split_authority;
use tidegate_rules::{PathPolicy, PathRefusal};

/// Applies a path policy to a target. The rest of the target stays unchanged.
///
/// ```
/// use http::Uri;
/// use tidegate_rules::{PathPolicy, PathRefusal};
/// use tidegate_http::apply_path_policy;
///
/// let mut target = Uri::from_static("/a//b/../%7euser?x=//y");
/// assert_eq!(apply_path_policy(PathPolicy::Canonical, &mut target), Ok(()));
/// assert_eq!(target, "/a/~user?x=//y");
///
/// let mut target = Uri::from_static("/x/..%2flogin");
/// assert_eq!(apply_path_policy(PathPolicy::Canonical, &mut target), Err(PathRefusal::EncodedSlash));
/// ```
///
/// # Errors
/// The policy refuses the path.
#[inline]
pub fn apply_path_policy(policy: PathPolicy, target: &mut Uri) -> Result<(), PathRefusal> {
    match policy.apply(target.path())? {
        Cow::Borrowed(_) => Ok(()),
        Cow::Owned(path) => with_path(target, path),
    }
}

#[cold]
fn with_path(target: &mut Uri, mut path: String) -> Result<(), PathRefusal> {
    if let Some(query) = target.query() {
        path.push('?');
        path.push_str(query);
    }
    let mut parts = std::mem::take(target).into_parts();
    // Cannot fail: canonical paths have only characters that a target may have, and the query came from one.
    parts.path_and_query = Some(PathAndQuery::try_from(path).map_err(|_| PathRefusal::NotCanonical)?);
    *target = Uri::from_parts(parts).map_err(|_| PathRefusal::NotCanonical)?;
    Ok(())
}

/// Checks that the path `*`, the server as a whole, comes with `OPTIONS`. Servers read it in different ways with other methods, and
/// rules for paths do not match it.
///
/// # Errors
/// The path is `*`, and the method is another.
#[inline]
pub fn check_asterisk(method: &str, path: &str) -> Result<(), PathRefusal> {
    if path == "*" && method != "OPTIONS" { Err(PathRefusal::Asterisk) } else { Ok(()) }
}

/// The path of a target as sent in the request line, with the fragment if there is one. Use it for [`PathPolicy::check`].
#[must_use]
pub fn path_of_target(target: &str) -> &str {
    let (authority, rest) = split_authority(target);
    let path = rest.split_once('?').map_or(rest, |(path, _)| path);
    // An absolute URI may have an empty path, which is equivalent to `/`. Any text in its place is a fragment.
    if authority.is_some() && !path.starts_with('/') { "/" } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_changes() {
        for (target, becomes) in [
            ("http://me@a.example:81//x/../y?//z/%2f#f", "http://me@a.example:81/y?//z/%2f"),
            ("/%61?", "/a?"),
            ("/%61", "/a"),
            ("//a", "/a"),
        ] {
            let mut uri: Uri = target.parse().unwrap();
            apply_path_policy(PathPolicy::Canonical, &mut uri).unwrap();
            assert_eq!(uri.to_string(), becomes, "{target}");
        }
        for target in ["*", "/", "/a/?x", "http://a.example", "http://a.example?x", "a.example:80"] {
            let mut uri: Uri = target.parse().unwrap();
            let before = uri.to_string();
            apply_path_policy(PathPolicy::Strict, &mut uri).unwrap();
            assert_eq!(uri.to_string(), before, "{target}");
        }
    }

    #[test]
    fn only_options_asks_for_the_server_as_a_whole() {
        assert_eq!(check_asterisk("OPTIONS", "*"), Ok(()));
        for method in ["GET", "POST", "options", "CONNECT", ""] {
            assert_eq!(check_asterisk(method, "*"), Err(PathRefusal::Asterisk));
            assert_eq!(check_asterisk(method, "/*"), Ok(()));
        }
    }

    #[test]
    fn a_path_keeps_its_fragment_to_be_refused_for_it() {
        for (target, path) in [
            ("/a?b?c", "/a"),
            ("/a#b?c", "/a#b"),
            ("http://me@h:1/a?b", "/a"),
            ("http://h?b", "/"),
            ("http://h#b", "/"),
            ("http://h", "/"),
            ("/to#://h/x", "/to#://h/x"),
        ] {
            assert_eq!(path_of_target(target), path, "{target}");
        }
    }
}
