//! What a request is answered.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tidegate_core::disclosure::DenialKind;
use tidegate_core::{Micros, Outcome, Timestamp};
use tidegate_rules::{DecidedBy, KeyFault, Partitions, Ruled, Ruling};

use crate::denial_body::DenialBodies;
use crate::headers::HeaderStyle;
use crate::template::Explanation;
use crate::{grpc, problem};

/// Of whom a request comes, as far as it matters to what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Somebody has verified who it is.
    Authenticated,
    /// Nobody knows.
    Unauthenticated,
}

impl Caller {
    /// The caller of a request with these facts.
    #[must_use]
    pub fn of(facts: &crate::HttpFacts<'_>) -> Caller {
        if facts.is_authenticated() { Caller::Authenticated } else { Caller::Unauthenticated }
    }
}

/// When and by whom the limiter was asked, and some chance.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The instant at which it was asked. One read *before* asking makes a reset the same second in every answer, one
    /// read afterwards may not.
    pub at: Timestamp,
    /// By whom.
    pub caller: Caller,
    /// Any number, for [jitter](HeaderStyle::jitter).
    pub random: u64,
}

/// A ruling, about to be told to whoever made the request.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a, 'r> {
    pub(crate) ruling: &'a Ruling<'r>,
    pub(crate) style: &'a HeaderStyle,
    pub(crate) asked: Asked,
    pub(crate) partitions: Option<&'a Partitions>,
}

/// Why a request does not go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// A rule cannot tell whom to charge, or how much.
    Unkeyed(KeyFault),
    /// It may later.
    Denied(Micros),
    /// It may later, and no limit says so: the store is away.
    Unavailable(Micros),
    /// It costs more than this, which is all that can ever pass.
    TooLarge(u64),
}

impl<'a, 'r> Reply<'a, 'r> {
    /// Tells `ruling` in this style.
    #[must_use]
    pub const fn new(ruling: &'a Ruling<'r>, style: &'a HeaderStyle, asked: Asked) -> Reply<'a, 'r> {
        Reply { ruling, style, asked, partitions: None }
    }

    /// The same, with [partition keys](HeaderStyle::partition_key).
    #[must_use]
    pub const fn partitions(self, partitions: Option<&'a Partitions>) -> Reply<'a, 'r> {
        Reply { partitions, ..self }
    }

    pub(crate) fn refused(&self) -> Option<Refused> {
        if let Some(refused) = &self.ruling.refused {
            return Some(Refused::Unkeyed(refused.fault));
        }
        match self.ruling.verdict.outcome {
            Outcome::Allow { .. } => None,
            Outcome::TooLarge { .. } => Some(match self.shown_most() {
                Some(max) => Refused::TooLarge(max),
                // Told that it is too large, somebody could find out how much a hidden limit holds.
                None => Refused::Denied(self.hidden_wait()),
            }),
            Outcome::Deny { retry_after } if self.is_store_away() => Some(Refused::Unavailable(retry_after)),
            Outcome::Deny { retry_after } => Some(Refused::Denied(retry_after)),
        }
    }

    /// Whether none of those who deny has counted anything.
    fn is_store_away(&self) -> bool {
        self.ruling.deniers().all(|ruled| match ruled.by {
            DecidedBy::Deny | DecidedBy::AllowEnded => true,
            DecidedBy::Store | DecidedBy::Limit | DecidedBy::Allow | DecidedBy::Local => false,
        })
    }

