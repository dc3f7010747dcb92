//! Errors of moving shares between regions.

use tidegate_core::regions::BeginError;

use super::error::FleetError;

/// A change of shares that was not made.
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
    /// The Redis of a region did not answer, or its data cannot be read.
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
    /// The Redis of a region has the record of another one.
    #[error("the Redis of region `{region}` has the record of `{found}`: two regions cannot share one")]
    Foreign {
        /// The region.
        region: String,
        /// The region of the record.
        found: String,
    },
    /// The record of a region does not know of a transfer that another region has received.
    #[error("the record of `{region}` is older than it was: `{other}` has received a share that it does not know of")]
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
    /// Shares that cannot be set.
    #[error("{0}")]
    Shares(String),
}

fn known(all: &[String]) -> String {
    if all.is_empty() { "none is configured".to_owned() } else { format!("configured are {}", all.join(", ")) }
}
