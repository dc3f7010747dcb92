//! Spellings of paths: which of them all servers read alike, and their canonical form.
//!
//! Servers differ in what they decode, in which order, and in how they treat empty segments, dots, backslashes and path
//! parameters. If two servers read a path in two ways, rules may see one path and the handler another. So a spelling is
//! *canonical*, has a canonical form that all servers read alike, or is *ambiguous*:
//!
//! | in a path | | why |
//! |---|---|---|
//! | `//`, `/./`, `/../`, encoded or not | resolved; never above the root; a slash at the end stays | RFC 3986, 6.2.2.3 |
//! | `%41`, `%7e` (letters, digits, `-._~`) | decoded | RFC 3986, 6.2.2.2 |
//! | `%c3%a9` | in upper case | RFC 3986, 6.2.2.1 |
//! | `é`, `"`, `[` and others that should be encoded | encoded | as clients should |
//! | `%21`, `%3A` and other encoded delimiters | kept | upstreams may differ (`+`, `%2B`); [rules](super::normalize) do not |
//! | `%2f`, `%5c`, `\` | ambiguous | a slash to some servers, a character to others |
//! | `;`, `%3b` | ambiguous | Tomcat, Jetty and others cut it off, with what follows in its segment |
//! | `%00` to `%1f`, `%7f` | ambiguous | ends the path, is dropped, or matches `$` in expressions, depending on the server |
//! | `%25` before two hexadecimal digits | ambiguous | a second decoding changes it |
//! | `%` without two hexadecimal digits | ambiguous | depending on the server, refused, kept, or read as in `%u002f` |
//! | bytes that are not UTF-8, once decoded | ambiguous | another encoding, a replacement or an overlong `/`, by server |
//! | `#` | ambiguous | a fragment or a character, depending on the server |

use std::borrow::Cow;

use super::path::{escape, is_plain, is_unreserved, push};

/// The policy for paths that have several spellings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathPolicy {
    /// Paths that are not canonical are refused.
    Strict,
    /// Paths are made canonical. Paths without a canonical form are refused.
    #[default]
    Canonical,
    /// Paths are not changed. A spelling that servers decode but rules do not can bypass rules.
    AsIs,
}

impl PathPolicy {
    /// Returns the path to use instead of `path`, which must not contain a query. Borrowed if it is the same, as nearly
    /// always.
    ///
    /// # Errors
    /// Fails if the path must be refused.
    pub fn apply(self, path: &str) -> Result<Cow<'_, str>, PathRefusal> {
        match self {
            PathPolicy::AsIs => Ok(Cow::Borrowed(path)),
            PathPolicy::Canonical => Ok(canonical(path)?.0),
            PathPolicy::Strict => match canonical(path)? {
                (path @ Cow::Borrowed(_), _) => Ok(path),
                (Cow::Owned(_), _) => Err(PathRefusal::NotCanonical),
            },
        }
    }

    /// Checks whether `path`, without its query, may be used unchanged, for callers that cannot change it. Except under
    /// [`PathPolicy::AsIs`], dot segments and empty segments are then refused: some servers resolve them, others do not.
    ///
    /// # Errors
    /// Fails if the path must be refused.
    pub fn check(self, path: &str) -> Result<(), PathRefusal> {
        match self {
            PathPolicy::AsIs | PathPolicy::Strict => self.apply(path).map(|_| ()),
            PathPolicy::Canonical => match canonical(path)? {
                (_, Segments::Kept) => Ok(()),
                (_, Segments::Resolved) => Err(PathRefusal::Unresolved),
            },
        }
    }
}

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason())]
pub enum PathRefusal {
    /// The path contains an encoded slash or backslash.
    EncodedSlash,
    /// The path contains a backslash.
    Backslash,
    /// The path contains a control character.
    Control,
    /// The path contains an escape that is itself encoded.
    EncodedTwice,
    /// The path contains a `%` without two hexadecimal digits.
    BadEscape,
    /// A segment has parameters.
    Parameters,
    /// The decoded path is not UTF-8.
    NotUtf8,
    /// The path contains a fragment.
    Fragment,
    /// The path does not begin with a slash.
    NoRoot,
    /// It is `*`, the server as a whole, and the method is not `OPTIONS`.
    Asterisk,
    /// There are empty segments or dot segments, and nothing resolves them.
    Unresolved,
    /// Only canonical paths are accepted.
    NotCanonical,
}

impl PathRefusal {
    /// The reason as a sentence, for clients. Contains no percent signs, so that it is valid in a gRPC message.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            PathRefusal::EncodedSlash => {
                "The path has an encoded slash or backslash, which separates segments at some servers and not at others."
            }
            PathRefusal::Backslash => {
                "The path has a backslash, which separates segments at some servers and not at others."
            }
            PathRefusal::Control => "The path has an encoded control character.",
            PathRefusal::EncodedTwice => "The path is encoded twice.",
            PathRefusal::BadEscape => "The path has a percent sign that is not followed by two hexadecimal digits.",
            PathRefusal::Parameters => {
                "The path has parameters behind a semicolon, which some servers cut off and others do not."
            }
            PathRefusal::NotUtf8 => "The path is not UTF-8 once it is decoded.",
            PathRefusal::Fragment => "The target has a fragment.",
            PathRefusal::NoRoot => "The path does not begin with a slash.",
            PathRefusal::Asterisk => "The target is an asterisk, which only OPTIONS may have.",
            PathRefusal::Unresolved => {
                "The path has empty segments or dot segments, which some servers resolve and others do not."
            }
            PathRefusal::NotCanonical => {
                "The path is not in canonical form: it has empty segments, dot segments, or characters with an escape \
                 that they do not need or without one that they need."
            }
        }
    }
}

