//! Errors of requests that the shared pace never admits.

use tidegate_rules::KeyFault;

/// The error of a request whose cost is more than a rule of the shared pace can ever allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request costs more than the {max} that the shared limit can ever allow")]
pub struct TooLarge {
    /// The largest cost that the rule can allow.
    pub max: u64,
}

/// The error of a request that a rule of the shared pace refuses because its key or cost cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: rule {rule:?} of the shared pace refuses the request, {}", reason(*fault))]
pub struct RuleRefused {
    /// The id of the rule.
    pub rule: String,
    /// The fault of the request.
    pub fault: KeyFault,
}

const fn reason(fault: KeyFault) -> &'static str {
    match fault {
        KeyFault::Missing => "which lacks a part of the key",
        KeyFault::Repeated => "which has a part of the key more than once",
        KeyFault::Unmeasured => "which costs as much as its body is long and does not say how long that is",
    }
}
