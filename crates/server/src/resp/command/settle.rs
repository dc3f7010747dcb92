//! `TG.SETTLE receipt actual …`: settles a request at its actual cost.

use tidegate_core::receipt::Held;
use tidegate_core::{Receipt, RuleId, Settlement, StoreError};

use super::CommandAnswer;
use super::check::aside;
use crate::receipts;
use crate::resp::RespServer;
use crate::resp::reply::{ReplyWriter, echo};
use crate::resp::request::{RequestWords, integer};

#[derive(Debug, thiserror::Error)]
pub(super) enum SettleError {
    #[error(transparent)]
    Receipt(#[from] receipts::NotAReceipt),
    #[error("'{0}' is not a cost: write a whole number, 0 or more")]
    Actual(String),
    #[error(
        "the receipt covers {held} charges, but {given} costs are given: write one for all of them, or one for each"
    )]
    Number { held: usize, given: usize },
}

/// Arguments: one cost for each charge, receipt by receipt.
struct SettleArgs(Vec<(Receipt, Vec<u64>)>);

impl SettleArgs {
    fn decode(words: RequestWords<'_>) -> Result<SettleArgs, SettleError> {
        let receipts = receipts::read(words.get(1).unwrap_or_default())?;
        let actual = |word| {
            integer(word).and_then(|cost| u64::try_from(cost).ok()).ok_or_else(|| SettleError::Actual(echo(word)))
        };
        let actual: Vec<u64> = words.after(2).iter().map(actual).collect::<Result<_, _>>()?;
        let held = receipts.iter().map(|receipt| receipt.unaliased().count()).sum();
        let mut costs: Box<dyn Iterator<Item = u64>> = match actual[..] {
            [cost] => Box::new(std::iter::repeat(cost)),
            _ if actual.len() == held => Box::new(actual.into_iter()),
            _ => return Err(SettleError::Number { held, given: actual.len() }),
        };
        let of = |receipt: Receipt| {
            let costs: Vec<u64> = costs.by_ref().take(receipt.unaliased().count()).collect();
            let costs = costs_of_all(&receipt, &costs);
            (receipt, costs)
        };
        Ok(SettleArgs(receipts.into_iter().map(of).collect()))
    }
}

/// Costs of all charges. An alias costs as much as its original charge.
fn costs_of_all(receipt: &Receipt, costs: &[u64]) -> Vec<u64> {
    let named: Vec<(&RuleId, u64)> = receipt.unaliased().map(|held| &held.rule).zip(costs.iter().copied()).collect();
    let mut own = named.iter();
    let cost = |(number, held): (usize, &Held)| {
        let cost = match receipt.is_alias(number) {
            true => named.iter().find(|(rule, _)| **rule == held.rule),
            false => own.next(),
        };
        cost.map_or(held.taken, |(_, cost)| *cost)
    };
    receipt.held.iter().enumerate().map(cost).collect()
}

/// Parses a command without executing it.
pub(super) fn validate(words: RequestWords<'_>) -> Result<(), SettleError> {
    SettleArgs::decode(words).map(drop)
}

pub(super) fn answer<'d>(
    service: &'d RespServer,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    let asked = match SettleArgs::decode(words) {
        Ok(asked) => asked,
        Err(wrong) => {
            reply.error("ERR", wrong);
            return CommandAnswer::Now;
        }
    };
    let protocol = reply.protocol();
    CommandAnswer::Alone(Box::pin(async move {
        let settled = settle(service, &asked).await;
        aside(protocol, |reply| match settled {
            Ok(settled) => settled.write(reply),
            Err(error) => reply.error("ERR", format_args!("{error}. It is safe to try again.")),
        })
    }))
}

/// Totals of a settlement.
struct SettleTotals {
    /// Whether any reservation was still open.
    any: bool,
    given_back: u64,
    charged: u64,
}

async fn settle(service: &RespServer, SettleArgs(asked): &SettleArgs) -> Result<SettleTotals, StoreError> {
    let mut settled = SettleTotals { any: false, given_back: 0, charged: 0 };
    for (receipt, actual) in asked {
        match service.engine.settle(receipt, actual).await? {
            Settlement::Settled { given_back, charged } => {
                settled.any = true;
                settled.given_back = settled.given_back.saturating_add(given_back);
                settled.charged = settled.charged.saturating_add(charged);
            }
            Settlement::Gone => {}
        }
    }
    Ok(settled)
}

impl SettleTotals {
    fn write(&self, reply: &mut ReplyWriter<'_>) {
        reply.map(3);
        reply.bulk("settled");
        reply.boolean(self.any);
        reply.bulk("given_back");
        reply.count(self.given_back);
        reply.bulk("charged");
        reply.count(self.charged);
    }
}
