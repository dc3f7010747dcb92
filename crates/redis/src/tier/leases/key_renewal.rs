//! Renewals of one key: when its lease is renewed or returned, and how it is updated by the answers.

use std::sync::atomic::Ordering;

use tidegate_core::lease::{Ask, Grant, Next, Pace, Renewal};
use tidegate_core::{Limit, Micros, StoreError, Timestamp};

use super::leased_key::{LastAnswer, LeasedKey, Progress};

/// Time without requests after which a key is removed from the table.
const FORGOTTEN_AFTER: Micros = Micros::from_secs(10);
/// The time for which the store decides the requests of a key with foreign data.
const UNUSABLE_FOR: Micros = Micros::from_secs(10);
/// The first pause after the store has refused to renew a lease, followed by the longest one. Each pause is twice as long
/// as the previous one.
const FIRST_PAUSE: Micros = Micros::from_secs(1);
pub(super) const LONGEST_PAUSE: Micros = Micros::from_secs(64);
const NEVER: u64 = u64::MAX;

/// The need of a key, as a sweep has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swept {
    Nothing,
    /// Its tokens must be returned.
    Return,
    /// It must be removed from the table.
    Retired,
}

/// A renewal to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToSend {
    pub(super) renewal: Renewal,
    pub(super) limit: Limit,
}

impl LeasedKey {
    /// Whether a lease that is running low must be renewed now. If so, the caller must send the renewal.
    pub(super) fn begins_renewal(&self, is_open: bool, now: Timestamp) -> bool {
        let mut progress = self.progress();
        if progress.asking.is_some() {
            return false;
        }
        self.record_taken(&mut progress, now);
        let next = if is_open && !self.is_retired() && now >= progress.direct_until {
            progress.pace.next(0, self.holding.cell().tokens(now), now)
        } else {
            Next::Spend
        };
        match next {
            Next::Ask(ask) => {
                self.begin(&mut progress, ask);
                true
            }
            Next::Spend | Next::Decide | Next::Wait(_) => {
                let pause = now + Micros::new(self.terms.interval().get() / 4);
                self.quiet_until.store(pause.max(progress.pace.not_before()).as_micros(), Ordering::Relaxed);
                false
            }
        }
    }

    pub(super) fn begin(&self, progress: &mut Progress, ask: Ask) {
        progress.asking = Some(ask);
        self.most_cost.store(progress.pace.most_cost(), Ordering::Relaxed);
        self.quiet_until.store(NEVER, Ordering::Relaxed);
    }

    /// Maintains a key; called periodically. Returns unused tokens, and removes unused keys.
    pub(super) fn sweep(&self, now: Timestamp) -> Swept {
        let mut progress = self.progress();
        self.record_taken(&mut progress, now);
        if progress.asking.is_some() {
            return Swept::Nothing;
        }
        let tokens = self.holding.cell().tokens(now);
        if tokens > 0 && (progress.pace.is_idle(now) || self.would_end_unspent(&progress, tokens, now)) {
            self.begin(&mut progress, Ask { returns: true, ..Ask::default() });
            return Swept::Return;
        }
        if tokens == 0 && now.since(progress.used_at) >= FORGOTTEN_AFTER {
            self.is_retired.store(true, Ordering::Relaxed);
            return Swept::Retired;
        }
        Swept::Nothing
    }

    /// Whether the lease ends soon, and its tokens will not be spent by then.
    fn would_end_unspent(&self, progress: &Progress, tokens: u64, now: Timestamp) -> bool {
        let left = self.holding.cell().end().since(now).get();
        let lasted = progress.last.map_or(0, |last| now.since(last.at).get());
        let used = u128::from(progress.pace.demand()) * u128::from(left) / 1_000_000;
        left.saturating_mul(3) < lasted && u128::from(tokens) > used
    }

    /// Whether the key can be replaced by another one immediately.
    pub(super) fn is_replaceable(&self, now: Timestamp) -> bool {
        let progress = self.progress();
        progress.asking.is_none() && self.holding.cell().tokens(now) == 0 && progress.pace.is_idle(now)
    }

    /// Retires the key, which is then never leased again. Returns whether tokens must be returned, under the `new` limit if
    /// there is one.
    pub(super) fn retire(&self, new: Option<&Limit>, now: Timestamp) -> bool {
        self.is_retired.store(true, Ordering::Relaxed);
        let mut progress = self.progress();
        progress.returned_under = new.copied();
        self.begins_return(&mut progress, now)
    }

