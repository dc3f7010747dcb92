//! Errors of publishing and following.

use tidegate_rules::Diagnostics;

use super::signature::Signature;
use crate::link::{Cause, ErrorCode, LinkError, ServerError, Unreachable};

/// Redis did not answer, or its data could not be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// There is no connection, it broke, or the answer timed out.
    #[error("Redis cannot be reached: {reason}")]
    Unreachable {
        /// The cause.
        reason: String,
    },
    /// Redis answered with an error.
    #[error("Redis answered: {reason}")]
    Refused {
        /// Its kind.
        code: ErrorCode,
        /// The text of the error.
        reason: String,
    },
    /// The data in Redis was not written by Tidegate, or by a later version of it.
    #[error("the value of `{key}` cannot be read: {reason}")]
    Unreadable {
        /// The key in Redis.
        key: String,
        /// The problem.
        reason: String,
    },
    /// The data, or its place in a cluster, kept changing during the call.
    #[error("{reason}; try again")]
    Busy {
        /// Description of the concurrent change.
        reason: String,
    },
    /// The data would become too large.
    #[error("the value of `{key}` would have more than {most} bytes")]
    TooLarge {
        /// The key in Redis.
        key: String,
        /// Maximum size in bytes.
        most: usize,
    },
}

impl FleetError {
    pub(super) fn unreachable(reason: impl ToString) -> FleetError {
        FleetError::Unreachable { reason: reason.to_string() }
    }

    /// Whether the same call can succeed later, without a change by an operator.
    pub(super) const fn is_transient(&self) -> bool {
        match self {
            FleetError::Unreachable { .. } | FleetError::Busy { .. } => true,
            FleetError::Refused { code, .. } => matches!(
                code,
                ErrorCode::ReadOnly
                    | ErrorCode::Loading
                    | ErrorCode::MasterDown
                    | ErrorCode::ClusterDown
                    | ErrorCode::Misconf
                    | ErrorCode::OutOfMemory
                    | ErrorCode::NoReplicas
                    | ErrorCode::Busy
                    | ErrorCode::Moved
                    | ErrorCode::Ask
                    | ErrorCode::TryAgain
            ),
            FleetError::Unreadable { .. } | FleetError::TooLarge { .. } => false,
        }
    }

    pub(super) fn busy(reason: &str) -> FleetError {
        FleetError::Busy { reason: reason.to_owned() }
    }

    pub(super) fn unreadable(key: String, reason: impl ToString) -> FleetError {
        FleetError::Unreadable { key, reason: reason.to_string() }
    }
}

impl From<Unreachable> for FleetError {
    fn from(error: Unreachable) -> FleetError {
        match error {
            Unreachable::Refused(fault) => fault.into(),
            other => FleetError::unreachable(other),
        }
    }
}

impl From<LinkError> for FleetError {
    fn from(error: LinkError) -> FleetError {
        match error.cause() {
            Cause::Refused(fault) => fault.clone().into(),
            _ => FleetError::unreachable(&error),
        }
    }
}

impl From<ServerError> for FleetError {
    fn from(fault: ServerError) -> FleetError {
        FleetError::Refused { code: fault.code, reason: fault.to_string() }
    }
}

/// Why a change was not published, or may not have been ([`PublishError::Unknown`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Redis did not answer, or its data could not be read or changed.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The published version is not the expected one.
    #[error("version {expected} was expected, but {}", there_is(*.found, .by.as_ref()))]
    Conflict {
        /// The version that was expected.
        expected: u64,
        /// The version that is published; 0 if nothing is.
        found: u64,
        /// The author and time of the published version.
        by: Option<Signature>,
    },
    /// The rules have errors.
    #[error("the rules cannot be used:\n{0}")]
    Broken(Diagnostics),
    /// The data is too large to be published.
    #[error("{what} would have {size} bytes, and the maximum is {most}")]
    TooLarge {
        /// The kind of data.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// Maximum size in bytes.
        most: usize,
    },
    /// Too many rules have their own switch.
    #[error("{most} rules are switched already; revert some of them, or change the rules")]
    TooManySwitches {
        /// Maximum number of such rules.
        most: usize,
    },
    /// An invalid name.
    #[error("{what} `{name}` cannot be used: write 1 to {most} characters, none of them invisible")]
    Name {
        /// The kind of name.
        what: &'static str,
        /// The name, truncated.
        name: String,
        /// Maximum number of characters.
        most: usize,
    },
    /// The version is not among the last changes.
    #[error("version {version} is not among the last changes: `tidegate rules history` lists them")]
    NoSuchVersion {
        /// The version.
        version: u64,
    },
    /// The version contains no rules, or its rules were too large to be kept.
    #[error(
        "version {version} has no rules to go back to: it is a switch of modes, or its rules were too large to be kept"
    )]
    NoRules {
        /// The version.
        version: u64,
    },
    /// The rules of this version are already published.
    #[error("the rules of version {version} are the ones that are published")]
    AlreadyPublished {
        /// The version.
        version: u64,
    },
    /// Concurrent changes made every attempt fail.
    #[error("other changes were published at the same time; try again")]
    Crowded,
    /// The connection broke after the change was sent, so it may or may not have been published.
    #[error("it is unknown whether it was published: check before you try again: {reason}")]
    Unknown {
        /// The error of the connection.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_answers_is_not_called_unreachable() {
        let busy = FleetError::busy("slots of the cluster are moving");
        assert_eq!(
            (busy.to_string().as_str(), busy.is_transient()),
            ("slots of the cluster are moving; try again", true)
        );
        let large = FleetError::TooLarge { key: "tg:regions".to_owned(), most: 5 };
        let told = "the value of `tg:regions` would have more than 5 bytes";
        assert_eq!((large.to_string().as_str(), large.is_transient()), (told, false));
    }
}
