//! The tokens that a node holds of one key.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cell::{Cell, Taken};
use super::renewal::{Generation, Grant, Renewal};
use super::without_drift;
use crate::time::Timestamp;

/// The tokens of one key that a node holds.
///
/// Requests are paid from [`Holding::cell`]. [`Holding::ask`] makes the renewal to send to the store, and exactly one of
/// [`Holding::granted`], [`Holding::not_sent`] and [`Holding::lost`] must follow it. Instants are those of a clock that does not
/// step and that counts the time for which the machine sleeps. They need no relation to the store's clock.
#[derive(Debug)]
pub struct Holding {
    pub(super) cell: Cell,
    pub(super) account: Mutex<HoldingAccount>,
}

/// The part of a holding that requests do not touch.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldingAccount {
    /// The tokens at the start of the cell's version.
    pub(super) base: u64,
    /// Tokens spent before that, and after the last renewal.
    pub(super) used: u64,
    /// The generation of the tokens. `None` if they must not be reported: there are none, or an answer about them was lost.
    pub(super) generation: Option<Generation>,
    /// The renewal that waits for its answer.
    pub(super) sent: Option<Sent>,
    /// Whether the server that granted the tokens was replaced by another one.
    pub(super) claims: bool,
    /// The generation of the store's servers, as far as the node knows.
    pub(super) server_generation: u64,
    /// Tokens that ended unspent and were not counted yet.
    pub(super) ended: u64,
}

/// A renewal without an answer yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) at: Timestamp,
    pub(super) used: u64,
    pub(super) returned: u64,
    pub(super) claims: bool,
}

/// The wishes of a node that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Tokens that the node asks for.
    pub wanted: u64,
    /// The least that is of use: fewer are not granted.
    pub least: u64,
    /// The node's demand for the key, in tokens per second.
    pub demand: u64,
    /// The epoch in which the store last counted that demand.
    pub demand_counted: Option<u64>,
    /// Whether the node returns all tokens that it has.
    pub returns: bool,
}

impl Default for Holding {
    fn default() -> Holding {
        Holding::new()
    }
}

impl Holding {
    /// A holding without tokens.
    #[must_use]
    pub fn new() -> Holding {
        Holding { cell: Cell::new(), account: Mutex::default() }
    }

    /// The cell that requests take tokens from.
    #[must_use]
    pub const fn cell(&self) -> &Cell {
        &self.cell
    }

    /// Takes `cost` tokens (see [`Cell::take`]).
    #[inline]
    pub fn take(&self, cost: u64, clock: impl Fn() -> Timestamp) -> Option<Taken> {
        self.cell.take(cost, clock)
    }

    /// The renewal to send. `None` while another one waits for its answer.
    pub fn ask(&self, ask: &Ask, now: Timestamp) -> Option<Renewal> {
        let mut account = self.account();
        if account.sent.is_some() {
            return None;
        }
        let end = self.cell.end();
        if now >= end {
            // They count as spent from their end on, in the store too.
            self.drop_tokens(&mut account);
        }
        let left = self.cell.start_version(end, |tokens| if ask.returns { 0 } else { tokens });
        let (kept, returned) = if ask.returns { (0, left) } else { (left, 0) };
        let used = std::mem::take(&mut account.used) + account.base.saturating_sub(left);
        account.base = kept;
        let is_reported = account.generation.is_some();
        let reported = |tokens| if is_reported { tokens } else { 0 };
        account.ended += returned - reported(returned);
        let (used, returned) = (reported(used), reported(returned));
        account.sent = Some(Sent { at: now, used, returned, claims: account.claims });
        Some(Renewal {
            generation: account.generation,
            used,
            kept: reported(kept),
            returned,
            wanted: ask.wanted,
            least: ask.least,
            demand: ask.demand,
            demand_counted: ask.demand_counted,
            claims: account.claims,
            server_generation: account.server_generation,
        })
    }

    /// The store has answered the renewal.
    pub fn granted(&self, grant: &Grant) {
        let mut account = self.account();
        let Some(sent) = account.sent.take() else { return };
        let is_kept = account.generation.is_some_and(|generation| {
            let is_recent = grant.generation.epoch.saturating_sub(generation.epoch) < 2;
            generation.part == grant.generation.part && (is_recent || sent.claims)
        });
        // From before the renewal was sent: the store counts from an instant after that.
        let end = sent.at + without_drift(grant.ends_after);
        let kept = |tokens: u64| if is_kept { tokens } else { 0 };
        let left = self.cell.start_version(end, |tokens| kept(tokens) + grant.tokens);
        // Tokens that were not kept by the store have ended, and are not reported.
        if !is_kept {
            account.ended += left + sent.returned;
        }
        account.used = kept(account.used + account.base.saturating_sub(left));
        account.base = kept(left) + grant.tokens;
        account.generation = Some(grant.generation);
        account.claims &= !sent.claims;
    }

    /// The renewal certainly did not reach the store.
    pub fn not_sent(&self) {
        let mut account = self.account();
        let Some(sent) = account.sent.take() else { return };
        let left = self.cell.start_version(self.cell.end(), |tokens| tokens + sent.returned);
        account.used += sent.used + account.base.saturating_sub(left);
        account.base = left + sent.returned;
    }

    /// The renewal may have reached the store, and no answer came. The tokens that it kept can be spent until their end, whether
    /// the store knows of it or not. They are not reported, and are dropped when the next answer comes.
    pub fn lost(&self) {
        let mut account = self.account();
        if let Some(sent) = account.sent.take() {
            account.ended += sent.returned;
            (account.generation, account.used, account.claims) = (None, 0, false);
        }
    }

    /// Notes the [generation](crate::Store::server_generation) of the store's servers, for which the next renewal is made. If it is
    /// another one than before, that renewal claims the tokens that the server before granted.
    pub fn server_replaced(&self, generation: u64) {
        let mut account = self.account();
        if account.server_generation != generation {
            account.claims = account.generation.is_some();
            account.server_generation = generation;
        }
    }

    /// Drops tokens that have ended, and returns the number of all that ended unspent since the last call.
    pub fn take_ended(&self, now: Timestamp) -> u64 {
        let mut account = self.account();
        if account.sent.is_none() && now >= self.cell.end() {
            self.drop_tokens(&mut account);
        }
        std::mem::take(&mut account.ended)
    }

    /// Whether a renewal waits for its answer.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.account().sent.is_some()
    }

    fn drop_tokens(&self, account: &mut HoldingAccount) {
        let left = self.cell.start_version(Timestamp::EPOCH, |_| 0);
        *account = HoldingAccount {
            sent: account.sent,
            server_generation: account.server_generation,
            ended: account.ended + left,
            ..HoldingAccount::default()
        };
    }

    fn account(&self) -> MutexGuard<'_, HoldingAccount> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
impl Clone for Holding {
    fn clone(&self) -> Holding {
        Holding { cell: self.cell.clone(), account: Mutex::new(self.account().clone()) }
    }
}
