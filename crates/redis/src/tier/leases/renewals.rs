//! Renewals of leases: calls to the store for many keys at once.

use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::lease::{Grants, LeaseRequest};
use tidegate_core::{Charge, Clock, Store, StoreError, Timestamp};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::Leases;
use super::counters::add;
use super::leased_key::{LeasedKey, ToSend};
use crate::tier::Shared;

/// The time between two looks at all keys.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// The most calls in flight. Renewals that become due meanwhile are sent together.
const MOST_CALLS: usize = 4;

/// Renews leases until the tier is dropped.
pub(in crate::tier) async fn run<S: Store + 'static, C: Clock + 'static>(tier: Weak<Shared<S, C>>) {
    let calls = Arc::new(Semaphore::new(MOST_CALLS));
    let mut next_sweep = Instant::now() + SWEEP_EVERY;
    loop {
        let upgraded = tier.upgrade();
        let Some(leases) = upgraded.as_ref().and_then(|tier| tier.leases.as_ref()) else { return };
        let (work, is_in_use) = (Arc::clone(&leases.work), leases.is_in_use());
        drop(upgraded);
        if is_in_use {
            // A renewal that is due, or the time to sweep.
            let _ = timeout_at(next_sweep, work.notified()).await;
        } else {
            work.notified().await;
        }
        let Some(shared) = tier.upgrade() else { return };
        let Some(leases) = &shared.leases else { return };
        if Instant::now() >= next_sweep {
            leases.sweep(shared.clock.now());
            next_sweep = Instant::now() + SWEEP_EVERY;
        }
        while leases.has_due() {
            let Ok(permit) = Arc::clone(&calls).acquire_owned().await else { return };
            let (keys, shared) = (leases.next_call(), Arc::clone(&shared));
            tokio::spawn(async move {
                renew(&shared, keys).await;
                drop(permit);
            });
        }
    }
}

/// A renewal of one key, on its way.
struct InFlight {
    key: Arc<LeasedKey>,
    sent: ToSend,
}

/// Renewals on their way. They count as lost if nobody waits for the answer any more.
struct Call<'t, S, C: Clock> {
    tier: &'t Shared<S, C>,
    leases: &'t Leases,
    renewals: Vec<InFlight>,
    is_answered: bool,
}

impl<S, C: Clock> Drop for Call<'_, S, C> {
    fn drop(&mut self) {
        if !self.is_answered {
            let error = StoreError::AnswerLost { reason: "the renewal of a lease was cancelled".into() };
            self.fail(&error, self.tier.clock.now());
        }
    }
}

/// Sends the renewals that are due for these keys, and waits for the answer.
pub(in crate::tier) async fn renew<S: Store, C: Clock>(tier: &Shared<S, C>, keys: Vec<Arc<LeasedKey>>) {
    let Some(leases) = &tier.leases else { return };
    leases.note_server(tier.store.server_generation());
    // Before the call: the store counts the ends of leases from an instant after this one.
    let sent_at = tier.clock.now();
    let to_send = keys.into_iter().filter_map(|key| {
        let sent = key.to_send(sent_at)?;
        Some(InFlight { key, sent })
    });
    let mut call = Call { tier, leases, renewals: to_send.collect(), is_answered: false };
    if call.renewals.is_empty() {
        call.is_answered = true;
        return;
    }
    call.count_sent();
    let denials: SmallVec<[_; 8]> =
        call.renewals.iter().map(|renewal| tier.denials.look_at(&renewal.charge(), sent_at)).collect();
    let requests: SmallVec<[LeaseRequest<'_>; 8]> = call.renewals.iter().map(InFlight::request).collect();
    let answer = tier.store.lease(&requests).await;
    let now = tier.clock.now();
    match answer {
        Ok(grants) if grants.len() == requests.len() => {
            leases.resume();
            tier.calls.count(requests.iter().map(|request| (request.rule, request.key)), now);
            for ((renewal, denial), grant) in call.renewals.iter().zip(&denials).zip(&grants) {
                if grant.tokens == 0 && !grant.decision.is_allowed() {
                    tier.denials.learn_one(&renewal.charge(), denial, &grant.decision, sent_at, now);
                }
            }
            call.grant(&grants, now);
        }
        Ok(_) => {
            let reason = "the store answered other renewals than it was asked".into();
            call.fail(&StoreError::AnswerLost { reason }, now);
        }
        Err(error) => {
            if matches!(error, StoreError::Failed { .. }) && leases.pause(now) {
                tracing::info!(%error, "the store grants no leases: it decides every request");
            }
            call.fail(&error, now);
        }
    }
    call.is_answered = true;
}

impl InFlight {
    fn request(&self) -> LeaseRequest<'_> {
        let InFlight { key, sent } = self;
        LeaseRequest { rule: &key.rule, key: &key.key, limit: &sent.limit, renewal: sent.renewal }
    }

    /// The charge that the decision in the answer is about.
    fn charge(&self) -> Charge<'_> {
        Charge::new(&self.key.rule, &self.key.key, &self.sent.limit).cost(self.sent.renewal.least)
    }
}

impl<S, C: Clock> Call<'_, S, C> {
    fn count_sent(&self) {
        let sum = |count: fn(&ToSend) -> u64| self.renewals.iter().map(|renewal| count(&renewal.sent)).sum();
        let counters = &self.leases.counters;
        add(&counters.calls, 1);
        add(&counters.renewals, self.renewals.len() as u64);
        add(&counters.returned, sum(|sent| sent.renewal.returned));
        add(&counters.ended, sum(|sent| sent.ended));
    }

    fn grant(&self, grants: &Grants, now: Timestamp) {
        for (InFlight { key, .. }, grant) in self.renewals.iter().zip(grants) {
            let short = key.granted(grant, fastrand::u64(..), now);
            add(&self.leases.counters.granted, grant.tokens);
            add(&self.leases.counters.short, short.get());
            if key.is_retired() && key.begin_return(now) {
                self.leases.renew_soon(Arc::clone(key));
            }
        }
    }

    fn fail(&self, error: &StoreError, now: Timestamp) {
        add(&self.leases.counters.failed, self.renewals.len() as u64);
        for (number, InFlight { key, .. }) in self.renewals.iter().enumerate() {
            let is_unusable = matches!(error, StoreError::UnusableKey { charges, .. } if charges.contains(&number));
            key.failed(error, is_unusable, now);
        }
    }
}
