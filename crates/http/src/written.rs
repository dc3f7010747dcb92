//! How limits are written in the IETF's headers, remembered from one response to the next.
//!
//! The name and the policy of a limit are the same on every response, and writing them as structured fields costs more than
//! deciding by them.

use std::cell::RefCell;

use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};
use tidegate_core::{Micros, Ruled};

use crate::headers::printable;

/// One limit, as it is written.
#[derive(Default)]
pub(crate) struct Written {
    of: Option<(u128, u64, Option<Micros>)>,
    /// `"burst"`
    pub(crate) name: String,
    /// `"burst";q=50;w=3`
    pub(crate) policy: String,
}

const QUOTA: &KeyRef = key_ref("q");
const WINDOW: &KeyRef = key_ref("w");
const UNIT: &KeyRef = key_ref("qu");
const CONCURRENT: &StringRef = sfv::string_ref("concurrent-requests");

/// How many are remembered, by each thread. Those that fall on the same place take turns.
const PLACES: usize = 64;

thread_local! {
    static PLACE: RefCell<Vec<Written>> = const { RefCell::new(Vec::new()) };
}

impl Written {
    /// Shows `look` how a limit is written.
    pub(crate) fn with<R>(ruled: &Ruled, look: impl FnOnce(&Written) -> R) -> R {
        PLACE.with_borrow_mut(|places| {
            if places.is_empty() {
                places.resize_with(PLACES, Written::default);
            }
            let hash = ruled.id.stable_hash();
            let of = (hash, ruled.decision.limit, ruled.window);
            let written = &mut places[hash as usize % PLACES];
            if written.of != Some(of) {
                *written = Written { of: Some(of), ..Written::new(ruled) };
            }
            look(written)
        })
    }

    fn new(ruled: &Ruled) -> Written {
        let printable = printable(ruled.id.as_str());
        let Ok(name) = StringRef::from_str(&printable) else { return Written::default() };
        let mut written = Written::default();
        let _ = ListSerializer::with_buffer(&mut written.name).bare_item(name);
        let mut list = ListSerializer::with_buffer(&mut written.policy);
        let policy = list.bare_item(name).parameter(QUOTA, integer(ruled.decision.limit));
        match ruled.window {
            Some(window) => policy.parameter(WINDOW, integer(window.as_secs_ceil().max(1))),
            None => policy.parameter(UNIT, CONCURRENT),
        };
        written
    }
}

/// Structured fields hold numbers of up to 15 digits. Larger ones are as good as the largest.
fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}
