//! Renewals of leases in random traces.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use tidegate_core::Limit;
use tidegate_core::lease::{LeaseGeneration, Renewal};

use tidegate_test_support::traces::{Cost, costs};

/// Limits that can be leased, most of which recover in a few epochs.
pub(crate) fn leasable() -> impl Strategy<Value = Limit> {
    let buckets = (select(vec!["", "gcra ", "meter "]), select(vec![1, 7, 100, 999, 50_000]), 1_u64..20, 0_u64..50)
        .prop_map(|(kind, rate, seconds, more)| format!("{kind}{rate}/s burst {}", rate * seconds + more));
    let spans = select(vec!["s", "3s", "7s", "30s", "2h", "day"]);
    let fixed = (1_u64..2_000, spans.clone()).prop_map(|(count, span)| format!("fixed {count}/{span}"));
    let calendar = (1_u64..2_000).prop_map(|count| format!("fixed {count}/week calendar"));
    let sliding = (1_u64..2_000, spans, select(vec![1, 2, 4, 10]))
        .prop_map(|(count, span, parts)| format!("sliding {count}/{span} parts {parts}"));
    prop_oneof![4 => buckets, 2 => fixed, 1 => calendar, 2 => sliding].prop_map(|text| text.parse().unwrap())
}

/// A renewal, relative to the tokens that some node holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenewalAct {
    pub(crate) rule: Index,
    pub(crate) key: Index,
    pub(crate) limit: Index,
    /// The lease of the key that the renewal reports, if any.
    which: Option<Index>,
    /// This many 64ths of the tokens, and of the rest.
    used: u64,
    returned: u64,
    /// Tokens that were never granted.
    invented: u64,
    /// Whether the node discards its lease, or reports it again later.
    is_kept: bool,
    wanted: Cost,
    least: u64,
    demand: u64,
    is_counted: bool,
    claims: bool,
}

pub(crate) fn renewals() -> impl Strategy<Value = RenewalAct> {
    let place = (any::<Index>(), any::<Index>(), any::<Index>());
    let which = prop::option::weighted(0.7, any::<Index>());
    let report = (0_u64..=64, 0_u64..=64, prop_oneof![9 => Just(0_u64), 1 => 1_u64..50], prop::bool::weighted(0.1));
    let wishes = (costs(), prop_oneof![3 => Just(0_u64), 3 => Just(1), 1 => 2_u64..40]);
    let demand = (prop_oneof![1 => Just(0_u64), 6 => 1_u64..2_000, 1 => Just(u64::MAX)], any::<bool>());
    (place, which, report, wishes, demand, prop::bool::weighted(0.1)).prop_map(
        |(
            (rule, key, limit),
            which,
            (used, returned, invented, is_kept),
            (wanted, least),
            (demand, is_counted),
            claims,
        )| {
            RenewalAct {
                rule,
                key,
                limit,
                which,
                used,
                returned,
                invented,
                is_kept,
                wanted,
                least,
                demand,
                is_counted,
                claims,
            }
        },
    )
}

/// The tokens that a node holds of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) rule: usize,
    pub(crate) key: usize,
    pub(crate) generation: LeaseGeneration,
    pub(crate) tokens: u64,
}

impl RenewalAct {
    /// The renewal under a limit. Removes the lease that it reports from those that nodes hold of the key.
    pub(crate) fn renewal(&self, limit: &Limit, place: (usize, usize), leases: &mut Vec<Lease>) -> Renewal {
        let of_key = |lease: &Lease| (lease.rule, lease.key) == place;
        let places: Vec<usize> = (0..leases.len()).filter(|&index| of_key(&leases[index])).collect();
        let lease = self.which.filter(|_| !places.is_empty()).map(|which| {
            let index = places[which.index(places.len())];
            if self.is_kept { leases[index] } else { leases.swap_remove(index) }
        });
        let tokens = lease.map_or(0, |lease| lease.tokens);
        let used = tokens * self.used / 64;
        let returned = (tokens - used) * self.returned / 64;
        Renewal {
            generation: lease.map(|lease| lease.generation),
            used: used + self.invented,
            kept: tokens - used - returned,
            returned,
            wanted: self.wanted.of(limit),
            least: self.least,
            demand: self.demand,
            demand_counted: lease.filter(|_| self.is_counted).map(|lease| lease.generation.epoch),
            claims: self.claims,
            server_generation: 0,
        }
    }
}
