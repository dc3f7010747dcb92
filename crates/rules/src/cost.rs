//! The cost of a request under a limit, and where it is read.

use std::fmt;

use super::fact_name::FactName;
use super::field::FieldPath;
use super::route::PathPattern;
use tidegate_core::disclosure::QuotaUnit;

/// The cost of a request.
#[derive(Clone, Debug)]
pub(super) enum Cost {
    Fixed(u64),
    /// A number in the request times a price; `otherwise` if the number is missing or invalid.
    Said {
        /// The sources. If several are present in a request, the largest cost counts.
        by: Vec<CostSource>,
        times: u64,
        otherwise: u64,
        /// Whether bodies without a stated length are refused: the cost is the length, and there is no `otherwise`.
        needs_length: bool,
    },
    /// The cost stated by the protocol; 1 if it states none.
    Hits,
    /// The cost of the first path that matches; `otherwise` if none does.
    ByPath {
        paths: Vec<(PathPattern, u64)>,
        otherwise: u64,
    },
}

impl Cost {
    /// Describes the source of the cost in the request.
    pub(super) fn said_by(&self) -> Option<String> {
        match self {
            Cost::Said { by, times, .. } => {
                let by = by.iter().map(CostSource::to_string).collect::<Vec<_>>().join(" or ");
                Some(if *times == 1 { by } else { format!("{times} × {by}") })
            }
            Cost::Hits => Some("hits".to_owned()),
            Cost::Fixed(_) | Cost::ByPath { .. } => None,
        }
    }

    /// The fields of the request's body that contain the cost.
    pub(super) fn fields(&self) -> impl Iterator<Item = &FieldPath> {
        let by = match self {
            Cost::Said { by, .. } => by.as_slice(),
            Cost::Fixed(_) | Cost::Hits | Cost::ByPath { .. } => &[],
        };
        by.iter().filter_map(|by| match by {
            CostSource::Body(path) => Some(path),
            CostSource::Fact(_) => None,
        })
    }

    /// The unit that a limit with this cost counts.
    pub(super) fn unit(&self) -> QuotaUnit {
        match self {
            Cost::Fixed(1) | Cost::Hits => QuotaUnit::Requests,
            Cost::Said { by, times: 1, .. } if by.iter().all(CostSource::is_length) => QuotaUnit::ContentBytes,
            Cost::Fixed(_) | Cost::Said { .. } | Cost::ByPath { .. } => QuotaUnit::Other,
        }
    }
}

/// The place in a request that states its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CostSource {
    Fact(FactName),
    /// A field of its JSON body.
    Body(FieldPath),
}

impl CostSource {
    /// Whether the cost is the length of the request's body.
    pub(super) fn is_length(&self) -> bool {
        matches!(self, CostSource::Fact(FactName::Header(name)) if name == "content-length")
    }

    /// Whether clients can choose the value freely.
    pub(super) const fn is_unverified(&self) -> bool {
        match self {
            CostSource::Fact(fact) => fact.is_unverified(),
            CostSource::Body(_) => true,
        }
    }
}

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostSource::Fact(fact) => fact.fmt(f),
            CostSource::Body(path) => write!(f, "body:{path}"),
        }
    }
}