    /// How long to wait before another try, jitter included. `None` if the request was allowed, or if no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Micros> {
        match self.refused()? {
            Refused::Denied(wait) | Refused::Unavailable(wait) => {
                let more = self.asked.random % self.style.jitter.get().saturating_add(1).max(1);
                Some(Micros::new(wait.get().saturating_add(more)))
            }
            Refused::Unkeyed(_) | Refused::TooLarge(_) => None,
        }
    }

    /// | status | the request |
    /// |---|---|
    /// | 200 | was allowed |
    /// | 429 | was denied by a limit, unless its rule says another `status` |
    /// | 413 | costs more than a limit can ever hold, unless [told otherwise](HeaderStyle::too_large) |
    /// | 503 | was denied only because the store is away and a rule says `on_store_failure: deny` |
    /// | 403 | lacks a part of a rule's key, and the rule says `on_missing_key: refuse` |
    /// | 400 | says a part of a rule's key more than once, and the rule does not say `on_repeated_key: join` |
    /// | 411 | costs as much as its body is long, and does not say how long that is |
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.refused() {
            None => StatusCode::OK,
            Some(Refused::Denied(_)) => self.status_of_rule().unwrap_or(StatusCode::TOO_MANY_REQUESTS),
            Some(Refused::TooLarge(_)) => self.style.too_large,
            Some(Refused::Unavailable(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Some(Refused::Unkeyed(KeyFault::Missing)) => StatusCode::FORBIDDEN,
            Some(Refused::Unkeyed(KeyFault::Repeated)) => StatusCode::BAD_REQUEST,
            Some(Refused::Unkeyed(KeyFault::Unmeasured)) => StatusCode::LENGTH_REQUIRED,
        }
    }

    /// The status of the first rule that denies and has one.
    fn status_of_rule(&self) -> Option<StatusCode> {
        let status = self.ruling.deniers().find_map(|ruled| ruled.disclosure.status)?;
        StatusCode::from_u16(status.get()).ok()
    }

    /// Whether the request is refused because it does not say whom it is for.
    #[must_use]
    pub fn is_unidentified(&self) -> bool {
        self.refused() == Some(Refused::Unkeyed(KeyFault::Missing))
    }

    /// Why the request does not go ahead, as an RFC 9457 problem in JSON. Empty if it does.
    #[must_use]
    pub fn problem(&self) -> Bytes {
        self.refused().map(|refused| problem::json(self, refused)).unwrap_or_default()
    }

    /// The whole response to a request that does not go ahead, as a problem in JSON. To one that does: 200, and nothing in its
    /// body.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        self.response_with(|_, answer| {
            answer.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
            self.problem()
        })
    }

    /// The same as `bodies` has it for the request whose headers these are.
    #[must_use]
    pub fn response_as(&self, bodies: &DenialBodies, request: &HeaderMap) -> Response<Bytes> {
        self.response_with(|refused, answer| {
            let (kind, title) = problem::kind_and_title(self, refused);
            let explanation = Explanation {
                status: self.status(),
                kind,
                title,
                detail: &problem::Detail { reply: self, refused },
                rule: self.violated().next(),
                retry_after: self.retry_after().map(|wait| wait.as_secs_ceil().max(1)),
                request_id: None,
            };
            bodies.write(explanation, request, answer, || self.problem())
        })
    }

    fn response_with(&self, body: impl FnOnce(Refused, &mut HeaderMap) -> Bytes) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = self.status();
        let told = self.headers();
        // Limits, the body's type, and `Vary`.
        response.headers_mut().reserve(told.len() + 2);
        if let Some(refused) = self.refused() {
            *response.body_mut() = body(refused, response.headers_mut());
            // Caches do not store a 429; they may store other statuses, such as 404.
            if matches!(refused, Refused::Denied(_)) && self.status_of_rule().is_some() {
                response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            }
        }
        told.insert_into(response.headers_mut());
        response
    }

    /// The headers that make a whole gRPC response to a request that does not go ahead (with HTTP's status 200 and
    /// nothing in its body): `RESOURCE_EXHAUSTED` with `RetryInfo`, `UNAVAILABLE` while the store is away,
    /// `PERMISSION_DENIED` if it lacks a part of a rule's key, or `INVALID_ARGUMENT` if it says one more than once or does not
    /// say how long it is.
    #[must_use]
    pub fn grpc_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        self.write_headers(&mut headers);
        if let Some(refused) = self.refused() {
            grpc::write(self, refused, &mut headers);
        }
        headers
    }

    /// The names of the limits that deny, if the caller may know them.
    pub(crate) fn violated(&self) -> impl Iterator<Item = &'a str> {
        let shown = self.style.audience.has(self.asked.caller);
        let deniers = self.ruling.deniers().filter(move |ruled| shown && ruled.disclosure.is_shown);
        deniers.map(|ruled| ruled.id.as_str())
    }

    /// Whether the caller may know how much can ever pass.
    pub(crate) fn shows_most(&self) -> bool {
        self.style.audience.has(self.asked.caller)
    }

    /// How much can ever pass the limits that clients may see; `None` if the request is too large for hidden ones only.
    fn shown_most(&self) -> Option<u64> {
        let shown = self.ruling.deniers().filter(|ruled| ruled.disclosure.is_shown);
        let most = shown.filter_map(|ruled| match ruled.decision.outcome {
            Outcome::TooLarge { max } => Some(max),
            Outcome::Allow { .. } | Outcome::Deny { .. } => None,
        });
        most.min()
    }

    /// The wait of a request that is too large for a hidden limit: as if the limit were used up.
    fn hidden_wait(&self) -> Micros {
        let resets = self.ruling.deniers().map(|ruled| ruled.decision.reset_after);
        resets.max().unwrap_or(Micros::ZERO).max(Micros::from_secs(1))
    }

    /// What a denial means: abnormal usage, if a rule that denies says so.
    pub(crate) fn denial(&self) -> DenialKind {
        let is_abnormal = |ruled: &Ruled<'_>| ruled.disclosure.problem == DenialKind::AbnormalUsage;
        if self.ruling.deniers().any(is_abnormal) { DenialKind::AbnormalUsage } else { DenialKind::QuotaExceeded }
    }
}
