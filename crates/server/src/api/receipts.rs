//! Receipts as text, and what becomes of them: `/v1/settle`, `/v1/release` and `/v1/renew`.
//!
//! A receipt's text holds all that a store needs to settle it, so any node of a fleet can. Whoever has it can settle it: the
//! id inside cannot be guessed, and a store gives back nothing that it does not itself know to be held.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidegate_core::limit::Mark;
use tidegate_core::yaml::closest;
use tidegate_core::{Held, Key, Limit, Receipt, ReceiptId, RuleId, Settlement};

use super::problem::Problem;
use super::question::read;
use super::{Api, json};

/// How the text begins, so that another way to write it can be told apart.
const VERSION: u8 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settling {
    receipt: String,
    actual: Option<Actual>,
}

/// What it really cost: the same number for everything that was reserved, or by limit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Actual {
    All(u64),
    Each(BTreeMap<String, u64>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Only {
    receipt: String,
}

#[derive(Default, Serialize)]
struct Settled {
    settled: bool,
    given_back: u64,
    charged: u64,
}

#[derive(Serialize)]
struct Renewed {
    renewed: bool,
}

pub(super) async fn settle(State(api): State<Arc<Api>>, request: Request) -> Response {
    let settle = async {
        let body = api.body(request).await?;
        let Settling { receipt, actual } = read(&body)?;
        let receipts = untoken(&receipt)?;
        if let Some(Actual::Each(each)) = &actual {
            all_are_held(each, &receipts)?;
        }
        api.settle(&receipts, |held| match &actual {
            None => held.taken,
            Some(Actual::All(cost)) => *cost,
            Some(Actual::Each(each)) => each.get(held.rule.as_str()).copied().unwrap_or(held.taken),
        })
        .await
    };
    settle.await.unwrap_or_else(|problem: Problem| problem.into_response())
}

pub(super) async fn release(State(api): State<Arc<Api>>, request: Request) -> Response {
    let release = async {
        let body = api.body(request).await?;
        let Only { receipt } = read(&body)?;
        api.settle(&untoken(&receipt)?, |_| 0).await
    };
    release.await.unwrap_or_else(|problem: Problem| problem.into_response())
}

pub(super) async fn renew(State(api): State<Arc<Api>>, request: Request) -> Response {
    let renew = async {
        let body = api.body(request).await?;
        let Only { receipt } = read(&body)?;
        let mut renewed = true;
        for receipt in untoken(&receipt)? {
            renewed &= api.engine.limiter().renew(&receipt).await?;
        }
        Ok(json(StatusCode::OK, &Renewed { renewed }))
    };
    renew.await.unwrap_or_else(|problem: Problem| problem.into_response())
}

impl Api {
    async fn settle(&self, receipts: &[Receipt], cost: impl Fn(&Held) -> u64) -> Result<Response, Problem> {
        let mut sum = Settled::default();
        for receipt in receipts {
            let actual: Vec<u64> = receipt.held.iter().map(&cost).collect();
            if let Settlement::Settled { given_back, charged } = self.engine.limiter().settle(receipt, &actual).await? {
                sum.settled = true;
                sum.given_back = sum.given_back.saturating_add(given_back);
                sum.charged = sum.charged.saturating_add(charged);
            }
        }
        Ok(json(StatusCode::OK, &sum))
    }
}

fn all_are_held(each: &BTreeMap<String, u64>, receipts: &[Receipt]) -> Result<(), Problem> {
    let held: Vec<&str> = receipts.iter().flat_map(|receipt| &receipt.held).map(|held| held.rule.as_str()).collect();
    let Some(stranger) = each.keys().find(|id| !held.contains(&id.as_str())) else { return Ok(()) };
    let meant = match closest(stranger, held.iter().copied()) {
        Some(meant) => format!("Did you mean `{meant}`?"),
        None => format!("It holds `{}`.", held.join("`, `")),
    };
    Err(Problem::in_json(format!("The receipt holds nothing of `{stranger}`. {meant}"), None))
}

/// Receipts as text.
pub(super) fn token(receipts: &[Receipt]) -> String {
    let mut bytes = vec![VERSION];
    put(&mut bytes, receipts.len() as u64);
    for receipt in receipts {
        bytes.extend_from_slice(&receipt.id.get().to_be_bytes());
        put(&mut bytes, receipt.held.len() as u64);
        for held in &receipt.held {
            put_bytes(&mut bytes, held.rule.as_str().as_bytes());
            put(&mut bytes, held.key.parts().count() as u64);
            held.key.parts().for_each(|part| put_bytes(&mut bytes, part));
            put_bytes(&mut bytes, held.limit.to_string().as_bytes());
            [held.taken, held.mark.0, held.mark.1].into_iter().for_each(|number| put(&mut bytes, number));
        }
    }
    URL_SAFE_NO_PAD.encode(bytes)
}

fn untoken(text: &str) -> Result<Vec<Receipt>, Problem> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    let receipts = bytes.and_then(|bytes| {
        let mut rest = &bytes[..];
        let receipts = take_receipts(&mut rest)?;
        rest.is_empty().then_some(receipts)
    });
    receipts.ok_or_else(|| {
        let detail = "This is no receipt. Send back the `receipt` of an answer, letter for letter.".to_owned();
        Problem::in_json(detail, None)
    })
}

