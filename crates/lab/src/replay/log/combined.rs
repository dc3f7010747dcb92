//! The common and combined log formats.
//!
//! ```text
//! 203.0.113.7 - ann [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "https://b.example/" "curl/8.5"
//! ```
//!
//! Apache's variant with a leading virtual host is accepted, and fields after the user agent are ignored.

use std::borrow::Cow;

use super::LineError;
use super::entry::{AccessEntry, address, present};
use super::text::{from_log, split_request, up_to_quote};
use super::time::TimeParser;

pub(super) fn read<'l>(line: &'l str, stamps: &TimeParser) -> Result<AccessEntry<'l>, LineError> {
    let open = memchr::memchr(b'[', line.as_bytes()).ok_or(LineError::NoTime)?;
    let (who, rest) = before_time(line, open).ok_or(LineError::NoTime)?;
    let close = memchr::memchr(b']', rest.as_bytes()).ok_or(LineError::NoTime)?;
    let at = stamps.common(&rest.as_bytes()[..close]).ok_or(LineError::BadTime)?;
    let mut entry = AccessEntry::at(at, true);
    identify(&mut entry, who);
    let rest = rest[close + 1..].trim_start_matches(' ').strip_prefix('"').ok_or(LineError::NoRequest)?;
    let (request, end, escaped) = up_to_quote(rest).ok_or(LineError::OpenQuote)?;
    let (method, target) = split_request(request).ok_or(LineError::BadRequest)?;
    entry.method = Some(Cow::Borrowed(method));
    entry.target = Some(if escaped { from_log(target) } else { Cow::Borrowed(target) });
    let mut rest = &rest[end + 1..];
    // Status and size, then the referrer and the user agent of the combined format.
    for field in [&mut entry.referer, &mut entry.agent] {
        let Some(quote) = memchr::memchr(b'"', rest.as_bytes()) else { break };
        rest = &rest[quote + 1..];
        let (text, end, escaped) = up_to_quote(rest).ok_or(LineError::OpenQuote)?;
        *field = present(if escaped { from_log(text) } else { Cow::Borrowed(text) });
        rest = &rest[end + 1..];
    }
    Ok(entry)
}

/// Splits a line at its time. Skips the bracket of an IPv6 address.
fn before_time(line: &str, open: usize) -> Option<(&str, &str)> {
    let bytes = line.as_bytes();
    if open > 0 && bytes.get(open - 1) == Some(&b' ') && bytes.get(open + 3) == Some(&b'/') {
        return Some((&line[..open - 1], &line[open + 1..]));
    }
    let open = memchr::memmem::find(bytes, b" [")?;
    Some((&line[..open], &line[open + 2..]))
}

/// `[host] address ident user`. User names may contain spaces.
fn identify<'l>(entry: &mut AccessEntry<'l>, who: &'l str) {
    let (first, rest) = word(who);
    entry.address = address(first);
    let (ident, rest) = word(rest);
    // An address in second position means that the first field is a virtual host.
    let user = match address(ident) {
        Some(behind) => {
            entry.address = Some(behind);
            entry.host = Some(Cow::Borrowed(first));
            word(rest).1
        }
        None => rest,
    };
    entry.user = match user {
        "-" | "" | "\"\"" => None,
        user if user.contains('\\') => Some(from_log(user)),
        user => Some(Cow::Borrowed(user)),
    };
}

/// The text before and after the first space.
fn word(text: &str) -> (&str, &str) {
    match text.as_bytes().iter().position(|byte| *byte == b' ') {
        Some(space) => (&text[..space], &text[space + 1..]),
        None => (text, ""),
    }
}
