//! `split`: a limit in several parts, each under its own key.
//!
//! A shaper or a log cannot be leased. If one key of such a limit is too busy for one server of the store, its rule can
//! split it: each part has an equal share of the limit, and each node charges one of them, chosen by its name. The parts
//! add up to the limit, so nothing is admitted beyond it. The cost is that nodes may share a part while another part is
//! unused.

use std::num::NonZeroU8;

use tidegate_core::limit::Algorithm;
use tidegate_core::{Limit, RuleId};

/// The allowed numbers of parts.
pub(crate) const PARTS: std::ops::RangeInclusive<u64> = 2..=64;

/// The number of parts of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split(NonZeroU8);

impl Split {
    /// `None` if the number of parts is out of range.
    pub(crate) fn into(parts: u64) -> Option<Split> {
        let parts = PARTS.contains(&parts).then_some(parts)?;
        u8::try_from(parts).ok().and_then(NonZeroU8::new).map(Split)
    }

    pub(crate) const fn parts(self) -> u8 {
        self.0.get()
    }

    /// One part of a limit. `None` if it would admit nothing.
    pub(crate) fn part_of(self, limit: &Limit) -> Option<Limit> {
        let is_enough = limit.capacity() >= u64::from(self.parts()) && count(limit) >= u64::from(self.parts());
        is_enough.then(|| limit.equal_part(self.0).ok()).flatten()
    }

    /// The part that a node charges, counted from 1. The same on every machine and in every version.
    pub(crate) fn chosen_by(self, node: &str) -> u8 {
        let number = RuleId::new(node).stable_hash() % u128::from(self.parts());
        u8::try_from(number).unwrap_or_default() + 1
    }
}

/// Whether a limit can be split. Other limits are leased instead, or have slots.
pub(crate) fn can_be_split(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::Shaper(_) | Algorithm::SlidingLog(_))
}

/// The number of which each part must have at least one.
fn count(limit: &Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::SlidingLog(log) => log.limit(),
        _ => limit.capacity(),
    }
}
