//! The members of a JSON object, scanned without allocation.

use std::borrow::Cow;
use std::iter;

use super::text::{from_json, up_to_quote};

/// A value, as written in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogValue<'l> {
    /// A string without its quotes, and whether it has escapes.
    Text(&'l str, bool),
    /// A number or a word.
    Bare(&'l str),
    /// An object, with its brackets.
    Object(&'l str),
    /// A list, with its brackets.
    List(&'l str),
}

impl<'l> LogValue<'l> {
    /// A string, number or word as text. `None` for `null`.
    pub(super) fn text(&self) -> Option<Cow<'l, str>> {
        match *self {
            LogValue::Text(raw, false) => Some(Cow::Borrowed(raw)),
            LogValue::Text(raw, true) => Some(from_json(raw)),
            LogValue::Bare("null") | LogValue::Object(_) | LogValue::List(_) => None,
            LogValue::Bare(raw) => Some(Cow::Borrowed(raw)),
        }
    }

    /// The items of a list, or the value itself.
    pub(super) fn items(self) -> impl Iterator<Item = LogValue<'l>> {
        let (alone, mut rest) = match self {
            LogValue::List(list) => (None, list.get(1..).unwrap_or_default()),
            other => (Some(other), ""),
        };
        let listed = iter::from_fn(move || {
            let (item, after) = value(rest.trim_start_matches([' ', '\t', ',']))?;
            rest = after;
            Some(item)
        });
        alone.into_iter().chain(listed)
    }

    pub(super) fn raw(&self) -> &'l str {
        match *self {
            LogValue::Text(raw, _) | LogValue::Bare(raw) | LogValue::Object(raw) | LogValue::List(raw) => raw,
        }
    }
}

/// The members of an object, in order. Ends early at invalid JSON, which [`Members::is_whole`] detects.
#[derive(Clone, Debug)]
pub(super) struct Members<'l> {
    rest: &'l str,
    whole: bool,
}

impl<'l> Members<'l> {
    pub(super) fn of(object: &'l str) -> Members<'l> {
        let rest = object.trim_start();
        match rest.strip_prefix('{') {
            Some(rest) => Members { rest, whole: false },
            None => Members { rest: "", whole: false },
        }
    }

    /// Whether the object is complete and nothing follows it.
    pub(super) const fn is_whole(&self) -> bool {
        self.whole
    }
}

impl<'l> Iterator for Members<'l> {
    type Item = (&'l str, LogValue<'l>);

    #[inline]
    fn next(&mut self) -> Option<(&'l str, LogValue<'l>)> {
        let rest = unspaced(self.rest);
        let rest = rest.strip_prefix(',').map_or(rest, unspaced);
        if let Some(after) = rest.strip_prefix('}') {
            self.whole = after.trim_start().is_empty();
            self.rest = "";
            return None;
        }
        let (key, end, _) = up_to_quote(rest.strip_prefix('"')?)?;
        let rest = unspaced(unspaced(rest.get(end + 2..)?).strip_prefix(':')?);
        let (value, rest) = value(rest)?;
        self.rest = rest;
        Some((key, value))
    }
}

/// The text without leading spaces, which are rare in JSON logs.
#[inline]
fn unspaced(text: &str) -> &str {
    match text.as_bytes().first() {
        Some(b' ' | b'\t') => text.trim_start(),
        _ => text,
    }
}

/// The value at the start of `text`, and the rest.
#[inline]
fn value(text: &str) -> Option<(LogValue<'_>, &str)> {
    match text.as_bytes().first()? {
        b'"' => {
            let (raw, end, escaped) = up_to_quote(&text[1..])?;
            Some((LogValue::Text(raw, escaped), &text[end + 2..]))
        }
        b'{' => nested(text).map(|end| (LogValue::Object(&text[..end]), &text[end..])),
        b'[' => nested(text).map(|end| (LogValue::List(&text[..end]), &text[end..])),
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t');
            let end = text.as_bytes().iter().position(ends).unwrap_or(text.len());
            (end > 0).then(|| (LogValue::Bare(&text[..end]), &text[end..]))
        }
    }
}

/// The offset of the bracket that closes the one at the start of `text`.
fn nested(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0_u32, 0);
    loop {
        match bytes.get(at)? {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b'"' => at += up_to_quote(text.get(at + 1..)?)?.1 + 1,
            _ => {}
        }
        at += 1;
    }
}
