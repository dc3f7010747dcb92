//! The store in Redis, on a real server. Random traces also run on the server in this process, which simulations use.
//!
//! For a hundred times as many random traces: `TIMES=100 cargo test -p tidegate-redis --test tests store::differential`.

mod contract;
mod differential;
mod keyspace;
mod lease_acts;
mod leased_keys;
mod rare_traces;
mod remote;

mod shared_server;

use crate::support::redis_in_process;
use crate::support::server;
use crate::support::two_names;

/// The secret that names keys, while it is rotated.
mod rotation {
    use tidegate_core::contract::seed::seeds;
    use tidegate_core::{ManualClock, Timestamp};

    use crate::store::{server, two_names};

    #[test]
    fn a_server_charges_both_names_of_a_key_or_none() {
        for seed in seeds(1..4) {
            let clock = ManualClock::at(Timestamp::from_secs(1_794_700_800));
            let store = server::store(&server::prefix(), clock.clone());
            server::runtime().block_on(two_names::both_names_are_charged_or_none(store, clock, seed, async |_| {}));
        }
    }
}
