//! Encodes a ruling as a map.

use tidegate_core::{Decision, Micros, Outcome};
use tidegate_rules::{Ruled, Ruling};

use crate::resp::reply::ReplyWriter;

/// Writes the ruling on a request. Times are in milliseconds, rounded up.
pub(super) fn write(ruling: &Ruling<'_>, receipt: Option<&str>, reply: &mut ReplyWriter<'_>) {
    let binding = ruling.verdict.binding.and_then(|index| ruling.ruled.get(index)).map(|ruled| &ruled.decision);
    reply.map(11);
    reply.bulk("allowed");
    reply.boolean(ruling.is_allowed());
    outcome(ruling.verdict.outcome, reply);
    reply.bulk("limit");
    count_or_null(binding.map(|decision| decision.limit), reply);
    reply.bulk("remaining");
    count_or_null(binding.map(|decision| decision.remaining), reply);
    reply.bulk("reset_after_ms");
    count_or_null(binding.map(|decision| decision.reset_after.as_millis_ceil()), reply);
    reply.bulk("refused_by");
    text_or_null(ruling.refused.as_ref().map(|refused| &*refused.rule), reply);
    reply.bulk("refused_for");
    text_or_null(ruling.refused.as_ref().map(|refused| refused.fault.as_str()), reply);
    reply.bulk("receipt");
    text_or_null(receipt, reply);
    reply.bulk("generation");
    reply.count(ruling.generation);
    reply.bulk("limits");
    reply.array(ruling.ruled.len());
    ruling.ruled.iter().for_each(|ruled| one(ruled, reply));
}

/// Writes the decision of one limit.
fn one(ruled: &Ruled<'_>, reply: &mut ReplyWriter<'_>) {
    let Decision { outcome: says, limit, remaining, reset_after } = ruled.decision;
    reply.map(9);
    reply.bulk("id");
    reply.bulk(ruled.id.as_str());
    reply.bulk("mode");
    reply.bulk(ruled.mode.to_string());
    reply.bulk("allowed");
    reply.boolean(ruled.decision.is_allowed());
    outcome(says, reply);
    reply.bulk("limit");
    reply.count(limit);
    reply.bulk("remaining");
    reply.count(remaining);
    reply.bulk("reset_after_ms");
    reply.count(reset_after.as_millis_ceil());
    reply.bulk("by");
    reply.bulk(ruled.by.name());
}

/// Writes two entries of a map: the time to wait before a retry (null if allowed, or if no retry can succeed), and the
/// delay of an allowed request.
fn outcome(outcome: Outcome, reply: &mut ReplyWriter<'_>) {
    let (retry_after, delay) = match outcome {
        Outcome::Allow { delay } => (None, delay),
        Outcome::Deny { retry_after } => (Some(retry_after.as_millis_ceil()), Micros::ZERO),
        Outcome::TooLarge { .. } => (None, Micros::ZERO),
    };
    reply.bulk("retry_after_ms");
    count_or_null(retry_after, reply);
    reply.bulk("delay_ms");
    reply.count(delay.as_millis_ceil());
}

fn count_or_null(number: Option<u64>, reply: &mut ReplyWriter<'_>) {
    match number {
        Some(number) => reply.count(number),
        None => reply.null(),
    }
}

fn text_or_null(text: Option<&str>, reply: &mut ReplyWriter<'_>) {
    match text {
        Some(text) => reply.bulk(text),
        None => reply.null(),
    }
}
