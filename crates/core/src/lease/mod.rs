//! Leases: tokens of a shared limit that a node takes in advance, so that it can decide requests without the store.
//!
//! A node that decides many requests under one key asks the store for a number of tokens at once, and admits requests from
//! these without asking again. The store charges a lease in full when it grants it, so all nodes together never admit more
//! than the limit. The types here are pure: instants are arguments, and nothing waits or sends.
//!
//! - [`Ledger`]: the store's record of one key. It grants leases, and every other operation on the key respects them.
//! - [`Holding`]: the node's side. Requests take tokens from its lock-free [`Cell`], and it makes the renewals to send.
//! - [`Pace`]: when a node asks, and for how many tokens.
//! - [`Block`]: the node's side of a concurrency limit, whose slots are leased in blocks.
//!
//! # Why the fleet admits no more than one bucket
//! Let *D* be the debt of a key and *O* its outstanding tokens: tokens that were granted and have not been reported as
//! spent, returned or ended. A grant of *k* needs *D + k ≤ B*, and adds *k* to both. **D never falls below O**: this is the
//! *floor*.
//!
//! At an instant *s* the nodes can still spend at most *O(s)*. From *s* to *t* the store admits and grants at most
//! *B − D(s) + r·(t − s)* more, and *D(s) ≥ O(s)*. So the fleet admits at most *O(s) + B − O(s) + r·(t − s) = B + r·(t − s)* in any
//! interval. Without the floor, tokens that wait in leases would drain from the debt, be granted again, and be spent twice.
//!
//! In a fixed or sliding window nothing drains. A lease ends with the window, or the part of it, in which it was charged, so every
//! token is spent in the window that counts it.
//!
//! # Ends
//! Time is divided into epochs of the store's clock. A lease that is granted or renewed in one epoch ends with the next
//! one, unless it is renewed again. So the store needs only two numbers for all outstanding tokens, however many nodes
//! there are. Tokens that a node has not reported by the end count as spent. A node measures the end from before its
//! renewal was sent, less a margin for the drift of its clock.
//!
//! # Requirements on the transport
//! A renewal that may have reached the store is never sent again. If it was delivered twice, it would be counted twice,
//! with an error of up to its used and returned tokens.
//!
//! # Bounds in exceptional cases
//! | event | more than the limit, once |
//! |---|---|
//! | the limit is lowered below *O* | *O − B′*, until the leases end |
//! | the store loses its data | *B*, as without leases |
//! | the store's clock steps ahead by *d* | *r·d*, at most *B*, as without leases |
//! | the store's clock steps back | what the renewals on their way report as spent and returned |
//! | a node's machine is paused without its clock, as a virtual machine may be | what the node holds |
//! | the limit becomes one that cannot be leased | *O* |

mod block;
mod cell;
#[cfg(all(test, tidegate_loom))]
mod cell_loom;
mod holding;
mod pace;
mod sync;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;

pub use block::Block;
pub use cell::{Cell, Taken};
pub use holding::{Ask, Holding};
pub use pace::{Next, Pace};

pub use crate::limit::leased::{EPOCH, Grant, Grants, LeaseGeneration, LeaseRequest, Leasing, Ledger, Renewal, Terms};
use crate::time::Micros;

/// Allowed drift of a node's clock against the store's: one part in this many.
const DRIFT: u64 = 1 << 10;

/// The part of `span` that has certainly passed on a drifting clock when `span` has passed on the store's clock.
const fn without_drift(span: Micros) -> Micros {
    Micros::new(span.get() - span.get().div_ceil(DRIFT))
}
