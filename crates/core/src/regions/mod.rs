//! Regions: each has a store of its own, and owns a share of every limit.
//!
//! A region decides by its [part](crate::Limit::regional_part) of a limit, in its own store. The shares of all regions add up to no more than the
//! whole, so all regions together admit no more than the limit, and no decision leaves its region. Shares can be moved while the regions
//! run. The types here are pure: they get instants passed in, and neither wait nor send.
//!
//! - [`Share`]: a share, in parts per million.
//! - [`ShareLedger`]: the record of one region in its store. It gives shares away, and receives them.
//! - [`ShareLease`]: a node's knowledge of the record. It ends [`CONFIRM_WITHIN`] after the node has last read it; after that the node
//!   decides by the floor of its region.
//! - [`next_move`]: the share that follows demand.
//!
//! # Moving a share δ
//! 1. The record of the region that gives it is written: its share shrinks by δ, and δ is *outgoing*.
//! 2. After [`CONFIRM_WITHIN`] every node there has read the new record, or has fallen back to the floor, below which no share sinks.
//! 3. The record of the region that receives it is written: its share grows by δ, once for each transfer, by its number.
//! 4. δ is no longer outgoing.
//!
//! Between any two steps the driver can fail, and another one continues from what is outgoing. Until step 3, δ belongs to nobody: it is
//! *parked*. A lost answer is no harm, since every step can be repeated.
//!
//! # Why a moved share must settle
//! Let *B* be the burst and *r* the rate of the whole limit. The region that gives δ may have spent all of its burst just before, and the
//! one that receives it may have all of its own: if δ counted at once, both would burst *δB* too much. So a share that has arrived
//! counts only after [settling](Limit::settles_at) for *B/r*, the time in which its burst comes back.
//!
//! *Proof.* Let a share shrink from *σ* to *σ − δ* at *f*, and another one grow from *τ* to *τ + δ* at *g ≥ f + B/r*. In an interval from *s*
//! before *f* to *t* after *g*, the first region admits at most *σB + σr(f − s) + (σ − δ)r(t − f)*, and the second one at most
//! *(τ + δ)B + τr(g − s) + (τ + δ)r(t − g)*. The sum is *(σ + τ)(B + r(t − s)) + δB − δr(g − f)*, and *δr(g − f) ≥ δB*. Other intervals see
//! less of the move. ∎
//!
//! The price is *δB* tokens, once: as if the burst had arrived spent. A share of a fixed window counts from the next window on, or at once if the
//! rights of the running window move with it ([`WindowSlice`]). That of a sliding window or a log counts after the window has passed once. Slots do not move, since requests hold them for as long as they like.
//!
//! # Bounds where the promise cannot be kept
//! | event | more than the limit |
//! |---|---|
//! | a store loses its data | what the region had spent, once, as without regions. Nodes decide by the floor |
//! | a store forgets that a share was given away, because a replica that lags takes over | that share, for nodes that did not know of it; [`ShareLedger::is_behind`] tells |
//! | a retired region was not down | its share, until it is |

mod ledger;
mod node;
mod policy;
mod region_share;
mod share;
#[cfg(test)]
mod tests;
mod transfer;
mod window_rights;

pub use ledger::{MOST_OUTGOING, Received, ShareLedger};
pub use node::{AppliedShares, LedgerReading, ShareLease};
pub use policy::{Demand, Move, RegionDemand, next_move};
pub use region_share::{ArrivedShare, RegionShare};
pub use share::{Share, ShareError};
pub use transfer::{ApplyError, BeginError, Transfer, TransferId};
pub use window_rights::{ArrivedRights, MOST_SLICES, SharedWindow, WindowSlice, window_end};

use crate::limit::{Algorithm, Limit};
use crate::time::{Micros, Timestamp};

/// The time after which a node that could not read its region's record decides by the floor.
pub const CONFIRM_WITHIN: Micros = Micros::from_secs(3);

/// The time that a driver waits between the second and the third step: [`CONFIRM_WITHIN`], and some more for clocks that drift.
pub const CONFIRMED_AFTER: Micros = Micros::from_millis(3_100);

/// The time that an arrived share takes to settle in addition to its burst. Leases of tokens that were granted before end within
/// it, and so does a window by the clock of another region.
pub const SETTLING_MARGIN: Micros = Micros::from_secs(5);

/// The least time between two moves after demand.
pub const BALANCE_EVERY: Micros = Micros::from_secs(5);

impl Limit {
    /// The instant from which a share of this limit counts that arrived at `arrived`. `None` if it never does: slots do not move.
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
