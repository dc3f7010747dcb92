//! A fuzz target: paths as interpreted by servers behind the gateway.
//!
//! Each model does what a server does to a path before it selects a handler: decoding, truncating, resolving. For all of
//! these servers, a forwarded path must be the path that the rules have evaluated.

use tidegate_rules::{PathPolicy, normalize};
use tidegate_test_support::fuzz::{target, text};

/// A model of a server: the path, decoded, whose handler is called. `None` if the server refuses it.
type Upstream = fn(&[u8]) -> Option<Vec<u8>>;

const UPSTREAMS: [(&str, Upstream); 9] = [
    ("nginx", nginx),
    ("Caddy and Go", go),
    ("Werkzeug and gunicorn", werkzeug),
    ("Node's URL", node),
    ("Tomcat", tomcat),
    ("Tomcat, decoding slashes", lenient_tomcat),
    ("HAProxy", haproxy),
    ("a server that decodes twice", decodes_twice),
    ("a server that ends paths at NUL", ends_at_nul),
];

/// Decodes escapes once. `Err` if one is invalid.
fn decoded(path: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let (mut out, mut is_sound, mut rest) = (Vec::new(), true, path);
    while let [byte, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *byte == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[2..];
            }
            None => {
                is_sound &= *byte != b'%';
                out.push(*byte);
                rest = after;
            }
        }
    }
    if is_sound { Ok(out) } else { Err(out) }
}

/// Joins empty segments and resolves dots. `None` above the root.
fn resolved(path: &[u8]) -> Option<Vec<u8>> {
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop()?;
            }
            _ => segments.push(segment),
        }
    }
    Some([b"/", &segments.join(&b'/')[..]].concat())
}

/// Decodes once, then joins and resolves, so that an encoded slash is a slash.
fn nginx(path: &[u8]) -> Option<Vec<u8>> {
    resolved(&decoded(path).ok().filter(|path| !path.contains(&0))?)
}

/// `path.Clean` stays at the root in cases in which nginx refuses.
fn go(path: &[u8]) -> Option<Vec<u8>> {
    let path = decoded(path).ok()?;
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    Some([b"/", &segments.join(&b'/')[..]].concat())
}

/// Decodes valid escapes and joins slashes. Dots are ordinary segments.
fn werkzeug(path: &[u8]) -> Option<Vec<u8>> {
    let path = decoded(path).unwrap_or_else(|path| path);
    let segments: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()).collect();
    Some([b"/", &segments.join(&b'/')[..]].concat())
}

/// The URL standard: a backslash is a slash, tabs and line ends are removed, and dots are resolved even if encoded. Routers
/// then decode.
fn node(path: &[u8]) -> Option<Vec<u8>> {
    let path = path.iter().filter(|byte| !matches!(byte, b'\t' | b'\r' | b'\n'));
    let path: Vec<u8> = path.map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
    let path = path.split(|byte| *byte == b'#').next()?;
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| *byte == b'/').skip(1) {
        match segment.to_ascii_lowercase().as_slice() {
            b"." | b"%2e" => {}
            b".." | b".%2e" | b"%2e." | b"%2e%2e" => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    decoded(&[b"/", &segments.join(&b'/')[..]].concat()).ok()
}

/// Removes the parameters of each segment, refuses encoded slashes and backslashes, then decodes and resolves.
fn tomcat(path: &[u8]) -> Option<Vec<u8>> {
    let lower = path.to_ascii_lowercase();
    let has = |escape: &[u8]| lower.windows(escape.len()).any(|window| window == escape);
    if has(b"%2f") || has(b"%5c") || has(b"\\") || has(b"%00") {
        return None;
    }
    lenient_tomcat(path)
}

fn lenient_tomcat(path: &[u8]) -> Option<Vec<u8>> {
    let segments: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .map(|segment| segment.split(|byte| *byte == b';').next().unwrap_or(segment))
        .collect();
    let path: Vec<u8> = decoded(&segments.join(&b'/')).ok()?;
    resolved(&path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect::<Vec<_>>())
}

/// Compares the path as received.
fn haproxy(path: &[u8]) -> Option<Vec<u8>> {
    Some(path.to_vec())
}

fn decodes_twice(path: &[u8]) -> Option<Vec<u8>> {
    go(&decoded(path).ok()?)
}

fn ends_at_nul(path: &[u8]) -> Option<Vec<u8>> {
    let path = decoded(path).ok()?;
    go(path.split(|byte| *byte == 0).next()?)
}

/// The paths of handlers: ASCII, without escapes, no slash at the end.
fn is_plain(path: &[u8]) -> bool {
    let is_plain = |segment: &[u8]| {
        !matches!(segment, b"" | b"." | b"..")
            && segment.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte))
    };
    path.strip_prefix(b"/").is_some_and(|path| path.split(|byte| *byte == b'/').all(is_plain))
}

#[test]
fn a_path_that_goes_on_is_to_every_upstream_what_the_rules_have_judged() {
    const WORDS: [&str; 34] = [
        "/",
        "login",
        "/login",
        "x",
        "%2f",
        "%2F",
        "%5c",
        "\\",
        "..",
        ".",
        "%2e",
        "%2E%2e",
        "//",
        ";",
        "%3b",
        ";x=1",
        "%00",
        "%25",
        "%252f",
        "%6c",
        "ogin",
        "#",
        "?",
        "%23",
        "%3f",
        "\t",
        "\n",
        "%09",
        "%u002f",
        "%c0%af",
        "%",
        "é",
        "%20",
        "/x/../login",
    ];
    target!("upstream-paths").for_each(|bytes: &[u8]| {
        let path = text(bytes, &WORDS);
        let path = String::from_utf8_lossy(&path);
        // For every server, the query is not part of the path.
        let path = path.split('?').next().unwrap_or_default();
        for policy in [PathPolicy::Strict, PathPolicy::Canonical] {
            let Ok(forwarded) = policy.apply(path) else { continue };
            let judged = normalize(&forwarded);
            for (name, upstream) in UPSTREAMS {
                let Some(read) = upstream(forwarded.as_bytes()).filter(|read| is_plain(read)) else { continue };
                // Paths that rules consider equal are treated equally.
                assert_eq!(
                    judged,
                    normalize(&String::from_utf8_lossy(&read)),
                    "{path:?} goes on as {forwarded:?}, which {name} reads as {}",
                    read.escape_ascii()
                );
            }
        }
    });
}
