//! The style of replies: the rate-limit headers of a response, their form and their audience.

use http::StatusCode;
use tidegate_core::Micros;

use crate::facts::HttpFacts;

/// The selection of rate-limit headers, and their audience.
///
/// `Retry-After` is not affected: every denial has one, unless a retry can never succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderStyle {
    /// The form of `X-RateLimit-Reset`. `None` omits it, `X-RateLimit-Limit` and `X-RateLimit-Remaining`. They describe the
    /// limit that is closest to being exhausted.
    pub x_ratelimit: Option<ResetForm>,
    /// The form of `RateLimit` and `RateLimit-Policy`, which list every enforced limit. `None` omits them.
    pub ietf: Option<IetfForm>,
    /// Adds the partition key (`pk`) to `RateLimit`: a hash of the key that the limit counts by.
    pub partition_key: bool,
    /// Adds `X-RateLimit-Bucket`: the name of the limit that the other `X-RateLimit` headers describe.
    pub bucket: bool,
    /// Adds `X-RateLimit-Reset-After`: seconds with three decimals.
    pub reset_after: bool,
    /// Adds the headers to responses of allowed requests too.
    pub on_allowed: bool,
    /// The callers who see the headers. All others see only `Retry-After` on a denial.
    pub audience: Audience,
    /// The longest random time to add to waits, so that clients denied together do not retry together.
    pub jitter: Micros,
    /// The status for a request that costs more than a limit can ever hold. Clients retry a 429, but not a 413.
    pub too_large: StatusCode,
}

impl Default for HeaderStyle {
    /// `X-RateLimit` headers with remaining seconds and the IETF's headers, on every response, for everyone, without
    /// jitter.
    fn default() -> HeaderStyle {
        HeaderStyle {
            x_ratelimit: Some(ResetForm::Delta),
            ietf: Some(IetfForm::Draft11),
            partition_key: false,
            bucket: false,
            reset_after: false,
            on_allowed: true,
            audience: Audience::Everyone,
            jitter: Micros::ZERO,
            too_large: StatusCode::PAYLOAD_TOO_LARGE,
        }
    }
}

impl HeaderStyle {
    /// No headers but `Retry-After`.
    #[must_use]
    pub fn none() -> HeaderStyle {
        HeaderStyle { x_ratelimit: None, ietf: None, ..HeaderStyle::default() }
    }
}

/// The form of a reset time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetForm {
    /// Remaining seconds.
    Delta,
    /// Seconds since the Unix epoch.
    Epoch,
}

/// A revision of the IETF's fields. They are a draft, whose parameters may still be renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IetfForm {
    /// draft-ietf-httpapi-ratelimit-headers-11: `"burst";r=12;t=2`.
    Draft11,
}

/// The parameters of `RateLimit`, each with the punctuation before its value.
pub(crate) struct ParameterNames {
    pub(crate) available: &'static str,
    /// The time within which no more than the available quota can be used.
    pub(crate) window: &'static str,
    pub(crate) partition: &'static str,
}

impl IetfForm {
    pub(crate) const fn names(self) -> ParameterNames {
        match self {
            IetfForm::Draft11 => ParameterNames { available: ";r=", window: ";t=", partition: ";pk=:" },
        }
    }
}

/// The callers who see rate-limit headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Audience {
    /// Everyone.
    #[default]
    Everyone,
    /// Only callers with a verified identity.
    Authenticated,
}

impl Audience {
    pub(crate) fn includes(self, caller: Caller) -> bool {
        match (self, caller) {
            (Audience::Everyone, Caller::Authenticated | Caller::Unauthenticated)
            | (Audience::Authenticated, Caller::Authenticated) => true,
            (Audience::Authenticated, Caller::Unauthenticated) => false,
        }
    }
}

/// The caller of a request, as far as the [audience](Audience) depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// The caller has a verified identity.
    Authenticated,
    /// The caller is anonymous.
    Unauthenticated,
}

impl Caller {
    /// The caller of a request with these facts.
    #[must_use]
    pub fn of(facts: &HttpFacts<'_>) -> Caller {
        if facts.is_authenticated() { Caller::Authenticated } else { Caller::Unauthenticated }
    }
}