    /// Begins to return all tokens. Returns whether the caller must send the return.
    pub(in crate::tier) fn begin_return(&self, now: Timestamp) -> bool {
        self.begins_return(&mut self.progress(), now)
    }

    fn begins_return(&self, progress: &mut Progress, now: Timestamp) -> bool {
        if progress.asking.is_some() || self.holding.cell().tokens(now) == 0 {
            return false;
        }
        self.begin(progress, Ask { returns: true, ..Ask::default() });
        true
    }

    /// Forgets the demand and the last answer, because the key was changed.
    pub(in crate::tier) fn begin_anew(&self, now: Timestamp) {
        let mut progress = self.progress();
        progress.pace = Pace::new(self.terms, now);
        progress.last = None;
    }

    pub(super) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// Whether a renewal is due or in flight.
    pub(in crate::tier) fn is_asking(&self) -> bool {
        self.progress().asking.is_some()
    }

    /// The tokens that this node holds.
    pub(super) fn tokens(&self, now: Timestamp) -> u64 {
        self.holding.cell().tokens(now)
    }

    /// The number of tokens that ended unspent since the last call.
    pub(super) fn take_ended(&self, now: Timestamp) -> u64 {
        let mut progress = self.progress();
        self.record_taken(&mut progress, now);
        let ended = self.holding.take_ended(now);
        progress.unspent = self.holding.cell().unspent();
        ended
    }

    /// The renewal to send now, for servers of this generation.
    pub(super) fn to_send(&self, server_generation: u64, now: Timestamp) -> Option<ToSend> {
        let mut progress = self.progress();
        let ask = progress.asking?;
        self.record_taken(&mut progress, now);
        self.holding.server_replaced(server_generation);
        let renewal = self.holding.ask(&ask, now);
        progress.unspent = self.holding.cell().unspent();
        let Some(renewal) = renewal else {
            progress.asking = None;
            return None;
        };
        Some(ToSend { renewal, limit: progress.returned_under.unwrap_or(self.limit) })
    }

    /// Records the store's answer to the renewal. Returns how long tokens are scarce. `chance` is a random number.
    pub(super) fn granted(&self, grant: &Grant, chance: u64, now: Timestamp) -> Micros {
        let mut progress = self.progress();
        let Some(ask) = progress.asking.take() else { return Micros::ZERO };
        self.record_taken(&mut progress, now);
        self.holding.granted(grant);
        let left = self.holding.cell().tokens(now);
        progress.unspent = self.holding.cell().unspent();
        (progress.error, progress.pause) = (None, Micros::ZERO);
        if ask.returns {
            progress.last = None;
        } else {
            progress.pace.granted(grant, left, chance, now);
            let (decision, is_short) = (grant.decision, grant.is_short);
            progress.last = Some(LastAnswer { decision, cost: ask.least, at: now, is_short });
        }
        self.lease.store(left, Ordering::Relaxed);
        self.most_cost.store(progress.pace.most_cost(), Ordering::Relaxed);
        self.available.store(grant.decision.remaining, Ordering::Relaxed);
        self.resets_at.store((now + grant.decision.reset_after).as_micros(), Ordering::Relaxed);
        self.quiet_until.store(progress.pace.not_before().as_micros(), Ordering::Relaxed);
        let short = if grant.is_short && !ask.returns { progress.pace.not_before().since(now) } else { Micros::ZERO };
        drop(progress);
        self.answered.notify_waiters();
        short
    }

    /// Records that the renewal has failed.
    pub(super) fn failed(&self, error: &StoreError, now: Timestamp) {
        let mut progress = self.progress();
        if error.may_have_charged() {
            self.holding.lost();
        } else {
            self.holding.not_sent();
        }
        progress.asking = None;
        progress.unspent = self.holding.cell().unspent();
        progress.error = Some(error.clone());
        match error {
            StoreError::UnusableKey { .. } => progress.direct_until = now + UNUSABLE_FOR,
            // Returns are also retried during a pause; their failure does not extend it.
            StoreError::Failed { .. } if now >= progress.direct_until => {
                let pause = (2 * progress.pause.get()).clamp(FIRST_PAUSE.get(), LONGEST_PAUSE.get());
                progress.pause = Micros::new(pause);
                progress.direct_until = now + progress.pause;
            }
            _ => {}
        }
        let pause = now + Micros::new(self.terms.interval().get() / 4);
        self.quiet_until.store(pause.as_micros(), Ordering::Relaxed);
        drop(progress);
        self.answered.notify_waiters();
    }
}
