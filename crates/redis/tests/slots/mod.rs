//! The store in a cluster, with requests whose charges are in several slots.

mod contract;
mod denied_slots;
mod failures;
mod leases;
mod memory_equivalence;
mod node_death;
mod shared;
mod spenders;

use crate::support::two_names;

/// The secret that names keys, while it is rotated: the two names of a key are in different slots.
mod rotation {
    use tidegate_core::contract::seed::seeds;
    use tidegate_core::{ManualClock, Timestamp};

    use crate::slots::{shared, two_names};

    #[test]
    fn a_cluster_charges_both_names_of_a_key_or_none() {
        for seed in seeds(1..4) {
            let clock = ManualClock::at(Timestamp::from_secs(1_794_700_800));
            let store = shared::store(&shared::prefix(), clock.clone());
            let settled = async |store: &tidegate_redis::RedisStore| shared::all_given_back(store).await;
            shared::runtime().block_on(two_names::both_names_are_charged_or_none(store, clock, seed, settled));
        }
    }
}
