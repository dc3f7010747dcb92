//! The limits that most routes of a partition have in common.

use std::collections::HashMap;
use std::sync::Arc;

use super::limit_key::{LimitKey, Named};

/// The limits of a partition, counted by the families of routes that state them.
///
/// A limit that more than half of the families state holds for a family of which nothing is known, too. Families that state
/// nothing do not count: a health check says nothing about the API beside it. Where each family has a limit of its own, as
/// Discord's buckets, none holds for another.
#[derive(Debug, Default)]
pub(super) struct CommonLimits {
    families: usize,
    stated_by: HashMap<LimitKey, usize>,
    common: Named,
}

impl CommonLimits {
    /// The limits that hold for an unknown family.
    pub(super) const fn named(&self) -> &Named {
        &self.common
    }

    /// Counts a family that states these limits.
    pub(super) fn add(&mut self, family: &[LimitKey]) {
        self.families += 1;
        for key in family {
            *self.stated_by.entry(key.clone()).or_default() += 1;
        }
        let is_common = |key: &LimitKey| self.stated_by.get(key).is_some_and(|stated| stated * 2 > self.families);
        // Only limits of the new family can have become common.
        let kept = self.common.iter().filter(|key| !family.contains(key));
        let common: Vec<LimitKey> = kept.chain(family).filter(|key| is_common(key)).cloned().collect();
        if *common != *self.common {
            self.common = common.into();
        }
    }

    /// Forgets the families, and keeps what they have in common as the limits of one. Whether anything is kept.
    pub(super) fn forget_families(&mut self) -> bool {
        let common = Arc::clone(&self.common);
        *self = CommonLimits::default();
        self.add(&common);
        !common.is_empty()
    }
}
