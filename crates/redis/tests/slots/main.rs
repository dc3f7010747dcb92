//! The store in a cluster, with requests whose charges are in several slots.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod contract;
mod denied_slots;
mod failures;
mod leases;
#[path = "../../../core/tests/properties/limits.rs"]
#[allow(dead_code, reason = "the properties of the limits themselves use all of it")]
mod limits;
mod memory_equivalence;
mod node_death;
mod shared;
mod spenders;
#[path = "../../../core/tests/properties/traces.rs"]
#[allow(dead_code, reason = "the properties of the limits themselves use all of it")]
mod traces;
#[path = "../support/two_names.rs"]
mod two_names;

/// The secret that names keys, while it is rotated: the two names of a key are in different slots.
mod rotation {
    use tidegate_core::contract::seed::seeds;
    use tidegate_core::{ManualClock, Timestamp};

    use crate::{shared, two_names};

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
