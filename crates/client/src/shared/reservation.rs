//! Charges of the limiter: what becomes of them when the request has ended.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use tidegate_core::{Clock as StoreClock, Readiness, Receipt, RuleId, Store, StoreError, now_or_never};
use tidegate_rules::{Limiter, Refundable};
use tokio::runtime::Handle;

use super::admission::{RuleRefused, TooLarge};
use crate::pace::{Paced, is_denied};
use crate::throttle_service::Throttled;
use crate::unsent::is_unsent;
use crate::{BoxError, BoxFuture};

/// The charges of a request that may be sent.
pub(super) enum Charged {
    /// Costs that are known, and the receipts of places in queues.
    Final(Refundable, Vec<Receipt>),
    /// Costs that are open until they are settled.
    Reserved(Reserved),
}

#[derive(Clone)]
pub(super) struct Reserved {
    pub(super) estimate: u64,
    pub(super) receipts: Arc<[Receipt]>,
    /// The limits with `cost: hits`: the estimate is theirs.
    pub(super) of_tokens: Arc<[RuleId]>,
}

impl Reserved {
    /// The costs to settle a receipt at, if the request has used this many tokens. Other limits keep their cost.
    fn costs(&self, receipt: &Receipt, tokens: u64) -> Vec<u64> {
        let costs = receipt.held.iter();
        costs.map(|held| if self.of_tokens.contains(&held.rule) { tokens } else { held.taken }).collect()
    }
}

/// The end of a request, as far as charges go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    /// Nothing of it was sent.
    Unsent,
    /// It was sent, at least in part, and failed.
    Failed,
    /// The server has denied it for its rate.
    Denied,
    /// The server has acted on it.
    Answered,
}

impl RequestEnd {
    pub(crate) fn of_response(status: StatusCode, headers: &HeaderMap) -> RequestEnd {
        if is_denied(status, headers) { RequestEnd::Denied } else { RequestEnd::Answered }
    }

    pub(crate) fn of_error(error: &BoxError) -> RequestEnd {
        // Layers below may have held it back.
        let is_held_back =
            error.is::<Paced>() || error.is::<Throttled>() || error.is::<TooLarge>() || error.is::<RuleRefused>();
        #[cfg(feature = "adaptive")]
        let is_held_back = is_held_back || error.is::<crate::HostBusy>();
        if is_held_back || is_unsent(&**error) { RequestEnd::Unsent } else { RequestEnd::Failed }
    }
}

impl Charged {
    /// Gives back what the request has not used, and leaves the rest to the reservation. If the store fails, the charge stays.
    pub(super) async fn ended<S, C>(self, end: RequestEnd, limiter: &Arc<Limiter<S, C>>) -> Option<Reservation>
    where
        S: Store + 'static,
        C: StoreClock + 'static,
    {
        match (self, end) {
            (Charged::Final(spent, places), RequestEnd::Unsent) => {
                let _ = limiter.refund(spent).await;
                release(&places, limiter).await;
                None
            }
            (Charged::Reserved(reserved), RequestEnd::Unsent) => {
                release(&reserved.receipts, limiter).await;
                None
            }
            // A server that denies a request has used no tokens for it.
            (Charged::Reserved(reserved), RequestEnd::Denied) => {
                for receipt in reserved.receipts.iter() {
                    let _ = limiter.settle(receipt, &reserved.costs(receipt, 0)).await;
                }
                None
            }
            (Charged::Reserved(reserved), RequestEnd::Answered) => Some(Reservation::new(reserved, limiter)),
            (Charged::Reserved(_), RequestEnd::Failed)
            | (Charged::Final(..), RequestEnd::Failed | RequestEnd::Denied | RequestEnd::Answered) => None,
        }
    }
}

/// Gives all of these back.
async fn release<S: Store, C: StoreClock>(receipts: &[Receipt], limiter: &Limiter<S, C>) {
    for receipt in receipts {
        let _ = limiter.settle(receipt, &vec![0; receipt.held.len()]).await;
    }
}

/// Charges of a request that waits to be sent. If it is dropped meanwhile, it gives them back.
pub(super) struct Unspent<S: Store + 'static, C: StoreClock + 'static> {
    charged: Option<Charged>,
    limiter: Arc<Limiter<S, C>>,
}

impl<S: Store + 'static, C: StoreClock + 'static> Unspent<S, C> {
    pub(super) const fn new(charged: Charged, limiter: Arc<Limiter<S, C>>) -> Unspent<S, C> {
        Unspent { charged: Some(charged), limiter }
    }

    /// Ends the wait: the request is sent.
    pub(super) fn spend(mut self) -> Charged {
        self.charged.take().unwrap_or_else(|| Charged::Final(Refundable::default(), Vec::new()))
    }
}

impl<S: Store + 'static, C: StoreClock + 'static> Drop for Unspent<S, C> {
    fn drop(&mut self) {
        let Some(charged) = self.charged.take() else { return };
        let limiter = Arc::clone(&self.limiter);
        let is_ready = limiter.store().readiness() == Readiness::Always;
        let refund = async move {
            charged.ended(RequestEnd::Unsent, &limiter).await;
        };
        if is_ready {
            let _done = now_or_never(refund);
        } else if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(refund);
        }
    }
}

/// Settles a receipt at these costs.
type Settle = dyn Fn(Receipt, Vec<u64>) -> BoxFuture<Result<(), StoreError>> + Send + Sync;

/// The reserved tokens of a request, as an extension of its response.
///
/// A response that denies the request has none: its tokens were given back.
#[derive(Clone)]
pub struct Reservation {
    reserved: Reserved,
    settle: Arc<Settle>,
}

impl Reservation {
    fn new<S, C>(reserved: Reserved, limiter: &Arc<Limiter<S, C>>) -> Reservation
    where
        S: Store + 'static,
        C: StoreClock + 'static,
    {
        let limiter = Arc::clone(limiter);
        let settle = move |receipt: Receipt, actual: Vec<u64>| -> BoxFuture<Result<(), StoreError>> {
            let limiter = Arc::clone(&limiter);
            Box::pin(async move { limiter.settle(&receipt, &actual).await.map(|_| ()) })
        };
        Reservation { reserved, settle: Arc::new(settle) }
    }

    /// Settles the limits with `cost: hits` at the real cost: refunds what was estimated too much, or charges the rest. Other limits
    /// keep what they charged. Only the first settlement counts.
    ///
    /// # Errors
    /// If the store fails. It may be tried again.
    pub async fn settle(&self, actual: u64) -> Result<(), StoreError> {
        for receipt in self.reserved.receipts.iter() {
            (self.settle)(receipt.clone(), self.reserved.costs(receipt, actual)).await?;
        }
        Ok(())
    }

    /// The estimate that was charged.
    #[must_use]
    pub const fn estimate(&self) -> u64 {
        self.reserved.estimate
    }
}
