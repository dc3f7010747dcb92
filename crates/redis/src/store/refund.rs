//! Refunds of requests that were charged in some slots of a cluster and denied in others.
//!
//! A caller may stop waiting before the refund has arrived. So tasks make refunds, and retry until the server has confirmed
//! them. A repeated refund has no effect: a charge is held under an id, and removed once it is refunded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::Micros;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::frame::Frame;
use crate::link::Link;
use crate::reply;

/// The time in which a charge can be refunded and refunds are retried. After that the charge stays.
pub(super) const REFUNDABLE_FOR: Micros = Micros::from_secs(10);
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// Deadline of one attempt. No caller waits for it.
const ATTEMPT: Duration = Duration::from_millis(250);
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The time in which a request whose answer was lost may still arrive once the server answers other calls.
const LATEST_ARRIVAL: Duration = Duration::from_secs(1);

/// Maximum number of refunds that are retried. Beyond it each refund is attempted once, so that an unavailable server does
/// not exhaust memory.
const MOST_WAITING: usize = 4_096;

/// Counts of refunds, by slot, of requests that were charged in some slots of a cluster and not admitted in others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefundCounts {
    /// Refunds that a server has confirmed.
    pub refunded: u64,
    /// Refunds that are in flight or will be retried.
    pub waiting: usize,
    /// Charges that were not refunded within ten seconds, or whose refund was refused. They stay, and expire like all
    /// charges.
    pub lost: u64,
}

/// The refund of one slot.
#[derive(Debug)]
pub(super) struct Refund {
    /// Settles the charges at a cost of 0.
    pub(super) settle: Frame,
    /// The number of charges.
    pub(super) charges: usize,
    /// Peeks at the remaining quota afterwards.
    pub(super) peek: Option<Frame>,
    /// Whether the slot was certainly charged. If not, the request may still be in flight on a closed connection, so the
    /// refund is retried for a short time, until there was something to refund.
    pub(super) is_certain: bool,
}

/// The outcome of a refund.
#[derive(Debug, Default)]
pub(super) struct RefundOutcome {
    pub(super) is_confirmed: bool,
    /// The reply to the peek, if there was one.
    pub(super) left: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct Refunds {
    link: Arc<Link>,
    runtime: Handle,
    refunded: AtomicU64,
    waiting: AtomicUsize,
    lost: AtomicU64,
    /// Whether the last refund was lost.
    is_losing: AtomicBool,
}

impl Refunds {
    pub(super) fn over(link: Arc<Link>, runtime: Handle) -> Refunds {
        Refunds {
            link,
            runtime,
            refunded: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            is_losing: AtomicBool::new(false),
        }
    }

    pub(super) fn counts(&self) -> RefundCounts {
        RefundCounts {
            refunded: self.refunded.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// Starts a refund, which continues even if the handle is dropped.
    pub(super) fn begin(self: &Arc<Self>, what: Refund) -> JoinHandle<RefundOutcome> {
        let waiting = RefundInProgress::one_of(self);
        self.runtime.spawn(async move { waiting.at.refund(what).await })
    }

    async fn refund(&self, Refund { settle, charges, mut peek, is_certain }: Refund) -> RefundOutcome {
        let began = Instant::now();
        let mut nothing_since = None;
        let mut wait = FIRST_WAIT;
        loop {
            let settling = self.link.call(settle.clone(), ATTEMPT);
            let (settled, left) = match peek.take() {
                // Calls to one slot are answered in order.
                Some(peek) => tokio::join!(settling, self.link.call(peek, ATTEMPT)),
                None => (settling.await, Ok(Vec::new())),
            };
            let is_too_late = began.elapsed() + wait > GIVE_UP_AFTER || self.is_crowded();
            match settled.map(|reply| reply::any_settled(&reply, charges)) {
                Ok(Ok(found)) if found || is_certain => {
                    self.confirm();
                    return RefundOutcome { is_confirmed: true, left: left.ok().filter(|reply| !reply.is_empty()) };
                }
                Ok(Ok(_)) => {
                    let since = *nothing_since.get_or_insert_with(|| {
                        wait = FIRST_WAIT;
                        Instant::now()
                    });
                    if is_too_late || since.elapsed() > LATEST_ARRIVAL {
                        // The slot was never charged.
                        return RefundOutcome::default();
                    }
                }
                // Another program has overwritten the key, so there is nothing to refund.
                Ok(Err(error)) => {
                    self.lose(&error);
                    return RefundOutcome::default();
                }
                Err(error) if is_too_late => {
                    self.lose(&error);
                    return RefundOutcome::default();
                }
                Err(_) => {}
            }
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > MOST_WAITING
    }

    fn confirm(&self) {
        self.refunded.fetch_add(1, Ordering::Relaxed);
        self.is_losing.store(false, Ordering::Relaxed);
    }

    fn lose(&self, reason: &dyn std::error::Error) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if !self.is_losing.swap(true, Ordering::Relaxed) {
            tracing::warn!(%reason, "refunds of requests over several slots failed: their costs stay charged");
        }
    }
}

/// Counts a refund as waiting while its task runs.
struct RefundInProgress {
    at: Arc<Refunds>,
}

impl RefundInProgress {
    fn one_of(at: &Arc<Refunds>) -> RefundInProgress {
        at.waiting.fetch_add(1, Ordering::Relaxed);
        RefundInProgress { at: at.clone() }
    }
}

impl Drop for RefundInProgress {
    fn drop(&mut self) {
        self.at.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
