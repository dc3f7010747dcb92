//! One request as a line of the log.

use std::borrow::Cow;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use http::{StatusCode, Version};
use tidegate_core::Timestamp;
use tidegate_rules::Secret;

use super::redact::redacted;
use super::time::{common, digits, rfc3339};

/// Status of a request whose client disconnected before there was a response, as in nginx.
const CLIENT_CLOSED: u16 = 499;

/// A request that has ended.
pub(crate) struct AccessRecord<'l> {
    /// Time of arrival.
    pub(crate) at: Timestamp,
    /// Listener that received it.
    pub(crate) listener: &'static str,
    /// The client's address.
    pub(crate) address: IpAddr,
    /// User, if known.
    pub(crate) user: Option<&'l str>,
    /// Hash of the request's API key.
    pub(crate) api_key: Option<&'l str>,
    /// Tier of the request.
    pub(crate) tier: Option<&'l str>,
    /// The request method.
    pub(crate) method: &'l str,
    /// Path and query, as received.
    pub(crate) target: &'l str,
    /// The protocol version.
    pub(crate) version: Version,
    /// Requested host.
    pub(crate) host: Option<&'l [u8]>,
    /// The status; `None` if the client disconnected first.
    pub(crate) status: Option<StatusCode>,
    /// Bytes of the request body that were forwarded.
    pub(crate) bytes_in: u64,
    /// Bytes of the response body.
    pub(crate) bytes_out: u64,
    /// The total time.
    pub(crate) took: Duration,
    /// Route that matched.
    pub(crate) route: Option<&'l str>,
    /// Upstream that responded, and the time until its response began.
    pub(crate) upstream: Option<(&'l str, Duration)>,
    /// The cause of an error.
    pub(crate) cause: Option<&'static str>,
    /// Decision, and the limit that determined it; `None` if no rule was evaluated.
    pub(crate) decided: Option<(LoggedDecision, Option<&'l str>)>,
    /// `User-Agent`.
    pub(crate) agent: Option<&'l [u8]>,
    /// `Referer`.
    pub(crate) referer: Option<&'l [u8]>,
    /// `traceparent`.
    pub(crate) traceparent: Option<&'l [u8]>,
}

/// A decision, as the access log names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedDecision {
    Allowed,
    /// Allowed, and a rule in shadow mode would have denied it.
    Shadow,
    Denied,
    /// The request lacks a required part of a key, or has it more than once.
    Refused,
}

impl LoggedDecision {
    const fn as_str(self) -> &'static str {
        match self {
            LoggedDecision::Allowed => "allowed",
            LoggedDecision::Shadow => "shadow",
            LoggedDecision::Denied => "denied",
            LoggedDecision::Refused => "refused",
        }
    }
}