/// Whether the canonical form has the same segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segments {
    Kept,
    Resolved,
}

/// The canonical form of a path, borrowed if the path is already canonical.
fn canonical(path: &str) -> Result<(Cow<'_, str>, Segments), PathRefusal> {
    if is_canonical(path.as_bytes()) {
        return Ok((Cow::Borrowed(path), Segments::Kept));
    }
    let (rewritten, segments) = rewrite(path)?;
    Ok((if rewritten == path { Cow::Borrowed(path) } else { Cow::Owned(rewritten) }, segments))
}

/// Fast check whether a path is canonical: without escapes, empty segments, and segments that begin with a dot.
fn is_canonical(path: &[u8]) -> bool {
    let mut before = match path {
        // An empty path, which stands for the root, or the target of `OPTIONS *`.
        [] | [b'*'] => return true,
        [b'/', ..] => 0,
        _ => return false,
    };
    for &byte in path {
        let is_clear = match byte {
            b'/' | b'.' => before != b'/',
            _ => CLEAR[usize::from(byte)],
        };
        if !is_clear {
            return false;
        }
        before = byte;
    }
    true
}

/// Bytes with the same meaning in every position.
static CLEAR: [bool; 256] = {
    let mut clear = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        clear[byte as usize] = is_plain(byte) && byte != b';' && byte != b'.';
        byte += 1;
    }
    clear
};

// Few paths need this.
#[cold]
fn rewrite(path: &str) -> Result<(String, Segments), PathRefusal> {
    let Some(rest) = path.strip_prefix('/') else { return Err(PathRefusal::NoRoot) };
    let (mut out, mut resolved) = (String::with_capacity(path.len() + 8), Segments::Kept);
    let mut raw = rest.split('/').peekable();
    while let Some(segment) = raw.next() {
        let (from, is_last) = (out.len(), raw.peek().is_none());
        out.push('/');
        rewrite_segment(segment, &mut out)?;
        match &out[from + 1..] {
            // A path that ends with a slash has one empty segment at its end.
            "" if is_last => {}
            "" | "." => {
                resolved = Segments::Resolved;
                out.truncate(from);
            }
            ".." => {
                resolved = Segments::Resolved;
                out.truncate(out[..from].rfind('/').unwrap_or(0));
            }
            _ => continue,
        }
        if is_last && !out.ends_with('/') {
            out.push('/');
        }
    }
    Ok((out, resolved))
}