fn take_receipts(rest: &mut &[u8]) -> Option<Vec<Receipt>> {
    if take_exact(rest, 1)? != [VERSION] {
        return None;
    }
    (0..take_count(rest)?).map(|_| take_receipt(rest)).collect()
}

fn take_receipt(rest: &mut &[u8]) -> Option<Receipt> {
    let id = ReceiptId::new(u128::from_be_bytes(take_exact(rest, 16)?.try_into().ok()?));
    let held = (0..take_count(rest)?).map(|_| take_held(rest)).collect::<Option<_>>()?;
    Some(Receipt { id, held })
}

fn take_held(rest: &mut &[u8]) -> Option<Held> {
    let rule = RuleId::new(std::str::from_utf8(take_bytes(rest)?).ok()?);
    let parts: Vec<&[u8]> = (0..take_count(rest)?).map(|_| take_bytes(rest)).collect::<Option<_>>()?;
    let limit: Limit = std::str::from_utf8(take_bytes(rest)?).ok()?.parse().ok()?;
    let (taken, mark) = (take(rest)?, Mark(take(rest)?, take(rest)?));
    Some(Held { rule, key: Key::of(parts), limit, taken, mark })
}

/// Seven bits a byte, the lowest first, the last byte below 128.
#[expect(clippy::cast_possible_truncation, reason = "seven bits at a time")]
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn put_bytes(bytes: &mut Vec<u8>, part: &[u8]) {
    put(bytes, part.len() as u64);
    bytes.extend_from_slice(part);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take_exact(rest, 1)?.first().copied()?;
        let bits = u64::from(byte & 0x7f);
        number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A number of things that follow, each at least a byte.
fn take_count(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(take(rest)?).ok().filter(|&count| count <= rest.len())
}

fn take_exact<'b>(rest: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(taken)
}

fn take_bytes<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let count = take_count(rest)?;
    take_exact(rest, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt() -> Receipt {
        let held = |rule: &str, key: Key<'static>, limit: &str| Held {
            rule: RuleId::new(rule),
            key,
            limit: limit.parse().unwrap(),
            taken: 2_500,
            mark: Mark(u64::MAX, 7),
        };
        let held = vec![
            held("tokens", Key::of(["acme", "alice"]), "100000/min burst 200000"),
            held("slots", Key::GLOBAL, "concurrent 10 ttl 30s"),
            held("bytes", Key::of([&[0xff, 0x00][..]]), "sliding 300/min parts 6"),
        ];
        Receipt { id: ReceiptId::new(u128::MAX - 5), held }
    }

    #[test]
    fn receipts_are_written_and_read_alike() {
        let receipts = vec![receipt(), Receipt { id: ReceiptId::new(1), held: Vec::new() }];
        assert_eq!(untoken(&token(&receipts)).unwrap(), receipts);
    }

    #[test]
    fn what_is_no_receipt_is_refused_and_nothing_is_made_of_it() {
        let text = token(&[receipt()]);
        for end in 0..text.len() {
            assert!(untoken(&text[..end]).is_err(), "{end}");
        }
        for wrong in ["!", "AQ", &format!("{text}AAAA"), &"_".repeat(1_000)] {
            assert!(untoken(wrong).is_err(), "{wrong}");
        }
    }
}
