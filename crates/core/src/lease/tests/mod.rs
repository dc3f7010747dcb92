//! Tests of leases: a [`World`](world::World) of a store, nodes and a network with losses and delays, under random traces
//! and under an exhaustive search. If any safety rule is disabled, both must find a violation.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod blocks;
mod fleets;
mod ledger;
mod search;
mod step;
mod terms;
mod traces;
mod world;

/// A disabled safety rule, for tests that its violation is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Debt drains below the outstanding tokens.
    NoFloor,
    /// The end of a lease is counted from the answer.
    EndFromAnswer,
    /// A renewal whose answer was lost is sent again with its report.
    LostIsAskedAgain,
    /// Tokens that have ended are returned as if they had not ended.
    ReturnAfterEnd,
    /// There is no margin for clock drift.
    NoDriftMargin,
    /// A token is put back although a renewal has reported it as spent.
    PutBackAfterRenewal,
    /// A refund lowers the debt below the outstanding tokens.
    RefundBelowFloor,
    /// Tokens of a window can be spent in the next one.
    EndBeyondWindow,
}

fn cases(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        max_shrink_iters: 5_000,
        ..proptest::test_runner::Config::with_cases(tidegate_test_support::times(cases))
    }
}
