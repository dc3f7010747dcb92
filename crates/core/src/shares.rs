//! Division of a capacity among several parties: regions of a fleet, or the proxies of a quota service.
//!
//! Amounts are integers. To divide more finely, count in smaller units. A division never exceeds the capacity, never gives
//! a party more than it wants, and leaves nothing over that a party wants.
//!
//! ```
//! use tidegate_core::shares::{Want, fair, proportional};
//!
//! // Hundredths, of 120.
//! let wants = [1000, 50, 10].map(|want| Want::new(want * 100));
//! assert_eq!(fair(12_000, &wants), [6_000, 5_000, 1_000]);
//! assert_eq!(proportional(12_000, &wants), [6_969, 4_031, 1_000]);
//! ```

/// The demand of one party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The amount that it could use.
    pub amount: u64,
    /// The weight of the party. A party of weight 2 has the claim of two parties of weight 1. A party of weight 0 gets
    /// nothing.
    pub weight: u32,
}

impl Want {
    /// A demand of weight 1.
    #[must_use]
    pub const fn new(amount: u64) -> Want {
        Want { amount, weight: 1 }
    }

    /// The same demand with another weight.
    #[must_use]
    pub const fn weight(self, weight: u32) -> Want {
        Want { weight, ..self }
    }
}

/// Divides `capacity` fairly: each party gets what it wants, up to a level per unit of weight that is the same for all.
///
/// A party that gets less than it wants could get more only if another party with the same or a smaller share for its
/// weight got less.
#[must_use]
pub fn fair(capacity: u64, wants: &[Want]) -> Vec<u64> {
    let mut shares = vec![0; wants.len()];
    let mut left = capacity;
    let mut open: Vec<usize> = (0..wants.len()).filter(|&party| wants[party].weight > 0).collect();
    // Parties that want the least for their weight come first. What they leave is available to the rest.
    open.sort_by(|&one, &other| {
        let (one, other) = (wants[one], wants[other]);
        let cross = |amount: u64, weight: u32| u128::from(amount) * u128::from(weight);
        cross(one.amount, other.weight).cmp(&cross(other.amount, one.weight))
    });
    let mut weights: u64 = open.iter().map(|&party| u64::from(wants[party].weight)).sum();
    while let Some(&party) = open.first() {
        let Want { amount, weight } = wants[party];
        // Whether the party wants no more than its part of the remaining capacity.
        if u128::from(amount) * u128::from(weights) > u128::from(left) * u128::from(weight) {
            break;
        }
        shares[party] = amount;
        left -= amount;
        weights -= u64::from(weight);
        open.remove(0);
    }
    let of_open: Vec<u64> = open.iter().map(|&party| u64::from(wants[party].weight)).collect();
    for (&party, share) in open.iter().zip(divide(left, &of_open)) {
        shares[party] = share.min(wants[party].amount);
    }
    shares
}

/// Divides `capacity` by demand: each party has a claim to a part in proportion to its weight. What some parties leave of
/// their parts goes to the others, in proportion to what they want beyond their parts.
#[must_use]
pub fn proportional(capacity: u64, wants: &[Want]) -> Vec<u64> {
    let equal = divide(capacity, &wants.iter().map(|want| u64::from(want.weight)).collect::<Vec<_>>());
    let taken = |want: &Want, equal: u64| if want.weight == 0 { 0 } else { want.amount.min(equal) };
    let shares: Vec<u64> = wants.iter().zip(&equal).map(|(want, &equal)| taken(want, equal)).collect();
    let excess: Vec<u64> =
        wants.iter().zip(&shares).map(|(want, share)| if want.weight == 0 { 0 } else { want.amount - share }).collect();
    let wanted = excess.iter().fold(0_u64, |sum, &excess| sum.saturating_add(excess));
    let extra = capacity - shares.iter().sum::<u64>();
    let more = if extra >= wanted { excess } else { divide(extra, &excess) };
    shares.iter().zip(more).map(|(share, more)| share + more).collect()
}

