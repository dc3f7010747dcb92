//! Errors of moving shares between regions.

use tidegate_core::regions::{ApplyError, BeginError, Share};

use super::error::FleetError;

/// Why a change of shares was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionsError {
    /// A region is not configured.
    #[error("there is no region `{region}`: {}", known(.all))]
    Unknown {
        /// The region.
        region: String,
        /// The regions that are configured.
        all: Vec<String>,
    },
    /// The Redis of a region did not answer, or its data could not be read or changed.
    #[error("region `{region}`: {error}")]
    Region {
        /// The region.
        region: String,
        /// The error.
        error: FleetError,
    },
    /// A region has no record.
    #[error("region `{region}` has no record: `tidegate regions init` creates it")]
    NoRecord {
        /// The region.
        region: String,
    },
    /// The Redis of a region contains the record of another region.
    #[error("the Redis of region `{region}` has the record of `{found}`: two regions cannot share one")]
    Foreign {
        /// The region.
        region: String,
        /// The region of the record.
        found: String,
    },
    /// The record of a region does not contain a transfer that another region has received.
    #[error(
        "the record of `{region}` was restored from an older state: `{other}` has received a share that this record does not contain"
    )]
    Behind {
        /// The region.
        region: String,
        /// The other region.
        other: String,
    },
    /// A transfer cannot begin.
    #[error("region `{region}`: {error}")]
    Begin {
        /// The region.
        region: String,
        /// The reason.
        error: BeginError,
    },
    /// A transfer cannot arrive.
    #[error("region `{region}`: {error}")]
    Apply {
        /// The region that should receive it.
        region: String,
        /// The reason.
        error: ApplyError,
    },
    /// A transfer was taken back, and had arrived.
    #[error(
        "region `{region}` had received {share} from `{from}` that was taken back there: `{from}` has given it up again"
    )]
    TakenBackAfterArrival {
        /// The region that has received it.
        region: String,
        /// The region that has taken it back.
        from: String,
        /// The share.
        share: Share,
    },
    /// Shares that cannot be set.
    #[error("{0}")]
    Shares(String),
}

impl RegionsError {
    /// Whether a region could not be read.
    pub(super) fn is_about(&self, name: &str) -> bool {
        match self {
            RegionsError::Region { region, .. } | RegionsError::Foreign { region, .. } => region == name,
            _ => false,
        }
    }

    /// Whether the same call can succeed later, without a change by an operator.
    pub(super) const fn is_transient(&self) -> bool {
        matches!(self, RegionsError::Region { error, .. } if error.is_transient())
    }
}

fn known(all: &[String]) -> String {
    if all.is_empty() { "none is configured".to_owned() } else { format!("configured are {}", all.join(", ")) }
}
