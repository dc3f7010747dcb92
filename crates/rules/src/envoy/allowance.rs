//! The allowance of a descriptor.

use tidegate_core::limit::Limit;

/// The number of requests that a descriptor allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// The file lists the descriptor without a limit.
    Whitelisted,
    /// The file declares the descriptor unlimited.
    Unlimited,
    /// The file limits the descriptor.
    Limited(Limit),
}
