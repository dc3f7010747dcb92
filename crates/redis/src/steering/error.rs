//! What can go wrong between a node and what is published.

use tidegate_rules::Diagnostics;

use super::published::Signature;
use crate::link::{Fault, Unreachable};

/// Redis could not be asked, or its answer is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SteeringError {
    /// There is no connection, or it broke, or no answer came in time.
    #[error("Redis cannot be reached: {reason}")]
    Unreachable {
        /// What stood in the way.
        reason: String,
    },
    /// Redis answered with an error.
    #[error("Redis answered: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// What lies in Redis is not what was published: somebody else wrote it, or a later version of Tidegate did.
    #[error("what lies under `{key}` cannot be read: {reason}")]
    Unreadable {
        /// The key in Redis.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl SteeringError {
    pub(super) fn unreachable(reason: impl ToString) -> SteeringError {
        SteeringError::Unreachable { reason: reason.to_string() }
    }

    pub(super) fn unreadable(key: String, reason: impl ToString) -> SteeringError {
        SteeringError::Unreadable { key, reason: reason.to_string() }
    }
}

impl From<Unreachable> for SteeringError {
    fn from(error: Unreachable) -> SteeringError {
        match error {
            Unreachable::Refused(fault) => fault.into(),
            other => SteeringError::unreachable(other),
        }
    }
}

impl From<Fault> for SteeringError {
    fn from(fault: Fault) -> SteeringError {
        SteeringError::Refused { reason: fault.to_string() }
    }
}

/// Nothing was published, unless the error says that it may have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Redis could not be asked, or its answer is of no use.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// Somebody else has published something since.
    #[error("version {expected} was expected, but {}", there_is(*.found, .by.as_ref()))]
    Conflict {
        /// The version that was expected.
        expected: u64,
        /// The version that is published; 0 if nothing is.
        found: u64,
        /// Who published it.
        by: Option<Signature>,
    },
    /// The rules have errors.
    #[error("the rules cannot be used:\n{0}")]
    Broken(Diagnostics),
    /// There is more of it than may be published.
    #[error("{what} would take {size} bytes, and at most {most} are published")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// How many bytes it would take.
        size: usize,
        /// How many bytes it may take.
        most: usize,
    },
    /// As many rules are switched one by one as may be.
    #[error("{most} rules are switched already; take some of that back, or change the rules")]
    TooManySwitches {
        /// How many there may be.
        most: usize,
    },
    /// A name that cannot be written down.
    #[error("{what} `{name}` cannot be used: write 1 to {most} characters, none of them invisible")]
    Name {
        /// Whose.
        what: &'static str,
        /// The name, cut short.
        name: String,
        /// How many characters it may have.
        most: usize,
    },
    /// A version that is not among the last changes.
    #[error("version {version} is not among the last changes: `tidegate rules history` lists them")]
    NoSuchVersion {
        /// The version.
        version: u64,
    },
    /// A version that brought no rules, or whose rules were too large to be kept.
    #[error(
        "version {version} has no rules to go back to: it is a switch of modes, or its rules were too large to be kept"
    )]
    NoRules {
        /// The version.
        version: u64,
    },
    /// A version whose rules are the published ones.
    #[error("the rules of version {version} are the ones that are published")]
    AlreadyPublished {
        /// The version.
        version: u64,
    },
    /// Others publish without a pause.
    #[error("others kept publishing meanwhile; try again")]
    Crowded,
    /// The connection broke when everything was sent: it may have been published or not.
    #[error("it may have been published or not, look before you try again: {reason}")]
    Unknown {
        /// What became of the connection.
        reason: String,
    },
}

fn there_is(version: u64, by: Option<&Signature>) -> String {
    match (version, by) {
        (0, _) => "nothing is published".to_owned(),
        (version, Some(by)) => format!("version {version} is published, by {}", by.who),
        (version, None) => format!("version {version} is published"),
    }
}
