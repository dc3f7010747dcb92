//! Limits formatted for the IETF's headers, cached across responses.
//!
//! Requests under the same limits get the same names and policies, and formatting them as structured fields takes
//! longer than deciding the limits.

use std::borrow::Cow;
use std::cell::RefCell;

use bytes::Bytes;
use http::HeaderValue;
use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};
use tidegate_core::Micros;
use tidegate_core::disclosure::QuotaUnit;
use tidegate_rules::Ruled;

/// The limits of one response as text.
#[derive(Default)]
pub(crate) struct PolicyText {
    limits: Vec<LimitText>,
    /// Such as `"burst";q=50;w=3, "daily";q=1000;w=86400`.
    policy: Option<HeaderValue>,
}

struct LimitText {
    id: LimitIdentity,
    /// Such as `"burst"`.
    name: String,
}

/// The properties that the text depends on: hash of the name, quota, window and unit.
type LimitIdentity = (u128, u64, Option<Micros>, QuotaUnit);

const QUOTA: &KeyRef = key_ref("q");
const WINDOW: &KeyRef = key_ref("w");
const UNIT: &KeyRef = key_ref("qu");
const CONCURRENT: &StringRef = sfv::string_ref("concurrent-requests");
const BYTES: &StringRef = sfv::string_ref("content-bytes");

/// Entries of each thread's cache. A combination of limits evicts another one with the same slot.
const CACHE_SLOTS: usize = 64;

thread_local! {
    static CACHE: RefCell<Vec<PolicyText>> = const { RefCell::new(Vec::new()) };
}

impl PolicyText {
    /// Calls `use_text` with the text of these limits.
    pub(crate) fn with<'r, R>(
        limits: impl Iterator<Item = &'r Ruled<'r>> + Clone,
        use_text: impl FnOnce(&PolicyText) -> R,
    ) -> R {
        CACHE.with_borrow_mut(|cache| {
            if cache.is_empty() {
                cache.resize_with(CACHE_SLOTS, PolicyText::default);
            }
            let mix = |sum: usize, ruled: &Ruled<'_>| sum.rotate_left(7) ^ ruled.id.stable_hash() as usize;
            let text = &mut cache[limits.clone().fold(0, mix) % CACHE_SLOTS];
            if !limits.clone().map(identity).eq(text.limits.iter().map(|limit| limit.id)) {
                *text = PolicyText::new(limits);
            }
            use_text(text)
        })
    }

    fn new<'r>(limits: impl Iterator<Item = &'r Ruled<'r>>) -> PolicyText {
        let mut text = PolicyText::default();
        let mut policies = String::new();
        let mut list = ListSerializer::with_buffer(&mut policies);
        for ruled in limits {
            let printable = printable(ruled.id.as_str());
            let mut limit = LimitText { id: identity(ruled), name: String::new() };
            // Cannot fail: a structured string may hold any printable ASCII.
            if let Ok(name) = StringRef::from_str(&printable) {
                let _ = ListSerializer::with_buffer(&mut limit.name).bare_item(name);
                let policy = list.bare_item(name).parameter(QUOTA, integer(ruled.decision.limit));
                let policy = match ruled.unit() {
                    QuotaUnit::ConcurrentRequests => policy.parameter(UNIT, CONCURRENT),
                    QuotaUnit::ContentBytes => policy.parameter(UNIT, BYTES),
                    // Requests are the default unit, and the draft has no names for other ones.
                    QuotaUnit::Requests | QuotaUnit::Other => policy,
                };
                if let Some(window) = ruled.recovery.window() {
                    let _ = policy.parameter(WINDOW, integer(window.as_secs_ceil().max(1)));
                }
            }
            text.limits.push(limit);
        }
        text.policy = HeaderValue::from_maybe_shared(Bytes::from(policies)).ok().filter(|policy| !policy.is_empty());
        text
    }

    /// The value of `RateLimit-Policy`. `None` if there are no limits.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        self.policy.clone()
    }

    /// The names of the limits, each in quotation marks.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|limit| limit.name.as_str())
    }
}

fn identity(ruled: &Ruled<'_>) -> LimitIdentity {
    (ruled.id.stable_hash(), ruled.decision.limit, ruled.recovery.window(), ruled.unit())
}

/// A name with only characters that are valid in a header.
pub(crate) fn printable(name: &str) -> Cow<'_, str> {
    let is_printable = |byte: u8| (b' '..=b'~').contains(&byte);
    if name.bytes().all(is_printable) { Cow::Borrowed(name) } else { Cow::Owned(name.escape_default().to_string()) }
}

/// An integer of a structured field, which has at most 15 digits. Larger numbers are clamped.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}
