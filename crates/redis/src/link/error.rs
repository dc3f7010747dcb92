//! Why a call failed, and whether it may have run all the same.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;

/// A call that was not answered.
///
/// Which of the two it is matters more than why: a call that certainly did not run has charged nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// It did not run, and never will.
    #[error("the call did not run: {0}")]
    NotRun(Cause),
    /// It was sent, and may have run or may still do so.
    #[error("the call may have run: {0}")]
    Unknown(Cause),
}

impl LinkError {
    /// Why it was not answered.
    #[must_use]
    pub const fn cause(&self) -> &Cause {
        match self {
            LinkError::NotRun(cause) | LinkError::Unknown(cause) => cause,
        }
    }

    /// Whether it may have run.
    #[must_use]
    pub const fn may_have_run(&self) -> bool {
        matches!(self, LinkError::Unknown(_))
    }
}

/// Why a call was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// There was no answer in time.
    #[error("its deadline passed")]
    Deadline,
    /// As many calls wait as may wait.
    #[error("too many calls wait already")]
    QueueFull,
    /// Others failed before, for the reason given, so this call was not sent.
    #[error("the breaker is open: {0}")]
    BreakerOpen(Arc<Cause>),
    /// There is no connection.
    #[error("there is no connection: {0}")]
    Unreachable(Arc<Unreachable>),
    /// The connection ended while the call was on its way.
    #[error("the connection was lost")]
    ConnectionLost,
    /// The server answered with an error.
    #[error("the server answered: {0}")]
    Refused(Fault),
    /// The server's answer is not one to this call.
    #[error("the server's answer makes no sense")]
    Malformed,
    /// The server's answer is larger than any answer to what was asked.
    #[error("the server's answer is larger than it can be")]
    TooLarge,
    /// The keys of one call lie in several slots of the cluster.
    #[error("its keys lie in several of the cluster's slots")]
    CrossSlot,
    /// No node of the cluster serves the slot, or none is known yet.
    #[error("no known node of the cluster serves its slot")]
    Unserved,
    /// The link has ended, with the runtime that it was opened on.
    #[error("the link has ended")]
    Closed,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// The system says so.
    #[error("{text}")]
    Io {
        /// What kind of error it is.
        kind: io::ErrorKind,
        /// What the system said.
        text: String,
    },
    /// It took too long to connect and to be greeted.
    #[error("nothing was heard within {0:?}")]
    Silent(Duration),
    /// The server hung up.
    #[error("the server hung up")]
    HungUp,
    /// The server did not want us.
    #[error("the server answered: {0}")]
    Refused(Fault),
    /// What answered is not a Redis server.
    #[error("what answered is not a Redis server")]
    Malformed,
    /// What answered sent more than any answer to what was asked.
    #[error("what answered sent more than was asked for")]
    TooLarge,
    /// A replica answered where the primary should be.
    #[error("the server is not the primary")]
    NotPrimary,
    /// None of the sentinels knows a primary of that name, or none answers.
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
