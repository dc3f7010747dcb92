//! One limit for the fleet: state in Redis, Valkey or Redis Cluster.
//!
//! A request's charges are decided by one script ([`RedisStore`]), at one instant of the server's own clock, all or none.
//! What the script computes is what [`tidegate_core`]'s limits compute, to the last microsecond. A [`link`] takes many
//! requests to the server at once and gives up on each when its deadline has passed; the [`tier`] in front remembers who
//! was denied. [`steering`] gives a fleet its rules.
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

// What tests share with those in `tests/` knows the crate by its name.
#[cfg(test)]
extern crate self as tidegate_redis;

mod frame;
mod limits;
pub mod link;
mod names;
mod reply;
mod script;
pub mod steering;
mod store;
pub mod tier;

pub use self::frame::Frame;
pub use self::link::{Link, LinkError, Settings, SettingsError};
pub use self::names::{Names, PrefixError};
pub use self::store::{GivenBack, RedisStore};
