//! Errors of calls and connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::server_error::{ErrorCode, ServerError};

/// Why a call was not answered. A call that certainly did not run has charged nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The call did not run, and never will.
    #[error("the call did not run: {0}")]
    NotRun(Cause),
    /// The call was sent, and may have run or may still run.
    #[error("the call may have run: {0}")]
    Unknown(Cause),
}

impl LinkError {
    /// The cause.
    #[must_use]
    pub const fn cause(&self) -> &Cause {
        match self {
            LinkError::NotRun(cause) | LinkError::Unknown(cause) => cause,
        }
    }

    /// Returns `true` if the call may have run.
    #[must_use]
    pub const fn may_have_run(&self) -> bool {
        matches!(self, LinkError::Unknown(_))
    }
}

/// The cause of a failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The deadline passed.
    #[error("its deadline passed")]
    Deadline,
    /// The queue is full.
    #[error("the queue is full")]
    QueueFull,
    /// The circuit breaker is open, for this cause.
    #[error("the breaker is open: {0}")]
    BreakerOpen(Arc<Cause>),
    /// There is no connection.
    #[error("there is no connection: {0}")]
    Unreachable(Arc<Unreachable>),
    /// The connection ended while the call was in flight.
    #[error("the connection was lost")]
    ConnectionLost,
    /// The server answered with an error.
    #[error("the server answered: {0}")]
    Refused(ServerError),
    /// The server's answer is not valid for this call.
    #[error("unexpected reply from the server")]
    Malformed,
    /// The server's answer is larger than any valid answer to this call.
    #[error("the reply exceeds the maximum size")]
    TooLarge,
    /// The keys of the call are in several slots of the cluster.
    #[error("its keys are in several slots of the cluster")]
    CrossSlot,
    /// No known node of the cluster serves the slot.
    #[error("no known node of the cluster serves its slot")]
    Unserved,
    /// The server for which the call was meant has been replaced.
    #[error("the server was replaced by another one")]
    ServerReplaced,
    /// The runtime on which the link was opened has ended.
    #[error("the client is closed")]
    Closed,
}

impl Cause {
    /// The names of causes that are not [codes](ErrorCode::name) of servers.
    pub(super) const NAMES: [&'static str; 12] = [
        ErrorCode::Other.name(),
        "deadline",
        "queue_full",
        "breaker_open",
        "unreachable",
        "connection_lost",
        "malformed",
        "too_large",
        "cross_slot",
        "unserved",
        "server_replaced",
        "closed",
    ];

    /// The label in metrics: the server's own code if it answered with an error.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Cause::Refused(error) => error.code.name(),
            Cause::Deadline => "deadline",
            Cause::QueueFull => "queue_full",
            Cause::BreakerOpen(_) => "breaker_open",
            Cause::Unreachable(_) => "unreachable",
            Cause::ConnectionLost => "connection_lost",
            Cause::Malformed => "malformed",
            Cause::TooLarge => "too_large",
            Cause::CrossSlot => "cross_slot",
            Cause::Unserved => "unserved",
            Cause::ServerReplaced => "server_replaced",
            Cause::Closed => "closed",
        }
    }
}

/// Why a connection failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// An error of the operating system.
    #[error("{text}")]
    Io {
        /// Its kind.
        kind: io::ErrorKind,
        /// Its text.
        text: String,
    },
    /// Connecting and logging in, or an answer, took too long.
    #[error("no reply within {0:?}")]
    Silent(Duration),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    HungUp,
    /// The server refused the login or the first commands.
    #[error("the server answered: {0}")]
    Refused(ServerError),
    /// The peer does not speak the Redis protocol.
    #[error("the peer is not a Redis server")]
    Malformed,
    /// The peer sent more than any answer to the commands.
    #[error("the server's reply is larger than expected")]
    TooLarge,
    /// The server is a replica, not the primary.
    #[error("the server is not the primary")]
    NotPrimary,
    /// The server is not a node of a cluster.
    #[error("the server is not a node of a Redis Cluster, and several addresses are for a cluster only")]
    NotClustered,
    /// None of the sentinels knows a primary with that name, or none answers.
    #[error("no sentinel names the primary")]
    NoPrimary,
}

impl From<io::Error> for Unreachable {
    fn from(error: io::Error) -> Unreachable {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Unreachable::HungUp,
            kind => Unreachable::Io { kind, text: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_name_in_the_list() {
        let refused = Cause::Refused(ServerError::of(b"ERR no"));
        for cause in [
            refused,
            Cause::Deadline,
            Cause::QueueFull,
            Cause::BreakerOpen(Arc::new(Cause::Deadline)),
            Cause::Unreachable(Arc::new(Unreachable::HungUp)),
            Cause::ConnectionLost,
            Cause::Malformed,
            Cause::TooLarge,
            Cause::CrossSlot,
            Cause::Unserved,
            Cause::Closed,
        ] {
            assert!(Cause::NAMES.contains(&cause.name()), "{cause}");
        }
    }
}