/// Writes a segment in its canonical form.
fn rewrite_segment(raw: &str, out: &mut String) -> Result<(), PathRefusal> {
    let (from, mut decoded) = (out.len(), Vec::with_capacity(raw.len()));
    let mut rest = raw.as_bytes();
    while let [byte, after @ ..] = rest {
        let (byte, is_encoded) = match (*byte, escape(after)) {
            (b'%', Some(byte)) => (byte, true),
            (b'%', None) => return Err(PathRefusal::BadEscape),
            (byte, _) => (byte, false),
        };
        rest = if is_encoded { &after[2..] } else { after };
        match byte {
            b'/' => return Err(PathRefusal::EncodedSlash),
            b'\\' if is_encoded => return Err(PathRefusal::EncodedSlash),
            b'\\' => return Err(PathRefusal::Backslash),
            b';' => return Err(PathRefusal::Parameters),
            b'#' if !is_encoded => return Err(PathRefusal::Fragment),
            0..=0x1f | 0x7f => return Err(PathRefusal::Control),
            _ => {}
        }
        decoded.push(byte);
        push(out, byte, if is_encoded { is_unreserved(byte) } else { is_plain(byte) });
    }
    if std::str::from_utf8(&decoded).is_err() {
        return Err(PathRefusal::NotUtf8);
    }
    // Checked after decoding, because the digits may have been encoded themselves.
    let hides_an_escape = |(at, _)| escape(&out.as_bytes()[from + at + 3..]).is_some();
    if out[from..].match_indices("%25").any(hides_an_escape) {
        return Err(PathRefusal::EncodedTwice);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::normalize;

    #[test]
    fn a_canonical_path_stays_as_it_is() {
        for path in [
            "",
            "*",
            "/",
            "/login",
            "/login/",
            "/a/b.c/d..",
            "/.well-known/x",
            "/...",
            "/..a/.b",
            "/caf%C3%A9/%20",
            "/a%21b!$&'()*+,=:@",
            "/100%25",
            "/100%25x",
            "/%3F%23",
        ] {
            for policy in [PathPolicy::Strict, PathPolicy::Canonical, PathPolicy::AsIs] {
                assert!(matches!(policy.apply(path), Ok(Cow::Borrowed(same)) if same == path), "{path} {policy:?}");
                assert_eq!(policy.check(path), Ok(()), "{path} {policy:?}");
            }
        }
    }

    #[test]
    fn unambiguous_spellings_become_canonical() {
        for (path, canonical, unchanged) in [
            ("//login", "/login", Err(PathRefusal::Unresolved)),
            ("/login//", "/login/", Err(PathRefusal::Unresolved)),
            ("/login/.", "/login/", Err(PathRefusal::Unresolved)),
            ("/login/x/..", "/login/", Err(PathRefusal::Unresolved)),
            ("/x/%2e%2E/login", "/login", Err(PathRefusal::Unresolved)),
            ("/../../login", "/login", Err(PathRefusal::Unresolved)),
            ("/a/b/../../..", "/", Err(PathRefusal::Unresolved)),
            ("/a/./b/..//c", "/a/c", Err(PathRefusal::Unresolved)),
            ("//", "/", Err(PathRefusal::Unresolved)),
            ("/%2e", "/", Err(PathRefusal::Unresolved)),
            ("/%6cogin/", "/login/", Ok(())),
            ("/%c3%a9", "/%C3%A9", Ok(())),
            ("/é[]|\"", "/%C3%A9%5B%5D%7C%22", Ok(())),
            ("/%2a%3a%7E", "/%2A%3A~", Ok(())),
        ] {
            assert_eq!(PathPolicy::Canonical.apply(path).as_deref(), Ok(canonical), "{path}");
            assert_eq!(PathPolicy::Canonical.check(path), unchanged, "{path}");
            assert_eq!(PathPolicy::Strict.apply(path), Err(PathRefusal::NotCanonical), "{path}");
            assert_eq!(PathPolicy::Strict.check(path), Err(PathRefusal::NotCanonical), "{path}");
            assert_eq!(PathPolicy::AsIs.apply(path).as_deref(), Ok(path));
            assert_eq!(PathPolicy::AsIs.check(path), Ok(()));
        }
    }

    #[test]
    fn ambiguous_spellings_are_refused() {
        for (path, why) in [
            ("/%2flogin", PathRefusal::EncodedSlash),
            ("/x/..%2Flogin", PathRefusal::EncodedSlash),
            ("/x%5clogin", PathRefusal::EncodedSlash),
            ("/x\\login", PathRefusal::Backslash),
            ("/login%00", PathRefusal::Control),
            ("/login%0a", PathRefusal::Control),
            ("/login%7F", PathRefusal::Control),
            ("/%252flogin", PathRefusal::EncodedTwice),
            ("/%25%32%66login", PathRefusal::EncodedTwice),
            ("/%252%46login", PathRefusal::EncodedTwice),
            ("/%25256c", PathRefusal::EncodedTwice),
            ("/100%", PathRefusal::BadEscape),
            ("/%u002flogin", PathRefusal::BadEscape),
            ("/%4", PathRefusal::BadEscape),
            ("/%é0", PathRefusal::BadEscape),
            ("/login;x=1", PathRefusal::Parameters),
            ("/x/..;/login", PathRefusal::Parameters),
            ("/login%3b", PathRefusal::Parameters),
            ("/%c0%aflogin", PathRefusal::NotUtf8),
            ("/%e9t%e9", PathRefusal::NotUtf8),
            ("/login#x", PathRefusal::Fragment),
            ("login", PathRefusal::NoRoot),
            ("*x", PathRefusal::NoRoot),
        ] {
            assert_eq!(PathPolicy::Canonical.apply(path), Err(why), "{path}");
            assert_eq!(PathPolicy::Canonical.check(path), Err(why), "{path}");
            assert_eq!(PathPolicy::Strict.apply(path), Err(why), "{path}");
            assert_eq!(PathPolicy::AsIs.apply(path).as_deref(), Ok(path));
        }
    }

    proptest! {
        #[test]
        fn rules_judge_a_path_as_it_is_forwarded(path in "/(/|\\.|%2[eE0-9a]|%[346][0-9a-f]|%25|%c3%A9|[a-c0-9!:*\\[]|\\PC){0,20}") {
            prop_assume!(!path.contains('?'));
            if let Ok(canonical) = PathPolicy::Canonical.apply(&path) {
                prop_assert_eq!(normalize(&canonical), normalize(&path));
                // The canonical form is stable.
                prop_assert!(matches!(PathPolicy::Strict.apply(&canonical), Ok(Cow::Borrowed(_))), "{}", canonical);
            }
        }

        #[test]
        fn the_quick_check_agrees_with_the_full_one(path in "/?(/|\\.|[a-b!:*]|;|%41|%C3%A9|\\\\|é){0,12}") {
            if is_canonical(path.as_bytes()) && !matches!(path.as_str(), "" | "*") {
                prop_assert_eq!(rewrite(&path), Ok((path.clone(), Segments::Kept)));
            }
        }
    }
}
