//! `regions`: shares of limits that regions own. Each region has its own store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tidegate_core::Limit;
use tidegate_core::regions::{AppliedShares, RegionShare, Share};

/// The default floor of regions.
pub(crate) const DEFAULT_FLOOR: Share = Share::percent(5);

/// The shares of regions in the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regions {
    /// The initial shares, by region. Their sum is at most the whole.
    pub shares: BTreeMap<String, Share>,
    /// The minimum share of each region.
    pub floor: Share,
    /// Whether shares are moved.
    pub moves: Moves,
}

/// Whether shares are moved between regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moves {
    /// By operators, or according to demand.
    #[default]
    Allowed,
    /// Never: the shares are those of the rules, without a record in the store.
    Never,
}

impl Regions {
    /// The initial share of a region, and its floor. `None` if it has no share.
    #[must_use]
    pub fn of(&self, region: &str) -> Option<RegionShare> {
        self.shares.get(region).map(|share| RegionShare::new(*share, self.floor))
    }
}

/// The regions of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum RegionChoice {
    /// Those of the file, if it has regions.
    #[default]
    OfFile,
    /// The rule's own.
    Own(Arc<Regions>),
    /// None: every region has the whole limit.
    Off,
}

/// A limit before it was replaced by a region's part of it.
#[derive(Clone, Debug)]
pub(crate) struct WholeLimit {
    pub(crate) limit: Limit,
    /// The share of the whole limit that a process may decide alone while the store is unavailable.
    pub(crate) alone: Option<Limit>,
    /// The share of the region.
    pub(crate) share: Share,
    /// The region; `None` if the node does not know its region.
    pub(crate) region: Option<Arc<str>>,
}

/// Displays the share: `60% of 20/s burst 50 in eu`.
impl fmt::Display for WholeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WholeLimit { limit, share, region, .. } = self;
        match region {
            Some(region) => write!(f, "{share} of {limit} in {region}"),
            None => write!(f, "{share} of {limit} in a region without a name"),
        }
    }
}

/// The region of a node, and the shares that the node applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionView {
    /// The region; `None` if it is not configured.
    pub region: Option<Arc<str>>,
    /// The shares of the record in the store. `None` without a record, so that the shares of the rules apply.
    pub applied: Option<AppliedShares>,
}
