//! One limit for the fleet: state in Redis, Valkey or Redis Cluster.
//!
//! A request's charges are decided by one script ([`RedisStore`]), at one instant of the server's own clock, all or none.
//! What the script computes is what [`tidegate_core`]'s limits compute, to the last microsecond. A [`link`] takes many
//! requests to the server at once and gives up on each when its deadline has passed; the [`tier`] in front remembers who
//! was denied.

// What tests share with those in `tests/` knows the crate by its name.
#[cfg(test)]
extern crate self as tidegate_redis;

mod frame;
mod limits;
pub mod link;
mod names;
mod reply;
mod script;
mod store;
pub mod tier;

pub use self::frame::Frame;
pub use self::link::{Link, LinkError, Settings, SettingsError};
pub use self::names::{Names, PrefixError};
pub use self::store::RedisStore;
