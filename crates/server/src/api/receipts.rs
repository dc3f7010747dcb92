//! Settling receipts: `/v1/settle`, `/v1/release` and `/v1/renew`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidegate_core::receipt::Held;
use tidegate_core::{Receipt, Settlement, StoreError};
use tidegate_rules::yaml::closest;

use super::Api;
use super::question::read;
use crate::json_response::json;
use crate::problem::Problem;
use crate::receipts;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleRequest {
    receipt: String,
    actual: Option<Actual>,
}

/// The actual cost: one number if the receipt holds one limit, or a number for each limit.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`actual` is a number, or an object with a number for each limit")]
enum Actual {
    One(u64),
    Each(BTreeMap<String, u64>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiptRequest {
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
        let SettleRequest { receipt, actual } = read(&body)?;
        let receipts = receipts_in(&receipt)?;
        match &actual {
            Some(Actual::Each(each)) => check_ids(each, &receipts)?,
            Some(Actual::One(cost)) => check_single_cost(*cost, &receipts)?,
            None => {}
        }
        api.settle(&receipts, |held| match &actual {
            None => held.taken,
            // Slots are released, whatever the cost.
            Some(Actual::One(cost)) => *cost,
            Some(Actual::Each(each)) => each.get(held.rule.as_str()).copied().unwrap_or(held.taken),
        })
        .await
    };
    settle.await.unwrap_or_else(|problem: Problem| problem.into_response())
}

pub(super) async fn release(State(api): State<Arc<Api>>, request: Request) -> Response {
    let release = async {
        let body = api.body(request).await?;
        let ReceiptRequest { receipt } = read(&body)?;
        api.settle(&receipts_in(&receipt)?, |_| 0).await
    };
    release.await.unwrap_or_else(|problem: Problem| problem.into_response())
}

pub(super) async fn renew(State(api): State<Arc<Api>>, request: Request) -> Response {
    let renew = async {
        let body = api.body(request).await?;
        let ReceiptRequest { receipt } = read(&body)?;
        let mut renewed = true;
        for receipt in receipts_in(&receipt)? {
            renewed &= api.engine.limiter().renew(&receipt).await.map_err(unavailable)?;
        }
        Ok(json(&Renewed { renewed }))
    };
    renew.await.unwrap_or_else(|problem: Problem| problem.into_response())
}

impl Api {
    async fn settle(&self, receipts: &[Receipt], cost: impl Fn(&Held) -> u64) -> Result<Response, Problem> {
        let mut sum = Settled::default();
        for receipt in receipts {
            let actual: Vec<u64> = receipt.held.iter().map(&cost).collect();
            let settlement = self.engine.settle(receipt, &actual).await.map_err(unavailable)?;
            if let Settlement::Settled { given_back, charged } = settlement {
                sum.settled = true;
                sum.given_back = sum.given_back.saturating_add(given_back);
                sum.charged = sum.charged.saturating_add(charged);
            }
        }
        Ok(json(&sum))
    }
}

/// The store is unavailable.
fn unavailable(error: StoreError) -> Problem {
    let detail = format!("{error}. It is safe to try again: a receipt is settled only once.");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).may_retry()
}

/// Rejects costs of limits that the receipt does not hold.
fn check_ids(each: &BTreeMap<String, u64>, receipts: &[Receipt]) -> Result<(), Problem> {
    let held: Vec<&str> = receipts.iter().flat_map(Receipt::unaliased).map(|held| held.rule.as_str()).collect();
    let Some(stranger) = each.keys().find(|id| !held.contains(&id.as_str())) else { return Ok(()) };
    let meant = match closest(stranger, held.iter().copied()) {
        Some(meant) => format!("Did you mean `{meant}`?"),
        None => format!("It holds `{}`.", held.join("`, `")),
    };
    Err(Problem::in_json(format!("The receipt has no charge of `{stranger}`. {meant}"), None))
}

/// Rejects a single number for a receipt of several limits, whose units differ: requests and tokens, for example.
fn check_single_cost(cost: u64, receipts: &[Receipt]) -> Result<(), Problem> {
    let held = receipts.iter().flat_map(Receipt::unaliased).filter(|held| !held.limit.holds_slots());
    let ids: Vec<&str> = held.map(|held| held.rule.as_str()).collect();
    let [first, _, ..] = ids[..] else { return Ok(()) };
    let all = ids.join("`, `");
    let detail = format!(
        "The receipt holds `{all}`. Say which of them cost {cost}, such as {{\"actual\": {{\"{first}\": {cost}}}}}; the others stay \
         as they were reserved."
    );
    Err(Problem::in_json(detail, None))
}

fn receipts_in(text: &str) -> Result<Vec<Receipt>, Problem> {
    receipts::read(text.as_bytes()).map_err(|_| {
        let detail = "This is not a receipt. Send the `receipt` of a response back unchanged.".to_owned();
        Problem::in_json(detail, None)
    })
}
