//! One limit for the fleet: state in Redis, Valkey or Redis Cluster.
//!
//! A request's charges are decided by one script ([`RedisStore`]), at one instant of the server's own clock, all or none.
//! What the script computes is what [`tidegate_core`]'s limits compute, to the last microsecond.

// What tests share with those in `tests/` knows the crate by its name.
#[cfg(test)]
extern crate self as tidegate_redis;

mod frame;
mod limits;
mod link;
mod names;
mod reply;
mod script;
mod store;

pub use frame::Frame;
pub use link::{Link, LinkError};
pub use names::{Names, PrefixError};
pub use store::RedisStore;
