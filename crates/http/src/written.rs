//! How limits are written in the IETF's headers, remembered from one response to the next.
//!
//! The names and policies of the limits that govern a request are the same on every response to its like, and writing them as
//! structured fields costs more than deciding by them.

use std::cell::RefCell;

use bytes::Bytes;
use http::HeaderValue;
use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};
use tidegate_core::Micros;
use tidegate_core::disclosure::QuotaUnit;
use tidegate_rules::Ruled;

use crate::headers::printable;

/// The limits of one response, as they are written.
#[derive(Default)]
pub(crate) struct Written {
    limits: Vec<Limit>,
    /// `"burst";q=50;w=3, "daily";q=1000;w=86400`
    policy: Option<HeaderValue>,
}

struct Limit {
    of: Of,
    /// `"burst"`
    name: String,
}

/// What a limit is known by, here: its id, how much it admits of what, and in which time.
type Of = (u128, u64, Option<Micros>, QuotaUnit);

const QUOTA: &KeyRef = key_ref("q");
const WINDOW: &KeyRef = key_ref("w");
const UNIT: &KeyRef = key_ref("qu");
const CONCURRENT: &StringRef = sfv::string_ref("concurrent-requests");
const BYTES: &StringRef = sfv::string_ref("content-bytes");

/// How many are remembered, by each thread. Those that fall on the same place take turns.
const PLACES: usize = 64;

thread_local! {
    static PLACE: RefCell<Vec<Written>> = const { RefCell::new(Vec::new()) };
}

impl Written {
    /// Shows `look` how these limits are written.
    pub(crate) fn with<'r, R>(
        limits: impl Iterator<Item = &'r Ruled<'r>> + Clone,
        look: impl FnOnce(&Written) -> R,
    ) -> R {
        PLACE.with_borrow_mut(|places| {
            if places.is_empty() {
                places.resize_with(PLACES, Written::default);
            }
            let mix = |sum: usize, ruled: &Ruled<'_>| sum.rotate_left(7) ^ ruled.id.stable_hash() as usize;
            let written = &mut places[limits.clone().fold(0, mix) % PLACES];
            if !limits.clone().map(of).eq(written.limits.iter().map(|limit| limit.of)) {
                *written = Written::new(limits);
            }
            look(written)
        })
    }

    fn new<'r>(limits: impl Iterator<Item = &'r Ruled<'r>>) -> Written {
        let mut written = Written::default();
        let mut policies = String::new();
        let mut list = ListSerializer::with_buffer(&mut policies);
        for ruled in limits {
            let printable = printable(ruled.id.as_str());
            let mut limit = Limit { of: of(ruled), name: String::new() };
            // Printable characters are what such a string may hold.
            if let Ok(name) = StringRef::from_str(&printable) {
                let _ = ListSerializer::with_buffer(&mut limit.name).bare_item(name);
                let policy = list.bare_item(name).parameter(QUOTA, integer(ruled.decision.limit));
                let policy = match ruled.unit() {
                    QuotaUnit::ConcurrentRequests => policy.parameter(UNIT, CONCURRENT),
                    QuotaUnit::ContentBytes => policy.parameter(UNIT, BYTES),
                    // Requests are the default; for others there is no word.
                    QuotaUnit::Requests | QuotaUnit::Other => policy,
                };
                if let Some(window) = ruled.recovery.window() {
                    let _ = policy.parameter(WINDOW, integer(window.as_secs_ceil().max(1)));
                }
            }
            written.limits.push(limit);
        }
        written.policy = HeaderValue::from_maybe_shared(Bytes::from(policies)).ok().filter(|policy| !policy.is_empty());
        written
    }

    /// The policies of all of them; `None` if there are none.
    pub(crate) fn policy(&self) -> Option<HeaderValue> {
        self.policy.clone()
    }

    /// Their names, each in quotation marks.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|limit| limit.name.as_str())
    }
}

fn of(ruled: &Ruled<'_>) -> Of {
    (ruled.id.stable_hash(), ruled.decision.limit, ruled.recovery.window(), ruled.unit())
}

/// Structured fields hold numbers of up to 15 digits. Larger ones are as good as the largest.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}
