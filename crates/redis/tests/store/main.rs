//! The store in Redis, on a real server. Random traces also run on the server in this process, which simulations use.
//!
//! For a hundred times as many random traces: `TIMES=100 cargo test -p tidegate-redis --test store differential`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod contract;
mod differential;
mod keyspace;
mod lease_acts;
mod leased_keys;
#[path = "../../../core/tests/properties/limits.rs"]
#[allow(dead_code, reason = "the properties of the limits themselves use all of it")]
mod limits;
mod rare_traces;
#[path = "../support/redis_in_process/mod.rs"]
mod redis_in_process;
mod remote;
mod server;
mod shared_server;
#[path = "../../../core/tests/properties/traces.rs"]
#[allow(dead_code, reason = "the properties of the limits themselves use all of it")]
mod traces;
#[path = "../support/two_names.rs"]
mod two_names;

/// The secret that names keys, while it is rotated.
mod rotation {
    use tidegate_core::contract::seed::seeds;
    use tidegate_core::{ManualClock, Timestamp};

    use crate::{server, two_names};

    #[test]
    fn a_server_charges_both_names_of_a_key_or_none() {
        for seed in seeds(1..4) {
            let clock = ManualClock::at(Timestamp::from_secs(1_794_700_800));
            let store = server::store(&server::prefix(), clock.clone());
            server::runtime().block_on(two_names::both_names_are_charged_or_none(store, clock, seed, async |_| {}));
        }
    }
}
