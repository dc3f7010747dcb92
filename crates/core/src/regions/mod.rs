//! Regions: each has its own store, and owns a share of every limit.
//!
//! A region decides by its [part](crate::Limit::regional_part) of a limit, in its own store. The shares of all regions add up
//! to at most the whole, so all regions together admit no more than the limit, and no decision needs another region. Shares
//! can be moved while the regions run. The types here are pure: instants are arguments, and nothing waits or sends.
//!
//! - [`Share`]: a share, in parts per million.
//! - [`ShareLedger`]: the record of one region in its store. It gives shares away, and receives them.
//! - [`ShareLease`]: a node's knowledge of the record. It ends [`CONFIRM_WITHIN`] after the node has last read it; after that the node
//!   decides by the floor of its region.
//! - [`next_moves`]: shares that follow demand.
//!
//! # Moving a share δ
//! 1. The record of the giving region is written: its share shrinks by δ, and δ is *outgoing*.
//! 2. After [`CONFIRM_WITHIN`], every node of that region has read the new record, or has fallen back to the floor, below
//!    which no share sinks.
//! 3. If the receiving region answers, the record of the giving one is written: δ is *offered* for [`OFFER_LASTS`]. Without an offer that
//!    lasts, the receiving region refuses it.
//! 4. The record of the receiving region is written: its share grows by δ, once for each transfer, which is identified by
//!    its number.
//! 5. δ is no longer outgoing.
//!
//! Between any two steps the driver can fail, and another one continues from what is outgoing. Until step 4, δ belongs to no region: it is
//! *parked*. A lost answer is no harm, since every step can be repeated. Transfers arrive in any order, so one that cannot arrive holds back
//! no other.
//!
//! A parked share can be taken back: the region that was to receive it [withdraws](ShareLedger::withdraw) the transfer, so that it never
//! arrives, and only then the region that gave it [takes it back](ShareLedger::take_back). If the receiver is gone, and the transfer was
//! never offered, it has certainly not arrived, and cannot any more. If it was offered, the operator has to know that it did not arrive
//! while it was: a late driver is refused. The giver then *reserves* the share: it decides by it, and does not give it on. Once the
//! receiver is back, it is told, and if it had the share after all, the giver gives it up.
//!
//! # Why a moved share must settle
//! Let *B* be the burst and *r* the rate of the whole limit. The giving region may have spent all of its burst just before
//! the move, and the receiving region may have all of its own. If δ counted at once, the two bursts together would be *δB*
//! too large. So a share that has arrived counts only after [settling](Limit::settles_at) for *B/r*, the time in which its
//! burst recovers.
//!
//! *Proof.* Let a share shrink from *σ* to *σ − δ* at *f*, and another one grow from *τ* to *τ + δ* at *g ≥ f + B/r*. In an interval from *s*
//! before *f* to *t* after *g*, the first region admits at most *σB + σr(f − s) + (σ − δ)r(t − f)*, and the second one at most
//! *(τ + δ)B + τr(g − s) + (τ + δ)r(t − g)*. The sum is *(σ + τ)(B + r(t − s)) + δB − δr(g − f)*, and *δr(g − f) ≥ δB*. Other intervals see
//! less of the move. ∎
//!
//! The cost is *δB* tokens, once: as if the burst had arrived spent. A share of a fixed window counts from the next window
//! on, or at once if the rights in the running window move with it ([`WindowSlice`]). A share of a sliding window or a log
//! counts after one whole window. Slots do not move, because requests may hold them for any length of time.
//!
//! # Bounds in exceptional cases
//! | event | more than the limit |
//! |---|---|
//! | a store loses its data | what the region had spent, once, as without regions. Nodes decide by the floor |
//! | a replica that lags takes over, and lacks the transfer of a share | that share, for nodes that did not know of it; see [`ShareLedger::is_behind`] |
//! | a retired region was not down | its share, until it is |
//! | a share is taken back without the receiver, as asserted by an operator, but the receiver had received it | that share, until the receiver is told |

mod ledger;
mod node;
mod policy;
mod received;
mod region_share;
mod share;
#[cfg(test)]
mod tests;
mod transfer;
mod window_rights;

pub use ledger::ShareLedger;
pub use node::{AppliedShares, LedgerReading, ShareLease};
pub use policy::{Demand, Move, RegionDemand, next_moves};
pub use received::Received;
pub use region_share::{ArrivedShare, RegionShare};
pub use share::{Share, ShareError};
pub use transfer::{ApplyError, BeginError, OFFER_LASTS, Offer, TakeBackError, Transfer, TransferId, Undelivered};
pub use window_rights::{ArrivedRights, MOST_SLICES, SharedWindow, WindowSlice, window_end};

use crate::limit::{Algorithm, Limit};
use crate::time::{Micros, Timestamp};

/// Time after which a node that could not read its region's record decides by the floor.
pub const CONFIRM_WITHIN: Micros = Micros::from_secs(3);

/// Time that a driver waits between the second and the third step: [`CONFIRM_WITHIN`], plus a margin for clock drift.
pub const CONFIRMED_AFTER: Micros = Micros::from_millis(3_100);

/// Time that an arrived share takes to settle in addition to its burst. Leases of tokens granted before the move end within
/// it, and so does a window by the clock of another region.
pub const SETTLING_MARGIN: Micros = Micros::from_secs(5);

/// Minimum time between two moves that follow demand.
pub const BALANCE_EVERY: Micros = Micros::from_secs(5);

/// Maximum number of outgoing transfers at the same time.
pub const MOST_OUTGOING: usize = 64;

impl Limit {
    /// The instant from which a share that arrived at `arrived` counts for this limit. `None` for slots, which do not move.
    #[must_use]
    pub fn settles_at(&self, arrived: Timestamp) -> Option<Timestamp> {
        let from = arrived + SETTLING_MARGIN;
        match self.algorithm() {
            Algorithm::FixedWindow(limit) => Some(limit.windows().around(from).1),
            Algorithm::SlidingWindow(limit) => {
                // The counters of a part count until the whole part has left the window.
                let part = limit.window().get() / u64::from(limit.parts());
                Some(from + limit.window() + Micros::new(part))
            }
            Algorithm::Concurrency(_) => None,
            Algorithm::TokenBucket(_)
            | Algorithm::Gcra(_)
            | Algorithm::Meter(_)
            | Algorithm::Shaper(_)
            | Algorithm::SlidingLog(_) => self.window().map(|window| from + window),
        }
    }
}
