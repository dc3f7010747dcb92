//! One limit for a whole fleet: state in Redis, Valkey or Redis Cluster.
//!
//! One script decides all charges of a request ([`RedisStore`]), at one instant of the server's clock, all or none. Its
//! results equal those of the limits of [`tidegate_core`], to the microsecond. A [`link`] batches requests and enforces
//! their deadlines. A [`tier`] in front of the store answers repeated denials from memory. [`fleet`] publishes rules to all
//! nodes.
//!
//! ```no_run
//! use tidegate_rules::{Limiter, Request, RuleSet};
//! use tidegate_redis::tier::Tier;
//! use tidegate_redis::{RedisStore, Settings};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = RuleSet::parse("rules.yaml", "rules: [{ id: api, key: user, limit: 20/s burst 50 }]")?.rules;
//! let store = RedisStore::open(Settings::standalone("redis://127.0.0.1:6379")?)?;
//! let limiter = Limiter::new(rules, Tier::new(store));
//! let ruling = limiter.check(&Request::new("GET", "/").user("alice")).await;
//! println!("allowed: {}", ruling.is_allowed());
//! # Ok(())
//! # }
//! ```

// Modules that unit tests share with `tests/` use the crate's name.
#[cfg(test)]
extern crate self as tidegate_redis;

pub mod fleet;
mod frame;
mod frame_draft;
mod join_all;
mod limits;
pub mod link;
mod names;
mod receipt_ids;
mod reply;
mod script;
mod slots;
mod store;
pub mod tier;
pub mod write_behind;

pub use self::frame::Frame;
pub use self::link::{Link, LinkError, Settings, SettingsError};
pub use self::names::{Names, PrefixError};
pub use self::slots::slot_of;
pub use self::store::{RedisStore, RefundCounts};

/// The crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
