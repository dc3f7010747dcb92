//! Finds the descriptor of a file for a request's descriptor.

use smallvec::SmallVec;

use super::Domain;
use super::allowance::Allowance;
use super::descriptor::{Descriptor, Flags};
use super::metadata::Metadata;
use super::unit::PerUnit;
use tidegate_core::limit::LimitError;
use tidegate_core::{Charge, Key, RuleId};

/// The entries of a request's descriptor: keys and values.
pub type Entries<'e> = &'e [(&'e str, &'e str)];

/// The descriptor of a file that matches a request's descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorMatch<'d, 'e> {
    /// The id to which state belongs: the domain and the path of keys and values in the file.
    pub rule: &'d RuleId,
    /// The key to charge: the request's values where the file has none.
    pub key: Key<'e>,
    /// The allowance.
    pub allowance: Allowance,
    /// The limit in the file, for responses; `None` if there is no limit.
    pub per_unit: Option<PerUnit>,
    /// Whether another descriptor of the same request replaces this one, which is then not charged and never denies.
    pub replaced: bool,
    pub(super) domain: &'d Domain,
    pub(super) entries: Entries<'e>,
    /// `None` if the limit came with the request.
    pub(super) descriptor: Option<&'d Descriptor>,
}

impl<'d> DescriptorMatch<'d, '_> {
    /// The charge of `cost`; `None` if there is no limit.
    #[must_use]
    pub fn charge(&self, cost: u64) -> Option<Charge<'_>> {
        match &self.allowance {
            Allowance::Limited(limit) if !self.replaced => Some(Charge::new(self.rule, &self.key, limit).cost(cost)),
            Allowance::Limited(_) | Allowance::Unlimited | Allowance::Whitelisted => None,
        }
    }

    /// Returns `true` if the descriptor is counted and reported, but never denies.
    #[must_use]
    pub fn shadow_mode(&self) -> bool {
        self.flags().shadow_mode
    }

    /// Quota mode: excess is reported to the client, not denied.
    #[must_use]
    pub fn quota_mode(&self) -> bool {
        self.flags().quota_mode
    }

    /// The limit's name; empty if it has none.
    #[must_use]
    pub fn name(&self) -> &'d str {
        self.descriptor.and_then(|descriptor| descriptor.rate_limit.as_ref()).map_or("", |limit| &limit.name)
    }

    /// The names of the limits that this descriptor replaces in the same request.
    pub fn replaces(&self) -> impl Iterator<Item = &'d str> + use<'d> {
        let limit = self.descriptor.and_then(|descriptor| descriptor.rate_limit.as_ref());
        limit.into_iter().flat_map(|limit| limit.replaces.iter().map(AsRef::as_ref))
    }

    /// The metadata for the client while quota is left.
    #[must_use]
    pub fn metadata(&self) -> Option<&'d Metadata> {
        self.descriptor.and_then(|descriptor| descriptor.metadata.as_ref())
    }

    fn flags(&self) -> Flags {
        self.descriptor.map(|descriptor| descriptor.flags).unwrap_or_default()
    }
}

/// The way in which an entry matched its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchKind {
    KeyAndValue,
    Pattern,
    Key,
}

