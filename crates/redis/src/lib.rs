//! One limit for the fleet: state in Redis, Valkey or Redis Cluster.

mod frame;
pub mod link;
pub mod tier;

pub use self::frame::Frame;
pub use self::link::{Link, LinkError};
