//! The tokens of one key that a node holds.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cell::{Cell, Taken};
use super::without_drift;
use super::{Grant, LeaseGeneration, Renewal};
use crate::time::Timestamp;

/// The tokens of one key that a node holds.
///
/// Requests take tokens from [`Holding::cell`]. [`Holding::ask`] makes the renewal to send to the store; exactly one call
/// of [`Holding::granted`], [`Holding::not_sent`] or [`Holding::lost`] must follow. Instants are those of a clock that
/// never steps and that advances while the machine sleeps. They need no relation to the store's clock.
#[derive(Debug)]
pub struct Holding {
    pub(super) cell: Cell,
    pub(super) account: Mutex<HoldingAccount>,
}

/// The part of a holding that requests do not access.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldingAccount {
    /// The tokens at the start of the cell's version.
    pub(super) base: u64,
    /// Number of tokens spent after the last renewal, in earlier versions of the cell.
    pub(super) used: u64,
    /// The generation of the tokens. `None` if they must not be reported: there are none, or an answer about them was lost.
    pub(super) generation: Option<LeaseGeneration>,
    /// The renewal that waits for its answer.
    pub(super) sent: Option<SentRenewal>,
    /// Whether the server that granted the tokens was replaced by another one.
    pub(super) claims: bool,
    /// The latest known generation of the store's servers.
    pub(super) server_generation: u64,
    /// Number of tokens that ended unspent and were not yet counted.
    pub(super) ended: u64,
}

/// A renewal without an answer yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentRenewal {
    pub(super) at: Timestamp,
    pub(super) used: u64,
    pub(super) returned: u64,
    pub(super) claims: bool,
}

/// A node's demand in a renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Tokens that the node asks for.
    pub wanted: u64,
    /// The minimum number of tokens: fewer are not granted.
    pub least: u64,
    /// The node's demand for the key, in tokens per second.
    pub demand: u64,
    /// The epoch in which the store last counted that demand.
    pub demand_counted: Option<u64>,
    /// Whether the node returns all tokens that it holds.
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

    /// The cell from which requests take tokens.
    #[must_use]
    pub const fn cell(&self) -> &Cell {
        &self.cell
    }

    /// Takes `cost` tokens (see [`Cell::take`]).
    #[inline]
    pub fn take(&self, cost: u64, clock: impl Fn() -> Timestamp) -> Option<Taken> {
        self.cell.take(cost, clock)
    }

    /// Makes the renewal to send. `None` while another one has no answer.
    pub fn ask(&self, ask: &Ask, now: Timestamp) -> Option<Renewal> {
        let mut account = self.account();
        if account.sent.is_some() {
            return None;
        }
        let end = self.cell.end();
        if now >= end {
            // Both here and in the store, the tokens count as spent from their end.
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
        account.sent = Some(SentRenewal { at: now, used, returned, claims: account.claims });
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

    /// Records the store's answer to the renewal.
    pub fn granted(&self, grant: &Grant) {
        let mut account = self.account();
        let Some(sent) = account.sent.take() else { return };
        let is_kept = account.generation.is_some_and(|generation| {
            let is_recent = grant.generation.epoch.saturating_sub(generation.epoch) < 2;
            generation.part == grant.generation.part && (is_recent || sent.claims)
        });
        // Counts from the time when the renewal was sent: the store counts from a later instant.
        let end = sent.at + without_drift(grant.ends_after);
        let kept = |tokens: u64| if is_kept { tokens } else { 0 };
        let left = self.cell.start_version(end, |tokens| kept(tokens) + grant.tokens);
        // Tokens that the store did not keep have ended, and are not reported.
        if !is_kept {
            account.ended += left + sent.returned;
        }
        account.used = kept(account.used + account.base.saturating_sub(left));
        account.base = kept(left) + grant.tokens;
        account.generation = Some(grant.generation);
        account.claims &= !sent.claims;
    }

    /// Records that the renewal certainly did not reach the store.
    pub fn not_sent(&self) {
        let mut account = self.account();
        let Some(sent) = account.sent.take() else { return };
        let left = self.cell.start_version(self.cell.end(), |tokens| tokens + sent.returned);
        account.used += sent.used + account.base.saturating_sub(left);
        account.base = left + sent.returned;
    }

    /// Records that the renewal may have reached the store, but no answer came. The tokens kept in it can be spent until
    /// their end, whether or not the store knows of the renewal. They are not reported, and are dropped when the next
    /// answer comes.
    pub fn lost(&self) {
        let mut account = self.account();
        if let Some(sent) = account.sent.take() {
            account.ended += sent.returned;
            (account.generation, account.used, account.claims) = (None, 0, false);
        }
    }

    /// Sets the [generation](crate::Store::server_generation) of the store's servers, for which the next renewal is made.
    /// If the generation has changed, that renewal claims the tokens that the previous server granted.
    pub fn server_replaced(&self, generation: u64) {
        let mut account = self.account();
        if account.server_generation != generation {
            account.claims = account.generation.is_some();
            account.server_generation = generation;
        }
    }

    /// Drops tokens that have ended. Returns the number of tokens that ended unspent since the last call.
    pub fn take_ended(&self, now: Timestamp) -> u64 {
        let mut account = self.account();
        if account.sent.is_none() && now >= self.cell.end() {
            self.drop_tokens(&mut account);
        }
        std::mem::take(&mut account.ended)
    }

    /// Returns `true` if a renewal has no answer yet.
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
