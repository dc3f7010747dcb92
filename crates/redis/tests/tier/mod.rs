//! The tier in front of a store: requests that it answers from memory, and the equality of its answers to the store's.
//!
//! - [`contract`]: the suite that every store must pass; [`differential`]: random traffic, compared with a store without a tier.
//! - [`fleet`]: changes by other nodes; [`flood`]: attacks; [`denied_client`] and [`shadow_rules`]: both on a real server.
//! - [`leases`], [`returned_leases`], [`lease_numbers`]: decisions from leases, their return, and the numbers in decisions.
//! - [`leased_fleet`]: random traffic over several nodes that lease, lose calls and crash; [`blocks`], [`block_traces`]: the
//!   same for slots.
//! - [`adaptive_rate`]: limits that change all the time; [`hot_keys`]: keys that cause most calls to the store.

mod adaptive_rate;
mod allocations;
mod block_traces;
mod blocks;
mod contract;
mod denied_client;
mod differential;
mod fleet;
mod flood;
mod hot_keys;
mod lease_numbers;
mod leased_fleet;
mod leases;
mod many_keys;
mod nodes;
mod returned_leases;
mod shadow_rules;
mod support;

use crate::support::server;
