//! The parts of a limit that clients see.

use std::num::NonZeroU16;

/// The parts of a limit that clients see. Operators see the whole limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Disclosure {
    /// Whether clients see the limit: in headers, and by name in the body of a denial.
    pub is_shown: bool,
    /// The unit of the quota.
    pub unit: QuotaUnit,
    /// The problem type of denials.
    pub problem: DenialKind,
    /// The HTTP status of denials; `None` for 429.
    pub status: Option<DenialStatus>,
}

impl Disclosure {
    /// The default: a limit on requests, shown to clients.
    pub const DEFAULT: Disclosure =
        Disclosure { is_shown: true, unit: QuotaUnit::Requests, problem: DenialKind::QuotaExceeded, status: None };
}

impl Default for Disclosure {
    fn default() -> Disclosure {
        Disclosure::DEFAULT
    }
}

/// The unit of a limit's quota, by the IETF's registry of quota units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QuotaUnit {
    /// Requests.
    #[default]
    Requests,
    /// Bytes of content.
    ContentBytes,
    /// Requests in flight.
    ConcurrentRequests,
    /// A unit that is not in the registry, such as tokens or money.
    Other,
}

/// The problem type of a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DenialKind {
    /// The client has used up its quota.
    #[default]
    QuotaExceeded,
    /// The client's behaviour suggests a mistake or an attack.
    AbnormalUsage,
    /// There is not enough capacity for all requests.
    ReducedCapacity,
}

impl DenialKind {
    /// The name of the problem type in rules files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            DenialKind::QuotaExceeded => "quota-exceeded",
            DenialKind::AbnormalUsage => "abnormal-usage",
            DenialKind::ReducedCapacity => "temporary-reduced-capacity",
        }
    }
}

/// The HTTP status of a denial: 400 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenialStatus(NonZeroU16);

impl DenialStatus {
    /// Creates a status. `None` unless `status` is a client or server error (4xx, 5xx).
    #[must_use]
    pub const fn new(status: u16) -> Option<DenialStatus> {
        match NonZeroU16::new(status) {
            Some(number) if matches!(status, 400..=599) => Some(DenialStatus(number)),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}
