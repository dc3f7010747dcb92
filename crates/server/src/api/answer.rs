//! A ruling as JSON.

use std::collections::BTreeMap;

use http::HeaderMap;
use serde::Serialize;
use serde_json::Value;
use tidegate_core::{Outcome, Receipt};
use tidegate_http::Reply;
use tidegate_rules::{Mode, Ruled, Ruling};

use super::json_writer::{ObjectWriter, member};
use crate::receipts;

/// Writes the ruling on one request, and the response for its client if `reply` is given.
pub(super) fn write(out: &mut Vec<u8>, ruling: &Ruling<'_>, reply: Option<&Reply<'_, '_>>) {
    ObjectWriter::write(out, |answer| {
        answer.boolean(member!("allowed"), ruling.is_allowed());
        match ruling.verdict.outcome {
            Outcome::Allow { delay } if delay.is_zero() => {}
            Outcome::Allow { delay } => answer.seconds(member!("delay"), delay),
            Outcome::Deny { retry_after } => answer.seconds(member!("retry_after"), retry_after),
            // The highest cost that the limit can ever admit.
            Outcome::TooLarge { max } => answer.number(member!("most_ever"), max),
        }
        if let Some(refused) = &ruling.refused {
            answer.text(member!("refused_by"), &refused.rule);
            answer.word(member!("refused_for"), refused.fault.as_str());
        }
        answer.number(member!("generation"), ruling.generation);
        answer.list(member!("limits"), &ruling.ruled, write_limit);
        if let Some(receipt) = receipts::write(&ruling.receipts) {
            answer.text(member!("receipt"), &receipt);
        }
        let mut held = ruling.receipts.iter().flat_map(Receipt::unaliased).peekable();
        if held.peek().is_some() {
            answer.list(member!("held"), held, |item, held| {
                item.text(member!("id"), held.rule.as_str());
                item.number(member!("taken"), held.taken);
            });
        }
        if let Some(reply) = reply {
            answer.value(member!("response"), &ClientResponse::of(reply));
        }
    });
}

fn write_limit(limit: &mut ObjectWriter<'_>, ruled: &Ruled<'_>) {
    let mode = match ruled.mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    };
    limit.text(member!("id"), ruled.id.as_str());
    limit.word(member!("mode"), mode);
    limit.boolean(member!("allowed"), ruled.decision.is_allowed());
    limit.number(member!("limit"), ruled.decision.limit);
    limit.number(member!("remaining"), ruled.decision.remaining);
    limit.seconds(member!("reset_after"), ruled.decision.reset_after);
    if let Some(span) = ruled.decision.retry_after() {
        limit.seconds(member!("retry_after"), span);
    }
    limit.word(member!("by"), ruled.by.name());
}

#[derive(Debug, Serialize)]
struct ClientResponse {
    status: u16,
    headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    body: Value,
}

impl ClientResponse {
    fn of(reply: &Reply<'_, '_>) -> ClientResponse {
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
