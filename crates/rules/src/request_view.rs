//! A request as rules see it, with one spelling for each value.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

use super::fact_name::FactName;
use super::index::IndexLookup;
use super::path::normalize;
use super::tiers::{StoredTiers, Tiers};
use crate::facts::{Fact, Facts, Values};

/// A request as rules see it: normalised path, known tier, canonical address.
pub(super) struct RequestView<'f, F: ?Sized> {
    pub(super) facts: &'f F,
    tiers: &'f Tiers,
    stored: Option<StoredTiers<'f>>,
    /// Computed on first use, like the tier.
    path: OnceCell<Cow<'f, str>>,
    tier: OnceCell<Values<'f>>,
    address: Option<IpAddr>,
}

impl<'f, F: Facts + ?Sized> RequestView<'f, F> {
    pub(super) fn new(facts: &'f F, tiers: &'f Tiers, stored: Option<StoredTiers<'f>>) -> RequestView<'f, F> {
        let address = facts.address().map(|address| address.to_canonical());
        RequestView { facts, tiers, stored, path: OnceCell::new(), tier: OnceCell::new(), address }
    }

    pub(super) fn tier(&self) -> &Values<'f> {
        self.tier.get_or_init(|| self.tiers.of(self.facts, self.stored))
    }

    pub(super) const fn known_address(&self) -> Option<IpAddr> {
        self.address
    }

    pub(super) fn normal_path(&self) -> &Cow<'f, str> {
        self.path.get_or_init(|| match self.facts.get(Fact::Path) {
            Some(Cow::Borrowed(path)) => normalize(path),
            Some(Cow::Owned(path)) => Cow::Owned(normalize(&path).into_owned()),
            None => Cow::Borrowed("/"),
        })
    }

    /// The values of a fact for conditions. An unusual spelling of a cookie or of credentials is included too: a condition
    /// holds if it holds for either spelling.
    pub(super) fn values(&self, name: &FactName) -> Values<'f> {
        let canonical = self.canonical_values(name);
        if !name.is_matched_as_written() || canonical.is_none() {
            return canonical;
        }
        let written = self.facts.values(name.as_fact());
        if canonical == written {
            return canonical;
        }
        let unusual = canonical.iter().zip(&written).filter(|(canonical, written)| canonical != written);
        written.iter().chain(unusual.map(|(canonical, _)| canonical)).cloned().collect()
    }

    /// The values of a fact for keys, in their canonical spelling.
    pub(super) fn canonical_values(&self, name: &FactName) -> Values<'f> {
        match name {
            FactName::Tier => self.tier().clone(),
            FactName::Host | FactName::Method | FactName::Cookie(_) | FactName::Header(_) => {
                self.facts.values(name.as_fact()).map(|value| name.canonical(value))
            }
            _ => self.facts.values(name.as_fact()),
        }
    }
}

impl<F: Facts + ?Sized> IndexLookup for RequestView<'_, F> {
    fn path(&self) -> &str {
        self.normal_path()
    }

    fn values(&self, fact: &FactName) -> Values<'_> {
        self.values(fact)
    }

    fn address(&self) -> Option<IpAddr> {
        self.address
    }
}
