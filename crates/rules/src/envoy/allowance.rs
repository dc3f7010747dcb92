//! The allowance of a descriptor.

use tidegate_core::limit::Limit;

/// The allowance of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// The file names them, and limits them by nothing.
    Whitelisted,
    /// The file says that they have no limit.
    Unlimited,
    /// So much.
    Limited(Limit),
}
