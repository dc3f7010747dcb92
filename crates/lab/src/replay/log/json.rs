//! Logs with one JSON object per line.
//!
//! The object is scanned once, member by member, without allocation. Members have the names of nginx's variables, Caddy,
//! Envoy and Tidegate's own format. The names do not collide, except that Caddy counts durations in seconds and Envoy in
//! milliseconds.

use std::borrow::Cow;
use std::iter;

use tidegate_core::Micros;

use super::combined::split_request;
use super::entry::{AccessEntry, More, address, said};
use super::text::{from_json, up_to_quote};
use super::time::{self, LogTime};
use super::{LineError, LogFormat};

/// The program that wrote the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogDialect {
    Nginx,
    Caddy,
    Envoy,
    Own,
}

/// A value, as written in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogValue<'l> {
    /// A string without its quotes, and whether it has escapes.
    Text(&'l str, bool),
    /// A number or a word.
    Bare(&'l str),
    /// With its brackets.
    Object(&'l str),
    /// With its brackets.
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

    fn raw(&self) -> &'l str {
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

/// The text without leading spaces, which JSON in logs seldom has.
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

/// The program that wrote a line of JSON.
pub(super) fn detect(line: &str) -> Option<LogFormat> {
    let mut members = Members::of(line);
    let mut format = None;
    for (key, value) in members.by_ref() {
        match (key, value) {
            ("request", LogValue::Object(_)) => format = Some(LogFormat::CaddyJson),
            ("start_time" | "response_code" | "response_flags" | "downstream_remote_address", _) => {
                format = format.or(Some(LogFormat::EnvoyJson));
            }
            ("remote_addr" | "request_uri" | "time_local" | "time_iso8601" | "request_method" | "request", _) => {
                format = format.or(Some(LogFormat::NginxJson));
            }
            _ => {}
        }
    }
    members.is_whole().then(|| format.unwrap_or(LogFormat::Jsonl))
}

pub(super) fn read(line: &str, dialect: LogDialect) -> Result<AccessEntry<'_>, LineError> {
    let mut entry = AccessEntry::at(tidegate_core::Timestamp::EPOCH, false);
    let mut stamp = TimeInLine::Nothing;
    let (mut headers, mut claims) = ("", "");
    let mut members = Members::of(line);
    for (key, value) in members.by_ref() {
        match key {
            "msec" | "ts" | "start_time" | "time" | "time_iso8601" | "time_local" | "timestamp" | "@timestamp" => {
                stamp.see(time::any(value.raw().as_bytes()));
            }
            "remote_addr" | "address" | "client_ip" | "downstream_remote_address" | "ip" => {
                entry.address = said(&value).and_then(|text| address(&text)).or(entry.address);
            }
            "downstream_direct_remote_address" | "remote_ip" => {
                entry.address = entry.address.or_else(|| said(&value).and_then(|text| address(&text)));
            }
            "request" => match value {
                LogValue::Object(object) => headers = caddy(&mut entry, object),
                value => request(&mut entry, &value)?,
            },
            "method" | "request_method" => entry.method = said(&value),
            "request_uri" | "path" | "uri" => {
                // nginx's `$uri` lacks the query, so members with a query take precedence.
                if let Some(target) = said(&value).filter(|_| key != "uri" || entry.target.is_none()) {
                    entry.target = Some(target);
                }
            }
            "host" | "http_host" | "authority" => entry.host = said(&value).or(entry.host.take()),
            "server_name" => entry.host = entry.host.take().or_else(|| said(&value)),
            "remote_user" | "user" | "user_id" => entry.user = said(&value).or(entry.user.take()),
            "api_key" => entry.api_key = said(&value),
            "tier" => entry.tier = said(&value),
            "http_user_agent" | "user_agent" => entry.agent = said(&value),
            "http_referer" | "referer" => entry.referer = said(&value),
            "cost" if dialect == LogDialect::Own => entry.cost = Some(cost(&value)?),
            "headers" if dialect == LogDialect::Own => headers = value.raw(),
            "claims" if dialect == LogDialect::Own => claims = value.raw(),
            "request_time" => entry.took = span(&value, 1_000_000.0),
            "duration_ms" => entry.took = span(&value, 1_000.0),
            "duration" => {
                entry.took = span(&value, if dialect == LogDialect::Envoy { 1_000.0 } else { 1_000_000.0 });
            }
            _ => {}
        }
    }
    if !members.is_whole() {
        return Err(LineError::NotJson);
    }
    LogTime { at: entry.at, whole: entry.whole_second } = stamp.found()?;
    entry.more = match dialect {
        LogDialect::Nginx | LogDialect::Envoy => More::Variables(line),
        LogDialect::Caddy | LogDialect::Own => More::Objects { headers, claims },
    };
    if entry.target.is_none() && dialect != LogDialect::Own {
        return Err(LineError::NoRequest);
    }
    Ok(entry)
}

/// The most precise time of a line.
enum TimeInLine {
    Nothing,
    Unreadable,
    Known(LogTime),
}

impl TimeInLine {
    fn see(&mut self, stamp: Option<LogTime>) {
        match (&self, stamp) {
            (TimeInLine::Known(known), Some(stamp)) if !known.whole || stamp.whole => {}
            (_, Some(stamp)) => *self = TimeInLine::Known(stamp),
            (TimeInLine::Nothing, None) => *self = TimeInLine::Unreadable,
            (_, None) => {}
        }
    }

    const fn found(&self) -> Result<LogTime, LineError> {
        match self {
            TimeInLine::Known(stamp) => Ok(*stamp),
            TimeInLine::Unreadable => Err(LineError::BadTime),
            TimeInLine::Nothing => Err(LineError::NoTime),
        }
    }
}

/// `GET /a HTTP/1.1`, as nginx's `$request` has it.
fn request<'l>(entry: &mut AccessEntry<'l>, value: &LogValue<'l>) -> Result<(), LineError> {
    let Some(text) = value.text() else { return Ok(()) };
    let (method, target) = match &text {
        Cow::Borrowed(text) => {
            let (method, target) = split_request(text).ok_or(LineError::BadRequest)?;
            (Cow::Borrowed(method), Cow::Borrowed(target))
        }
        Cow::Owned(text) => {
            let (method, target) = split_request(text).ok_or(LineError::BadRequest)?;
            (Cow::Owned(method.to_owned()), Cow::Owned(target.to_owned()))
        }
    };
    entry.method = entry.method.take().or(Some(method));
    if entry.target.is_none() {
        entry.target = Some(target);
    }
    Ok(())
}

/// Reads Caddy's `request` object. Returns its headers.
fn caddy<'l>(entry: &mut AccessEntry<'l>, object: &'l str) -> &'l str {
    let mut headers = "";
    let mut trusted = None;
    for (key, value) in Members::of(object) {
        match key {
            "method" => entry.method = said(&value),
            "uri" => entry.target = said(&value).or(entry.target.take()),
            "host" => entry.host = said(&value),
            // The client behind Caddy's trusted proxies, in preference to the connection's peer.
            "client_ip" => trusted = said(&value).and_then(|text| address(&text)),
            "remote_ip" | "remote_addr" => {
                entry.address = entry.address.or_else(|| said(&value).and_then(|text| address(&text)));
            }
            "headers" => headers = value.raw(),
            _ => {}
        }
    }
    entry.address = trusted.or(entry.address);
    headers
}

fn cost(value: &LogValue<'_>) -> Result<u64, LineError> {
    value.text().and_then(|text| text.parse().ok()).ok_or(LineError::BadCost)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just before")]
fn span(value: &LogValue<'_>, micros: f64) -> Option<Micros> {
    let number: f64 = value.text()?.parse().ok()?;
    let micros = number * micros;
    (0.0..1e15).contains(&micros).then_some(Micros::new(micros as u64))
}