impl Domain {
    /// The match of a request's descriptor; `None` if the file has none.
    #[must_use]
    pub fn find<'d, 'e>(&'d self, entries: Entries<'e>) -> Option<DescriptorMatch<'d, 'e>> {
        // The number of values depends only on the rule, so that different keys never have the same text.
        let mut open: SmallVec<[&'e str; 6]> = SmallVec::new();
        let descriptor = self.walk(entries, |descriptor, by, (key, value)| match by {
            MatchKind::KeyAndValue => {}
            MatchKind::Key => open.push(value),
            // A pattern can match beyond the key: `user_*` matches `user_id`.
            MatchKind::Pattern if descriptor.flags.share_threshold => open.push(key),
            MatchKind::Pattern => open.extend([key, value]),
        })?;
        let (allowance, per_unit) = match &descriptor.rate_limit {
            Some(limit) => (limit.allowance, limit.per_unit),
            None if descriptor.below.is_empty() => (Allowance::Whitelisted, None),
            None => return None,
        };
        let key = match &open[..] {
            [] => Key::GLOBAL,
            [only] => Key::from(*only),
            several => Key::of(several),
        };
        let (rule, replaced, descriptor) = (&descriptor.rule, false, Some(descriptor));
        Some(DescriptorMatch { rule, key, allowance, per_unit, replaced, domain: self, entries, descriptor })
    }

    /// The match of each of a request's descriptors, in order. Replaced descriptors are marked.
    #[must_use]
    pub fn find_all<'d, 'e>(
        &'d self,
        descriptors: impl IntoIterator<Item = Entries<'e>>,
    ) -> SmallVec<[Option<DescriptorMatch<'d, 'e>>; 2]> {
        let mut found: SmallVec<_> = descriptors.into_iter().map(|entries| self.find(entries)).collect();
        mark_replaced(&mut found);
        found
    }

    /// A descriptor whose limit comes with the request. It is charged separately from the limits of the file, and
    /// separately for each unit. A limit of another size continues its state.
    ///
    /// # Errors
    /// Never fails: every number of every unit can be counted.
    pub fn overridden<'d, 'e>(
        &'d self,
        entries: Entries<'e>,
        per_unit: PerUnit,
    ) -> Result<DescriptorMatch<'d, 'e>, LimitError> {
        Ok(DescriptorMatch {
            rule: &self.overrides[per_unit.unit as usize],
            key: Key::of(entries.iter().flat_map(|&(key, value)| [key, value])),
            allowance: Allowance::Limited(per_unit.fixed_window()?),
            per_unit: Some(per_unit),
            replaced: false,
            domain: self,
            entries,
            descriptor: None,
        })
    }

    /// Descends one level for each entry, and passes on how it matched. `None` if an entry matches nothing.
    pub(super) fn walk<'d, 'e>(
        &'d self,
        entries: Entries<'e>,
        mut step: impl FnMut(&'d Descriptor, MatchKind, (&'e str, &'e str)),
    ) -> Option<&'d Descriptor> {
        let (mut level, mut reached) = (&self.top, None);
        let mut buffer = Joined::default();
        for &(key, value) in entries {
            let composite = buffer.join(key, value);
            let (descriptor, by) = if let Some(exact) = level.get(composite) {
                (exact, MatchKind::KeyAndValue)
            } else if let Some(pattern) = level.pattern(composite) {
                (pattern, MatchKind::Pattern)
            } else {
                (level.get(key)?, MatchKind::Key)
            };
            step(descriptor, by, (key, value));
            (level, reached) = (&descriptor.below, Some(descriptor));
        }
        reached
    }
}

/// A key and a value joined as in files, without an allocation if they are short.
#[derive(Default)]
struct Joined(SmallVec<[u8; 120]>);

impl Joined {
    fn join(&mut self, key: &str, value: &str) -> &str {
        self.0.clear();
        for part in [key, "_", value] {
            self.0.extend_from_slice(part.as_bytes());
        }
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Marks the descriptors that others of the same request replace, by name. A replaced descriptor still replaces others. An
/// unlimited one is not replaced.
pub fn mark_replaced(found: &mut [Option<DescriptorMatch<'_, '_>>]) {
    let replaced: SmallVec<[&str; 4]> = found.iter().flatten().flat_map(DescriptorMatch::replaces).collect();
    if replaced.is_empty() {
        return;
    }
    for found in found.iter_mut().flatten() {
        let limited = matches!(found.allowance, Allowance::Limited(_));
        found.replaced = limited && !found.name().is_empty() && replaced.contains(&found.name());
    }
}
