//! A ruling, as JSON says it.

use std::collections::BTreeMap;

use http::HeaderMap;
use serde::Serialize;
use serde_json::Value;
use tidegate_core::rules::Mode;
use tidegate_core::{Micros, Outcome, Ruled, Ruling};
use tidegate_http::Reply;

use crate::receipts;

/// What was decided on one request. Spans of time are in seconds, exact to the microsecond.
#[derive(Debug, Serialize)]
pub(super) struct Answer<'r> {
    /// Whether it may go ahead.
    allowed: bool,
    /// How long to hold it back before it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<f64>,
    /// When to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<f64>,
    /// The largest cost that can ever pass, if it costs more than that.
    #[serde(skip_serializing_if = "Option::is_none")]
    most_ever: Option<u64>,
    /// The rule that refused it because it lacks a part of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_by: Option<&'r str>,
    /// The generation of the rules.
    generation: u64,
    /// What each limit says.
    limits: Vec<Limit<'r>>,
    /// For settling, releasing or renewing what is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
    /// What is held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held: Vec<Held<'r>>,
    /// What the client should be answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<ClientResponse>,
}

#[derive(Debug, Serialize)]
struct Limit<'r> {
    id: &'r str,
    mode: &'static str,
    allowed: bool,
    limit: u64,
    remaining: u64,
    reset_after: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<f64>,
    by: &'static str,
}

#[derive(Debug, Serialize)]
struct Held<'r> {
    id: &'r str,
    taken: u64,
}

#[derive(Debug, Serialize)]
struct ClientResponse {
    status: u16,
    headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    body: Value,
}

impl<'r> Answer<'r> {
    pub(super) fn of(ruling: &'r Ruling, reply: Option<&Reply<'_>>) -> Answer<'r> {
        let (mut delay, mut retry_after, mut most_ever) = (None, None, None);
        match ruling.verdict.outcome {
            Outcome::Allow { delay: span } => delay = (!span.is_zero()).then(|| seconds(span)),
            Outcome::Deny { retry_after: span } => retry_after = Some(seconds(span)),
            Outcome::TooLarge { max } => most_ever = Some(max),
        }
        let held = ruling.receipts.iter().flat_map(|receipt| &receipt.held);
        Answer {
            allowed: ruling.is_allowed(),
            delay,
            retry_after,
            most_ever,
            refused_by: ruling.refused.as_deref(),
            generation: ruling.generation,
            limits: ruling.ruled.iter().map(Limit::of).collect(),
            receipt: receipts::write(&ruling.receipts),
            held: held.map(|held| Held { id: held.rule.as_str(), taken: held.taken }).collect(),
            response: reply.map(ClientResponse::of),
        }
    }
}

impl Limit<'_> {
    fn of(ruled: &Ruled) -> Limit<'_> {
        Limit {
            id: ruled.id.as_str(),
            mode: match ruled.mode {
                Mode::Enforce => "enforce",
                Mode::Shadow => "shadow",
                Mode::Off => "off",
            },
            allowed: ruled.decision.is_allowed(),
            limit: ruled.decision.limit,
            remaining: ruled.decision.remaining,
            reset_after: seconds(ruled.decision.reset_after),
            retry_after: ruled.decision.retry_after().map(seconds),
            by: ruled.by.name(),
        }
    }
}

impl ClientResponse {
    fn of(reply: &Reply<'_>) -> ClientResponse {
        let response = reply.response();
        ClientResponse {
            status: response.status().as_u16(),
            headers: named(response.headers()),
            body: serde_json::from_slice(response.body()).unwrap_or(Value::Null),
        }
    }
}

fn named(headers: &HeaderMap) -> BTreeMap<String, String> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

/// Doubles hold every span that there is to the microsecond.
#[expect(clippy::cast_precision_loss, reason = "spans are below 2^53 microseconds")]
fn seconds(span: Micros) -> f64 {
    span.get() as f64 / 1e6
}