impl AccessRecord<'_> {
    fn status(&self) -> u16 {
        self.status.map_or(CLIENT_CLOSED, |status| status.as_u16())
    }

    /// Writes it as a JSON object, with the names that `tidegate replay` reads.
    pub(super) fn json(&self, secret: &Secret, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":\"");
        rfc3339(self.at, out);
        out.extend_from_slice(b"\",\"listener\":\"");
        out.extend_from_slice(self.listener.as_bytes());
        out.extend_from_slice(b"\",\"address\":\"");
        address(self.address, out);
        out.push(b'"');
        json_text(",\"method\":\"", Some(self.method), out);
        json_text(",\"path\":\"", Some(&redacted(self.target, secret)), out);
        json_bytes(",\"host\":\"", self.host, out);
        out.extend_from_slice(b",\"status\":");
        number(self.status().into(), out);
        out.extend_from_slice(b",\"bytes_in\":");
        number(self.bytes_in, out);
        out.extend_from_slice(b",\"bytes_out\":");
        number(self.bytes_out, out);
        out.extend_from_slice(b",\"duration_ms\":");
        millis(self.took, out);
        json_text(",\"route\":\"", self.route, out);
        if let Some((address, took)) = self.upstream {
            json_text(",\"upstream\":\"", Some(address), out);
            out.extend_from_slice(b",\"upstream_ms\":");
            millis(took, out);
        }
        json_text(",\"cause\":\"", self.cause, out);
        if let Some((decided, limit)) = self.decided {
            json_text(",\"decision\":\"", Some(decided.as_str()), out);
            json_text(",\"rule\":\"", limit, out);
        }
        json_text(",\"user\":\"", self.user, out);
        json_text(",\"api_key\":\"#", self.api_key, out);
        json_text(",\"tier\":\"", self.tier, out);
        json_bytes(",\"user_agent\":\"", self.agent, out);
        let referer = self.referer.map(String::from_utf8_lossy);
        json_text(",\"referer\":\"", referer.as_deref().map(|referer| redacted(referer, secret)).as_deref(), out);
        json_text(",\"trace_id\":\"", self.traceparent.and_then(trace_id), out);
        out.extend_from_slice(b"}\n");
    }

    /// Writes it in Apache's combined log format.
    pub(super) fn combined(&self, secret: &Secret, out: &mut Vec<u8>) {
        address(self.address, out);
        out.extend_from_slice(b" - ");
        match self.user {
            // Spaces and brackets would end the field for parsers.
            Some(user) if !user.is_empty() => escape(user.as_bytes(), b" []", out),
            _ => out.push(b'-'),
        }
        out.extend_from_slice(b" [");
        common(self.at, out);
        out.extend_from_slice(b"] \"");
        escape(self.method.as_bytes(), b"", out);
        out.push(b' ');
        escape(redacted(self.target, secret).as_bytes(), b"", out);
        let _ = write!(out, " {:?}\" {} ", self.version, self.status());
        match self.bytes_out {
            0 => out.push(b'-'),
            bytes => drop(write!(out, "{bytes}")),
        }
        let referer = self.referer.map(String::from_utf8_lossy);
        let referer = referer.as_deref().map(|referer| redacted(referer, secret));
        for value in [referer.as_deref().map(str::as_bytes), self.agent] {
            out.extend_from_slice(b" \"");
            match value {
                Some(value) if !value.is_empty() => escape(value, b"", out),
                _ => out.push(b'-'),
            }
            out.push(b'"');
        }
        out.push(b'\n');
    }
}

// The formatting machinery of the standard library took two thirds of a line's time (`perf record` of the gateway), so numbers
// and addresses are written without it.

fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn address(address: IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            let [first, rest @ ..] = address.octets();
            number(first.into(), out);
            for octet in rest {
                out.push(b'.');
                number(octet.into(), out);
            }
        }
        // Writing to memory does not fail, here and below.
        IpAddr::V6(address) => drop(write!(out, "{address}")),
    }
}

/// Milliseconds with three decimals.
fn millis(took: Duration, out: &mut Vec<u8>) {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    number(micros / 1_000, out);
    out.push(b'.');
    out.extend_from_slice(&digits::<3>(micros));
}

/// The trace of a `traceparent` (W3C Trace Context).
fn trace_id(traceparent: &[u8]) -> Option<&str> {
    let mut parts = std::str::from_utf8(traceparent).ok()?.split('-');
    let (version, trace) = (parts.next()?, parts.next()?);
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (version.len() == 2 && is_hex(version) && trace.len() == 32 && is_hex(trace)).then_some(trace)
}

fn json_bytes(start: &str, value: Option<&[u8]>, out: &mut Vec<u8>) {
    let value: Option<Cow<'_, str>> = value.map(String::from_utf8_lossy);
    json_text(start, value.as_deref(), out);
}

/// A member of an object; omitted without a value. `start` is the text in front of the value.
fn json_text(start: &str, value: Option<&str>, out: &mut Vec<u8>) {
    let Some(value) = value else { return };
    out.extend_from_slice(start.as_bytes());
    let mut plain = 0;
    for (at, byte) in value.bytes().enumerate() {
        let is_plain = byte >= 0x20 && byte != b'"' && byte != b'\\' && byte != 0x7f;
        if is_plain {
            continue;
        }
        out.extend_from_slice(&value.as_bytes()[plain..at]);
        plain = at + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ => drop(write!(out, "\\u{byte:04x}")),
        }
    }
    out.extend_from_slice(&value.as_bytes()[plain..]);
    out.push(b'"');
}

