//! Charges of the limiter, and their settlement when the request has ended.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use tidegate_core::store::{Readiness, now_or_never};
use tidegate_core::{Clock as StoreClock, Receipt, RuleId, Store, StoreError};
use tidegate_rules::{Limiter, Refundable};
use tokio::runtime::Handle;

use super::to_the_end::ToTheEnd;
use crate::pace::is_denied;
use crate::unsent::{is_refused_here, is_unsent};
use crate::{BoxError, BoxFuture};

/// The charges of a request that may be sent.
pub(super) enum ChargedRequest {
    /// Final costs, and the receipts of places in queues.
    Final(Refundable, Vec<Receipt>),
    /// Reserved costs, which are to be settled.
    Reserved(Reserved),
}

#[derive(Clone)]
pub(super) struct Reserved {
    pub(super) estimate: u64,
    pub(super) receipts: Arc<[Receipt]>,
    /// The limits with `cost: hits`, to which the estimate applies.
    pub(super) of_tokens: Arc<[RuleId]>,
}

impl Reserved {
    /// The costs at which to settle a receipt if the request has used this many tokens. Other limits keep their cost.
    fn costs(&self, receipt: &Receipt, tokens: u64) -> Vec<u64> {
        let costs = receipt.held.iter();
        costs.map(|held| if self.of_tokens.contains(&held.rule) { tokens } else { held.taken }).collect()
    }
}

/// The end of a request, as far as it matters for charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    /// Nothing of the request was sent.
    Unsent,
    /// The request was sent, at least in part, and failed.
    Failed,
    /// The server has denied the request because of its rate.
    Denied,
    /// The server has processed the request.
    Answered,
}

impl RequestEnd {
    pub(crate) fn of_response(status: StatusCode, headers: &HeaderMap) -> RequestEnd {
        if is_denied(status, headers) { RequestEnd::Denied } else { RequestEnd::Answered }
    }

    pub(crate) fn of_error(error: &BoxError) -> RequestEnd {
        if is_refused_here(error) || is_unsent(&**error) { RequestEnd::Unsent } else { RequestEnd::Failed }
    }
}

impl ChargedRequest {
    /// Gives back what the request has not used, and leaves the rest to the reservation. If the store fails, the charge stays.
    async fn ended<S, C>(self, end: RequestEnd, limiter: Arc<Limiter<S, C>>) -> Option<Reservation>
    where
        S: Store + 'static,
        C: StoreClock + 'static,
    {
        match (self, end) {
            (ChargedRequest::Final(spent, places), RequestEnd::Unsent) => {
                let _ = limiter.refund(spent).await;
                release(&places, &limiter).await;
                None
            }
            (ChargedRequest::Reserved(reserved), RequestEnd::Unsent) => {
                release(&reserved.receipts, &limiter).await;
                None
            }
            // A request that the server denied has used no tokens.
            (ChargedRequest::Reserved(reserved), RequestEnd::Denied) => {
                for receipt in reserved.receipts.iter() {
                    let _ = limiter.settle(receipt, &reserved.costs(receipt, 0)).await;
                }
                None
            }
            (ChargedRequest::Reserved(reserved), RequestEnd::Answered) => Some(Reservation::new(reserved, &limiter)),
            (ChargedRequest::Reserved(_), RequestEnd::Failed)
            | (ChargedRequest::Final(..), RequestEnd::Failed | RequestEnd::Denied | RequestEnd::Answered) => None,
        }
    }
}

/// Releases all of these receipts.
async fn release<S: Store, C: StoreClock>(receipts: &[Receipt], limiter: &Limiter<S, C>) {
    for receipt in receipts {
        let _ = limiter.settle(receipt, &vec![0; receipt.held.len()]).await;
    }
}

/// Charges of a request that waits to be sent. They are refunded if it is dropped meanwhile.
pub(super) struct Unspent<S: Store + 'static, C: StoreClock + 'static> {
    charged: Option<ChargedRequest>,
    limiter: Arc<Limiter<S, C>>,
}

impl<S: Store + 'static, C: StoreClock + 'static> Unspent<S, C> {
    pub(super) const fn new(charged: ChargedRequest, limiter: Arc<Limiter<S, C>>) -> Unspent<S, C> {
        Unspent { charged: Some(charged), limiter }
    }

    /// Ends the wait: the request is sent.
    pub(super) fn spend(mut self) -> Spent<S, C> {
        let charged = self.charged.take().unwrap_or_else(|| ChargedRequest::Final(Refundable::default(), Vec::new()));
        Spent { charged, limiter: Arc::clone(&self.limiter) }
    }

    /// Gives the charges back.
    pub(super) async fn give_back(self) {
        self.spend().ended(RequestEnd::Unsent).await;
    }
}

/// Charges of a request that is sent. If it is dropped meanwhile, they stay: the server may have counted it.
pub(super) struct Spent<S: Store + 'static, C: StoreClock + 'static> {
    charged: ChargedRequest,
    limiter: Arc<Limiter<S, C>>,
}

impl<S: Store + 'static, C: StoreClock + 'static> Spent<S, C> {
    /// Gives back what the request has not used, also if the caller is dropped before that is done.
    pub(super) fn ended(self, end: RequestEnd) -> ToTheEnd<Option<Reservation>> {
        ToTheEnd::new(self.charged.ended(end, self.limiter))
    }
}

impl<S: Store + 'static, C: StoreClock + 'static> Drop for Unspent<S, C> {
    fn drop(&mut self) {
        let Some(charged) = self.charged.take() else { return };
        let limiter = Arc::clone(&self.limiter);
        let is_ready = limiter.store().readiness() == Readiness::Always;
        let refund = async move {
            charged.ended(RequestEnd::Unsent, limiter).await;
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
/// A response that denies the request has no reservation, because its tokens were refunded.
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

    /// Settles the limits with `cost: hits` at the actual cost: refunds the excess of the estimate, or charges the
    /// difference. Other limits keep what they charged. Only the first settlement counts.
    ///
    /// # Errors
    /// Fails if the store fails. The caller may try again.
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
