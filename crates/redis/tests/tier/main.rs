//! The tier in front of a store: what is answered from memory, and that it is what the store would have said.
//!
//! [`contract`] puts it through the suite that every store must pass, [`differential`] through random traffic beside a
//! store without it, [`fleet`] through what other nodes do behind its back, [`flood`] through attacks, [`blocked`] through
//! one against a real server, and [`shadowed`] through rules in the shadow there. [`leases`] has what a node decides from leases,
//! [`returned_leases`] what it returns, [`lease_numbers`] what its decisions say, [`leased_fleet`] random traffic over several nodes
//! that lease, lose calls and crash, [`blocks`] and [`block_traces`] the same for slots, and [`hot_keys`] the keys that the store is called for all the same.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod block_traces;
mod blocked;
mod blocks;
mod contract;
mod differential;
mod fleet;
mod flood;
mod hot_keys;
mod lease_numbers;
mod leased_fleet;
mod leases;
mod nodes;
mod redis_server;
mod returned_leases;
mod shadowed;
mod support;
