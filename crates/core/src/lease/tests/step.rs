//! The steps of a [`World`](super::world::World), and the properties that they may break.

use super::super::Ask;
use crate::limit::Limit;

/// The cost of a request that takes all there is.
pub(super) const ALL: u64 = u64::MAX;

/// Everything that can happen. Nodes are counted modulo their number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Time passes, in microseconds.
    Wait(u64),
    /// The store's clock steps back, by microseconds.
    ClockBack(u64),
    /// The store decides a request that is not leased.
    Decide(u64),
    /// The store refunds up to so much of the requests that it decided.
    Refund(u64),
    /// The store forgets everything that was spent.
    Reset,
    /// The limit changes.
    Change(Limit),
    /// A node admits a request.
    Admit(usize, u64),
    /// A node takes tokens for a request that another limit will deny.
    TakeInVain(usize, u64),
    /// That limit has denied it.
    PutBack(usize),
    /// A node makes a renewal.
    Ask(usize, Ask),
    /// The renewal reaches the store, which answers.
    Deliver(usize),
    /// The answer reaches the node.
    Answer(usize),
    /// The node waits no longer for the answer. A renewal that has not been delivered yet stays in the network.
    GiveUp(usize),
    /// The node learns that its renewal was not sent.
    NotSent(usize),
    /// A renewal that the node has given up reaches the store.
    DeliverLate(usize),
    /// The network loses it.
    LoseLate(usize),
    /// The node crashes, and a new one takes its place.
    Crash(usize),
    /// A replica of the store has everything up to now.
    Replicate,
    /// The replica takes the place of the store. It does not know of anything since.
    ReplaceServer,
}

/// The way in which a property was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// Requests were admitted that one limit by itself would have denied.
    OverAdmitted,
    /// Nodes hold tokens that the store has no record of.
    UnrecordedTokens,
    /// The store has charged less than is outstanding.
    BelowFloor,
    /// Tokens that a node was granted are neither spent, nor returned, nor held, nor ended.
    UnaccountedTokens,
}
