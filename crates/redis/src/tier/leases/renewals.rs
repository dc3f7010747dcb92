//! Renewals of the leases of many keys at once.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_core::lease::{Grant, LeaseRequest};
use tidegate_core::{Charge, Clock, Store, StoreError, Timestamp};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::counters::add;
use super::key_renewal::ToSend;
use super::leased_key::LeasedKey;
use super::{Leases, Round};
use crate::join_all::join_all;
use crate::tier::TierInner;
use crate::tier::blocks::tend;

/// Time between two sweeps over all keys.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of rounds of renewals in flight. Renewals that become due meanwhile are sent together.
const MOST_ROUNDS: usize = 4;

/// Renews leases until the tier is dropped.
pub(in crate::tier) async fn run<S: Store + 'static, C: Clock + 'static>(tier: Weak<TierInner<S, C>>) {
    let rounds = Arc::new(Semaphore::new(MOST_ROUNDS));
    let mut next_sweep = Instant::now() + SWEEP_EVERY;
    loop {
        let upgraded = tier.upgrade();
        let Some(leases) = upgraded.as_ref().and_then(|tier| tier.leases.as_ref()) else { return };
        let (work, is_in_use) = (Arc::clone(&leases.work), leases.is_in_use());
        drop(upgraded);
        if is_in_use {
            // Waits until a renewal is due, or the next sweep.
            let _ = timeout_at(next_sweep, work.notified()).await;
        } else {
            work.notified().await;
        }
        let Some(shared) = tier.upgrade() else { return };
        let Some(leases) = &shared.leases else { return };
        let mut sweep = (Instant::now() >= next_sweep).then(|| leases.begin_sweep());
        loop {
            let is_over = sweep
                .as_mut()
                .is_none_or(|sweep| !leases.sweep_some(sweep, shared.store.server_generation(), shared.clock.now()));
            while leases.has_due() {
                let Ok(permit) = Arc::clone(&rounds).acquire_owned().await else { return };
                let (round, shared) = (leases.next_round(), Arc::clone(&shared));
                tokio::spawn(async move {
                    send(&shared, round).await;
                    drop(permit);
                });
            }
            if is_over {
                break;
            }
            // Many keys are no reason to keep requests on this thread waiting.
            yield_now().await;
        }
        if sweep.is_some() {
            next_sweep = Instant::now() + SWEEP_EVERY;
        }
    }
}

/// Sends a round of calls, and waits for the answers.
pub(in crate::tier) async fn send<S: Store, C: Clock>(tier: &TierInner<S, C>, round: Round) {
    let Round { keys, blocks } = round;
    // Renewals of keys come first, because requests wait for them.
    renew(tier, keys).await;
    tend(tier, blocks).await;
}

/// Sends the renewals that are due for these keys, and waits for the answers. Each key is renewed by a call of its own, so that the
/// failure of one does not concern the others. The link sends calls together that are made together.
pub(in crate::tier) async fn renew<S: Store, C: Clock>(tier: &TierInner<S, C>, keys: Vec<Arc<LeasedKey>>) {
    let Some(leases) = &tier.leases else { return };
    // Read before the renewals are made: if a server is replaced after this, they do not run.
    let generation = tier.store.server_generation();
    // Read before the calls: the store counts the ends of leases from a later instant.
    let sent_at = tier.clock.now();
    let to_send = keys.into_iter().filter_map(|key| {
        let sent = key.to_send(generation, sent_at)?;
        Some(RenewalInFlight { tier, leases, key, sent, sent_at, is_answered: false })
    });
    let renewals: Vec<_> = to_send.collect();
    if !renewals.is_empty() {
        add(&leases.counters.calls, 1);
        add(&leases.counters.renewals, renewals.len() as u64);
        join_all(renewals.into_iter().map(RenewalInFlight::run)).await;
    }
}

/// A renewal of one key, on its way. It counts as lost if it is dropped before the answer.
struct RenewalInFlight<'t, S, C: Clock> {
    tier: &'t TierInner<S, C>,
    leases: &'t Leases,
    key: Arc<LeasedKey>,
    sent: ToSend,
    sent_at: Timestamp,
    is_answered: bool,
}

impl<S, C: Clock> Drop for RenewalInFlight<'_, S, C> {
    fn drop(&mut self) {
        if !self.is_answered {
            let error = StoreError::AnswerLost { reason: "the renewal of a lease was cancelled".into() };
            self.fail(&error, self.tier.clock.now());
        }
    }
}

impl<S: Store, C: Clock> RenewalInFlight<'_, S, C> {
    async fn run(mut self) {
        let denial = self.tier.denials.look_up_charge(&self.charge(), self.sent_at);
        let answer = self.tier.store.lease(&[self.request()]).await;
        let now = self.tier.clock.now();
        match answer.as_deref() {
            Ok([grant]) => {
                self.tier.calls.count(std::iter::once((&self.key.rule, &self.key.key)), now);
                if grant.tokens == 0 && !grant.decision.is_allowed() {
                    self.tier.denials.learn_one(&self.charge(), &denial, &grant.decision, self.sent_at, now);
                }
                self.grant(grant, now);
            }
            Ok(_) => {
                let reason = "the store's reply does not match the renewals that were sent".into();
                self.fail(&StoreError::AnswerLost { reason }, now);
            }
            Err(error) => {
                if matches!(error, StoreError::Failed { .. }) && self.leases.logs_refusal(now) {
                    tracing::info!(%error, "the store refuses to renew a lease: it decides the requests of the key");
                }
                self.fail(error, now);
            }
        }
        self.is_answered = true;
    }
}

impl<S, C: Clock> RenewalInFlight<'_, S, C> {
    fn request(&self) -> LeaseRequest<'_> {
        let RenewalInFlight { key, sent, .. } = self;
        LeaseRequest { rule: &key.rule, key: &key.key, limit: &sent.limit, renewal: sent.renewal }
    }

    /// The charge to which the decision in the answer applies.
    fn charge(&self) -> Charge<'_> {
        Charge::new(&self.key.rule, &self.key.key, &self.sent.limit).cost(self.sent.renewal.least)
    }

    fn grant(&self, grant: &Grant, now: Timestamp) {
        let counters = &self.leases.counters;
        let short = self.key.granted(grant, fastrand::u64(..), now);
        add(&counters.granted, grant.tokens);
        add(&counters.short, short.get());
        // Tokens of a return that reached the store too late have ended.
        let ended = self.key.take_ended(now);
        add(&counters.ended, ended);
        add(&counters.returned, self.sent.renewal.returned.saturating_sub(ended));
        if self.key.is_retired() && self.key.begin_return(now) {
            self.leases.renew_soon(Arc::clone(&self.key));
        }
    }

    fn fail(&self, error: &StoreError, now: Timestamp) {
        add(&self.leases.counters.failed, 1);
        self.key.failed(error, now);
        add(&self.leases.counters.ended, self.key.take_ended(now));
    }
}
