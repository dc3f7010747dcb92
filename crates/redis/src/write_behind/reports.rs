//! Reports to the store.

use std::slice::from_ref;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tidegate_core::store::Adjustment;
use tidegate_core::write_behind::LocalCopy;
use tidegate_core::{Charge, Clock, Decision, Store, StoreError};
use tokio::time::timeout;

use super::keys::Report;
use super::{WriteBehindInner, add};
use crate::join_all::join_all;

/// Maximum number of reports in flight. Reports that become due meanwhile wait, and their sums grow.
pub(super) const MOST_CALLS: u32 = 256;
/// Maximum number of reports in flight at the end.
const LAST_AT_ONCE: usize = 64;
/// Maximum sleep, after which keys that have recovered are removed.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Reports until the tier is dropped.
pub(super) async fn run<S: Store + 'static, C: Clock + 'static>(tier: Weak<WriteBehindInner<S, C>>) {
    loop {
        let Some(shared) = tier.upgrade() else { return };
        let now = shared.clock.now();
        let sleep = match shared.keys.next_at() {
            Some(at) => Duration::from(at.since(now)).min(LONGEST_SLEEP),
            None => LONGEST_SLEEP,
        };
        let work = Arc::clone(&shared.work);
        drop(shared);
        if !sleep.is_zero() {
            let _ = timeout(sleep, work.notified()).await;
        }
        let Some(shared) = tier.upgrade() else { return };
        shared.keys.sweep(shared.clock.now());
        loop {
            // Acquired before the report begins, so that its sum grows while it waits.
            let Ok(permit) = Arc::clone(&shared.calls).acquire_owned().await else { return };
            let Some(report) = shared.keys.next_due(shared.clock.now()) else { break };
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                send(&shared, report).await;
                drop(permit);
            });
        }
    }
}

/// A report on its way. It counts as lost if it is dropped before the answer.
struct ReportInFlight<'t, S, C: Clock> {
    tier: &'t WriteBehindInner<S, C>,
    report: Report,
    is_answered: bool,
}

impl<S, C: Clock> ReportInFlight<'_, S, C> {
    fn end(&mut self, result: Result<Decision, StoreError>) {
        self.is_answered = true;
        let WriteBehindInner { counters, keys, clock, work, .. } = self.tier;
        let (now, sum) = (clock.now(), self.report.sum);
        let is_next = match result {
            Ok(standing) => {
                add(&counters.reports, 1);
                add(&counters.cost_reported, sum);
                keys.end_report(self.report.hash, false, now, |copy| copy.answered(&standing, now))
            }
            Err(error) if error.may_have_charged() && sum > 0 => {
                add(&counters.lost, 1);
                add(&counters.cost_lost, sum);
                keys.end_report(self.report.hash, true, now, |copy| copy.answer_lost(now))
            }
            Err(_) => {
                add(&counters.not_sent, 1);
                keys.end_report(self.report.hash, true, now, LocalCopy::not_sent)
            }
        };
        if is_next {
            work.notify_one();
        }
    }
}

impl<S, C: Clock> Drop for ReportInFlight<'_, S, C> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.end(Err(StoreError::AnswerLost { reason: "the report was cancelled".into() }));
        }
    }
}

/// Reports the costs of all keys, several at a time, after the reports in flight. If the store is unavailable, no further reports are
/// attempted.
pub(super) async fn send_all<S: Store, C: Clock>(tier: &WriteBehindInner<S, C>) {
    // What was admitted during a report is sent after it. Nobody else begins a report meanwhile.
    let Ok(_all_calls) = tier.calls.acquire_many(MOST_CALLS).await else { return };
    let unsent = Mutex::new(tier.keys.unsent());
    join_all((0..LAST_AT_ONCE).map(|_| send_some(tier, &unsent))).await;
}

/// Sends reports one after the other, until none is left. The first one that is not answered is the last.
async fn send_some<S: Store, C: Clock>(tier: &WriteBehindInner<S, C>, unsent: &Mutex<Vec<u64>>) {
    let keys = || unsent.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(hash) = keys().pop() else { return };
        let Some(report) = tier.keys.begin_report(hash) else { continue };
        if !send(tier, report).await {
            keys().clear();
        }
    }
}

/// Sends a report, and waits for the answer. Returns whether the store has answered, if only that this key cannot be used.
pub(super) async fn send<S: Store, C: Clock>(tier: &WriteBehindInner<S, C>, report: Report) -> bool {
    let mut call = ReportInFlight { tier, report, is_answered: false };
    let Report { rule, key, limit, sum, .. } = &call.report;
    let charge = Charge::new(rule, key, limit).cost(*sum);
    let result = if *sum > 0 {
        tier.store.adjust(&charge, Adjustment::Penalty).await
    } else {
        let standing = tier.store.peek(from_ref(&charge)).await;
        let none = || StoreError::Failed { reason: "the store answered nothing about a key".into() };
        standing.and_then(|standing| standing.first().copied().ok_or_else(none))
    };
    let is_answered = matches!(result, Ok(_) | Err(StoreError::UnusableKey { .. }));
    call.end(result);
    is_answered
}
