//! The identity of a limit.

use std::sync::Arc;

use crate::limits::LimitId;

/// The identity of a limit that delays requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LimitKey {
    /// A limit named by answers.
    Stated(LimitId),
    /// Denials of a route without a stated limit.
    RouteDenied(u64),
    /// Denials of all routes of a partition.
    HostDenied(u64),
}

/// The limits of a route.
pub(super) type Named = Arc<[LimitKey]>;