/// Divides `amount` completely in proportion to weights: parts are rounded down, and the remaining units go to the parties
/// that lost the most by rounding, in order among equals. All parts are 0 if all weights are 0.
#[must_use]
pub fn divide(amount: u64, weights: &[u64]) -> Vec<u64> {
    let total: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    let exact = |weight: u64| u128::from(amount) * u128::from(weight);
    let mut parts: Vec<u64> =
        weights.iter().map(|&weight| u64::try_from(exact(weight) / total).unwrap_or(amount)).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&party| std::cmp::Reverse(exact(weights[party]) % total));
    let left = amount - parts.iter().sum::<u64>();
    for &party in order.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        parts[party] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amounts(wants: &[u64]) -> Vec<Want> {
        wants.iter().map(|&want| Want::new(want)).collect()
    }

    #[test]
    fn the_table_of_doorman_is_reproduced() {
        let wants = amounts(&[100_000, 5_000, 1_000]);
        assert_eq!(fair(12_000, &wants), [6_000, 5_000, 1_000]);
        assert_eq!(proportional(12_000, &wants), [6_969, 4_031, 1_000]);
    }

    #[test]
    fn everybody_gets_what_they_want_if_there_is_enough() {
        let wants = amounts(&[7, 0, 20]);
        assert_eq!(fair(30, &wants), [7, 0, 20]);
        assert_eq!(proportional(30, &wants), [7, 0, 20]);
        assert_eq!(fair(0, &wants), [0, 0, 0]);
        assert_eq!((fair(5, &[]), proportional(5, &[])), (vec![], vec![]));
    }

    #[test]
    fn weights_are_so_many_parties() {
        let wants = [Want::new(100).weight(3), Want::new(100), Want::new(100).weight(0)];
        assert_eq!(fair(80, &wants), [60, 20, 0]);
        assert_eq!(proportional(80, &wants), [60, 20, 0]);
    }

    #[test]
    fn the_last_unit_is_divided_too() {
        assert_eq!(divide(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(divide(100, &[60, 40]), [60, 40]);
        assert_eq!(divide(7, &[0, 0]), [0, 0]);
        assert_eq!(divide(u64::MAX, &[u64::MAX, u64::MAX]), [u64::MAX / 2 + 1, u64::MAX / 2]);
    }

    fn wants() -> impl Strategy<Value = Vec<Want>> {
        let amount = prop_oneof![0_u64..50, 0_u64..10_000, 0_u64..(1 << 53)];
        prop::collection::vec((amount, 0_u32..5).prop_map(|(amount, weight)| Want { amount, weight }), 0..12)
    }

    proptest! {
        #[test]
        fn nothing_is_handed_out_twice_or_in_vain(capacity in prop_oneof![0_u64..100, 0_u64..(1 << 53)], wants in wants()) {
            let wanted: u64 = wants.iter().filter(|want| want.weight > 0).map(|want| want.amount).sum();
            for shares in [fair(capacity, &wants), proportional(capacity, &wants)] {
                prop_assert_eq!(shares.iter().sum::<u64>(), capacity.min(wanted));
                for (share, want) in shares.iter().zip(&wants) {
                    prop_assert!(*share <= want.amount && (want.weight > 0 || *share == 0));
                }
            }
        }

        #[test]
        fn nobody_gets_less_than_an_equal_part(capacity in 0_u64..100_000, wants in wants()) {
            let weights: u64 = wants.iter().map(|want| u64::from(want.weight)).sum();
            for shares in [fair(capacity, &wants), proportional(capacity, &wants)] {
                for (share, want) in shares.iter().zip(&wants).filter(|(_, want)| want.weight > 0) {
                    let equal = capacity * u64::from(want.weight) / weights;
                    prop_assert!(*share >= want.amount.min(equal), "{} of {:?}, equal {}", share, want, equal);
                }
            }
        }

        #[test]
        fn a_fair_share_takes_nothing_from_those_with_less(capacity in 0_u64..100_000, wants in wants()) {
            let shares = fair(capacity, &wants);
            for (share, want) in shares.iter().zip(&wants).filter(|(share, want)| want.weight > 0 && **share < want.amount) {
                for (other, its) in shares.iter().zip(&wants).filter(|(_, its)| its.weight > 0) {
                    // Allows for one unit of rounding each, because parts are integers.
                    let (here, there) = (u128::from(*share + 1) * u128::from(its.weight), u128::from(other.saturating_sub(1)) * u128::from(want.weight));
                    prop_assert!(here >= there, "{} of {:?} beside {} of {:?}", share, want, other, its);
                }
            }
        }
    }
}
