//! Logs with one JSON object per line.
//!
//! The object is scanned once, member by member, without allocation. Members have the names of nginx's variables, Caddy,
//! Envoy and Tidegate's own format. The names do not collide, except that Caddy counts durations in seconds and Envoy in
//! milliseconds.

use std::borrow::Cow;

use tidegate_core::Micros;

use super::entry::{AccessEntry, FieldSource, address, text_of};
use super::json_members::{LogValue, Members};
use super::text::split_request;
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
                entry.address = text_of(&value).and_then(|text| address(&text)).or(entry.address);
            }
            "downstream_direct_remote_address" | "remote_ip" => {
                entry.address = entry.address.or_else(|| text_of(&value).and_then(|text| address(&text)));
            }
            "request" => match value {
                LogValue::Object(object) => headers = caddy(&mut entry, object),
                value => request(&mut entry, &value)?,
            },
            "method" | "request_method" => entry.method = text_of(&value),
            "request_uri" | "path" | "uri" => {
                // nginx's `$uri` lacks the query, so members with a query take precedence.
                if let Some(target) = text_of(&value).filter(|_| key != "uri" || entry.target.is_none()) {
                    entry.target = Some(target);
                }
            }
            "host" | "http_host" | "authority" => entry.host = text_of(&value).or(entry.host.take()),
            "server_name" => entry.host = entry.host.take().or_else(|| text_of(&value)),
            "remote_user" | "user" | "user_id" => entry.user = text_of(&value).or(entry.user.take()),
            "api_key" => entry.api_key = text_of(&value),
            "tier" => entry.tier = text_of(&value),
            "http_user_agent" | "user_agent" => entry.agent = text_of(&value),
            "http_referer" | "referer" => entry.referer = text_of(&value),
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
        LogDialect::Nginx | LogDialect::Envoy => FieldSource::Variables(line),
        LogDialect::Caddy | LogDialect::Own => FieldSource::Objects { headers, claims },
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

/// Parses `GET /a HTTP/1.1`, the format of nginx's `$request`.
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
            "method" => entry.method = text_of(&value),
            "uri" => entry.target = text_of(&value).or(entry.target.take()),
            "host" => entry.host = text_of(&value),
            // The client behind Caddy's trusted proxies, in preference to the connection's peer.
            "client_ip" => trusted = text_of(&value).and_then(|text| address(&text)),
            "remote_ip" | "remote_addr" => {
                entry.address = entry.address.or_else(|| text_of(&value).and_then(|text| address(&text)));
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