/// Escapes as Apache does: quotes and backslashes with a backslash, unprintable bytes and `besides` as `\xhh`.
fn escape(value: &[u8], besides: &[u8], out: &mut Vec<u8>) {
    for &byte in value {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x20..=0x7e if !besides.contains(&byte) => out.push(byte),
            _ => drop(write!(out, "\\x{byte:02x}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line() -> AccessRecord<'static> {
        AccessRecord {
            at: Timestamp::from_micros(1_763_392_801_123_456),
            listener: "gateway",
            address: "203.0.113.7".parse().unwrap(),
            user: Some("ann"),
            api_key: None,
            tier: None,
            method: "GET",
            target: "/a?x=1",
            version: Version::HTTP_11,
            host: Some(b"api.example.com"),
            status: Some(StatusCode::OK),
            bytes_in: 0,
            bytes_out: 2_326,
            took: Duration::from_micros(12_034),
            route: Some("/"),
            upstream: Some(("http://10.0.0.5:3000", Duration::from_micros(11_000))),
            cause: None,
            decided: Some((LoggedDecision::Allowed, Some("per-address"))),
            agent: Some(b"curl/8.5"),
            referer: Some(b"https://b.example/?token=hunter2"),
            traceparent: Some(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        }
    }

    fn in_json(line: &AccessRecord<'_>) -> String {
        let mut out = Vec::new();
        line.json(&Secret::default(), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn in_combined(line: &AccessRecord<'_>) -> String {
        let mut out = Vec::new();
        line.combined(&Secret::default(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_request_is_one_object_with_all_that_is_known() {
        let hash = Secret::default().hide("hunter2");
        let text = in_json(&line());
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({
                "time": "2025-11-17T15:20:01.123456Z", "listener": "gateway", "address": "203.0.113.7", "method": "GET",
                "path": "/a?x=1", "host": "api.example.com", "status": 200, "bytes_in": 0, "bytes_out": 2326,
                "duration_ms": 12.034, "route": "/", "upstream": "http://10.0.0.5:3000", "upstream_ms": 11.0,
                "decision": "allowed", "rule": "per-address", "user": "ann", "user_agent": "curl/8.5",
                "referer": format!("https://b.example/?token=%23{hash}"), "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            })
        );
        assert!(!text.contains("hunter2"));
    }

    #[test]
    fn a_request_is_one_line_of_combined_log_format() {
        let hash = Secret::default().hide("hunter2");
        let wanted = format!(
            "203.0.113.7 - ann [17/Nov/2025:15:20:01 +0000] \"GET /a?x=1 HTTP/1.1\" 200 2326 \"https://b.example/?token=%23{hash}\" \
             \"curl/8.5\"\n"
        );
        assert_eq!(in_combined(&line()), wanted);
        let bare = AccessRecord { user: None, referer: None, agent: Some(b""), bytes_out: 0, status: None, ..line() };
        let wanted = "203.0.113.7 - - [17/Nov/2025:15:20:01 +0000] \"GET /a?x=1 HTTP/1.1\" 499 - \"-\" \"-\"\n";
        assert_eq!(in_combined(&bare), wanted);
    }

    #[test]
    fn nothing_that_a_client_sends_breaks_out_of_its_field() {
        let hostile = "\"\\\n\r\u{0}\u{1b}[31m\u{7f} [1] é";
        let raw = [hostile.as_bytes(), b"\xff"].concat();
        let line =
            AccessRecord { user: Some(hostile), agent: Some(&raw), referer: Some(&raw), host: Some(&raw), ..line() };
        let text = in_json(&line);
        assert_eq!(text.matches('\n').count(), 1);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["user"], &read["user_agent"]), (&json!(hostile), &json!(format!("{hostile}\u{fffd}"))));
        assert!(!text.trim_end().bytes().any(|byte| byte.is_ascii_control()), "{text:?}");
        let text = in_combined(&line);
        assert!(text.trim_end().bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{text:?}");
        assert!(
            text.starts_with(r#"203.0.113.7 - \"\\\n\r\x00\x1b\x5b31m\x7f\x20\x5b1\x5d\x20\xc3\xa9 [17/Nov"#),
            "{text}"
        );
        assert!(text.ends_with("\\xc3\\xa9\\xff\"\n"), "{text}");
    }

    #[test]
    fn a_malformed_traceparent_is_no_trace() {
        for malformed in [
            &b""[..],
            b"00",
            b"00-xyz",
            b"zz-4bf92f3577b34da6a3ce929d0e0e4736-1",
            b"00-\"4bf92f3577b34da6a3ce929d0e0e47-1",
        ] {
            assert_eq!(trace_id(malformed), None);
        }
    }
}
