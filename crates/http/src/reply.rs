//! The reply to a request: allowed, or refused with a reason and a time to wait.

use http::StatusCode;
use tidegate_core::disclosure::DenialKind;
use tidegate_core::limit::Recovery;
use tidegate_core::{Decision, Micros, Outcome, Timestamp};
use tidegate_rules::{DecidedBy, KeyFault, Partitions, Ruled, Ruling};

use crate::style::{Caller, HeaderStyle};

/// The shortest wait under overload. A random time of up to `OVERLOAD_JITTER` is added to it.
const OVERLOAD_WAIT: Micros = Micros::from_secs(1);
const OVERLOAD_JITTER: Micros = Micros::from_secs(4);

/// The context of a request that a reply depends on.
#[derive(Clone, Copy, Debug)]
pub struct ReplyContext {
    /// The time of the check, read *before* it. A time read after the check may shift a reset into the next second.
    pub at: Timestamp,
    /// The caller.
    pub caller: Caller,
    /// A random number, for [jitter](HeaderStyle::jitter).
    pub random: u64,
}

/// A ruling, ready to be written as a response.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a, 'r> {
    pub(crate) ruling: &'a Ruling<'r>,
    pub(crate) style: &'a HeaderStyle,
    pub(crate) context: ReplyContext,
    pub(crate) partitions: Option<&'a Partitions>,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyRefusal {
    /// A rule cannot determine the key or the cost.
    Unkeyed(KeyFault),
    /// A limit denies the request for this long.
    Denied(Micros),
    /// The store is unavailable, and a rule denies requests until it recovers.
    Unavailable(Micros),
    /// The request costs more than this, the most that the limit can ever admit.
    TooLarge(u64),
}

impl<'a, 'r> Reply<'a, 'r> {
    /// A reply for `ruling` in this style.
    #[must_use]
    pub const fn new(ruling: &'a Ruling<'r>, style: &'a HeaderStyle, context: ReplyContext) -> Reply<'a, 'r> {
        Reply { ruling, style, context, partitions: None }
    }

    /// Sets the [partition keys](HeaderStyle::partition_key) of the request.
    #[must_use]
    pub const fn partitions(self, partitions: Option<&'a Partitions>) -> Reply<'a, 'r> {
        Reply { partitions, ..self }
    }

    pub(crate) fn refusal(&self) -> Option<ReplyRefusal> {
        if let Some(refused) = &self.ruling.refused {
            return Some(ReplyRefusal::Unkeyed(refused.fault));
        }
        match self.ruling.verdict.outcome {
            Outcome::Allow { .. } => None,
            Outcome::TooLarge { .. } => Some(match self.visible_max() {
                Some(max) => ReplyRefusal::TooLarge(max),
                // A 413 would reveal the size of a hidden limit.
                None => ReplyRefusal::Denied(self.stand_in_wait()),
            }),
            Outcome::Deny { retry_after } if self.is_store_unavailable() => {
                Some(ReplyRefusal::Unavailable(retry_after))
            }
            Outcome::Deny { retry_after } => Some(ReplyRefusal::Denied(retry_after)),
        }
    }

    /// Whether every limit that denies does so only because the store is unavailable.
    fn is_store_unavailable(&self) -> bool {
        self.ruling.deniers().all(|ruled| match ruled.by {
            DecidedBy::Deny | DecidedBy::AllowEnded => true,
            DecidedBy::Store | DecidedBy::Limit | DecidedBy::Allow | DecidedBy::Local => false,
        })
    }

    /// The time to wait before a retry, with jitter. `None` if the request was allowed, or if no retry can succeed.
    #[must_use]
    pub fn retry_after(&self) -> Option<Micros> {
        match self.refusal()? {
            // Slots are released when other requests end, usually before their leases expire.
            ReplyRefusal::Denied(_) if self.is_shed() => {
                let jitter = self.context.random % OVERLOAD_JITTER.get();
                Some(Micros::new(OVERLOAD_WAIT.get() + jitter))
            }
            ReplyRefusal::Denied(wait) | ReplyRefusal::Unavailable(wait) => {
                let jitter = self.context.random % self.style.jitter.get().saturating_add(1);
                Some(Micros::new(wait.get().saturating_add(jitter)))
            }
            ReplyRefusal::Unkeyed(_) | ReplyRefusal::TooLarge(_) => None,
        }
    }

    /// Whether the request is denied only because of slots that it shares with other requests.
    fn is_shed(&self) -> bool {
        let is_slots = |ruled: &Ruled<'_>| matches!(ruled.recovery, Recovery::OnRelease);
        self.denial_kind() == DenialKind::ReducedCapacity && self.ruling.deniers().all(is_slots)
    }

