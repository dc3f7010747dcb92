//! The source of a decision.

/// The source of a limit's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecidedBy {
    /// The store. The numbers are those shared by all nodes.
    Store,
    /// The limit alone, because the store could not: the cost is above its capacity.
    Limit,
    /// The rule's `on_store_failure: allow`. Nothing is counted, so the whole quota appears to remain.
    Allow,
    /// The rule's `on_store_failure: allow_for`, whose time has passed: denied.
    AllowEnded,
    /// The rule's `on_store_failure: deny`. Nothing remains, and the wait is an estimate.
    Deny,
    /// The rule's `on_store_failure: local`. The numbers are those of this process's share of the limit.
    Local,
}

impl DecidedBy {
    /// The name, which is the same in every protocol.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DecidedBy::Store => "store",
            DecidedBy::Limit => "limit",
            DecidedBy::Allow => "allow",
            DecidedBy::AllowEnded => "allow_ended",
            DecidedBy::Deny => "deny",
            DecidedBy::Local => "local",
        }
    }
}
