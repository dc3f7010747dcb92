//! One limit for the fleet: state in Redis, Valkey or Redis Cluster.

pub mod tier;
mod frame;
pub mod link;

pub use self::frame::Frame;
pub use self::link::{Link, LinkError};