    /// The HTTP status of the response.
    ///
    /// | status | the request |
    /// |---|---|
    /// | 200 | was allowed |
    /// | 429 | was denied by a limit, unless its rule sets another `status` |
    /// | 413 | costs more than a limit can ever hold, unless the [style](HeaderStyle::too_large) sets another status |
    /// | 503 | was denied by a rule with `shed`, unless the rule sets another `status` |
    /// | 503 | was denied only because the store is unavailable and a rule has `on_store_failure: deny` |
    /// | 403 | lacks a part of a rule's key, and the rule has `on_missing_key: refuse` |
    /// | 400 | repeats a part of a rule's key, and the rule does not have `on_repeated_key: join` |
    /// | 411 | is charged by the length of its body, which is unknown |
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.refusal() {
            None => StatusCode::OK,
            Some(ReplyRefusal::Denied(_)) => self.status_of_rule().unwrap_or(StatusCode::TOO_MANY_REQUESTS),
            Some(ReplyRefusal::TooLarge(_)) => self.style.too_large,
            Some(ReplyRefusal::Unavailable(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Some(ReplyRefusal::Unkeyed(KeyFault::Missing)) => StatusCode::FORBIDDEN,
            Some(ReplyRefusal::Unkeyed(KeyFault::Repeated)) => StatusCode::BAD_REQUEST,
            Some(ReplyRefusal::Unkeyed(KeyFault::Unmeasured)) => StatusCode::LENGTH_REQUIRED,
        }
    }

    /// The status of the first rule that denies and has one.
    pub(crate) fn status_of_rule(&self) -> Option<StatusCode> {
        // A client that has used up its quota must not be informed of a lack of capacity.
        let is_overload = self.denial_kind() == DenialKind::ReducedCapacity;
        let counts = |ruled: &&Ruled<'_>| is_overload || ruled.disclosure.problem != DenialKind::ReducedCapacity;
        let status = self.ruling.deniers().filter(counts).find_map(|ruled| ruled.disclosure.status)?;
        StatusCode::from_u16(status.get()).ok()
    }

    /// Returns `true` if the request is refused because it lacks a part of a rule's key.
    #[must_use]
    pub fn is_unidentified(&self) -> bool {
        self.refusal() == Some(ReplyRefusal::Unkeyed(KeyFault::Missing))
    }

    /// The names of the limits that deny, if the caller may know them.
    pub(crate) fn violated(&self) -> impl Iterator<Item = &'a str> {
        let shown = self.style.audience.includes(self.context.caller);
        let deniers = self.ruling.deniers().filter(move |ruled| shown && ruled.disclosure.is_shown);
        deniers.map(|ruled| ruled.id.as_str())
    }

    /// Whether the caller may see the size of a limit.
    pub(crate) fn shows_max(&self) -> bool {
        self.style.audience.includes(self.context.caller)
    }

    /// The most that the visible limits can ever admit. `None` if the request is too large only for hidden ones, or for those without
    /// any capacity.
    fn visible_max(&self) -> Option<u64> {
        let shown = self.ruling.deniers().filter(|ruled| ruled.disclosure.is_shown && !has_no_capacity(ruled));
        let max = shown.filter_map(|ruled| match ruled.decision.outcome {
            Outcome::TooLarge { max } => Some(max),
            Outcome::Allow { .. } | Outcome::Deny { .. } => None,
        });
        max.min()
    }

    /// The wait of a request that is too large for limits which do not say so: the same as if they were exhausted.
    fn stand_in_wait(&self) -> Micros {
        let wait = |decision: &Decision| decision.retry_after().unwrap_or(decision.reset_after);
        let waits = self.ruling.deniers().map(|ruled| wait(&ruled.decision));
        waits.max().unwrap_or(Micros::ZERO).max(Micros::from_secs(1))
    }

    /// The kind of the denial: abnormal usage if any denying rule has that kind, and reduced capacity only if all have it.
    pub(crate) fn denial_kind(&self) -> DenialKind {
        let is_abnormal = |ruled: &Ruled<'_>| ruled.disclosure.problem == DenialKind::AbnormalUsage;
        let is_overload = |ruled: &Ruled<'_>| ruled.disclosure.problem == DenialKind::ReducedCapacity;
        if self.ruling.deniers().any(is_abnormal) {
            DenialKind::AbnormalUsage
        } else if self.ruling.deniers().next().is_some() && self.ruling.deniers().all(is_overload) {
            DenialKind::ReducedCapacity
        } else {
            DenialKind::QuotaExceeded
        }
    }
}

/// Whether a limit that stands for a capacity has none, such as a rule with `shed` for a priority whose part is 0%. No request fits in,
/// so this one is not too large.
fn has_no_capacity(ruled: &Ruled<'_>) -> bool {
    ruled.disclosure.problem == DenialKind::ReducedCapacity
        && matches!(ruled.decision.outcome, Outcome::TooLarge { max: 0 })
}
