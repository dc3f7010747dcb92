//! Fleet configuration: rules and modes that are published once and are in force on every node a moment later.
//!
//! An operator publishes the text of a rules file ([`FleetControl::publish_rules`]), or switches a rule to another mode
//! ([`FleetControl::publish_mode`]). Every follower ([`FleetControl::follow`]) checks the change, applies it within two
//! seconds, and reports its state ([`FleetControl::fleet`]). A follower has its own connection, so no request waits for any
//! of this.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tidegate_rules::{Limiter, Mode, RuleSet};
//! use tidegate_core::MemoryStore;
//! use tidegate_redis::Settings;
//! use tidegate_redis::fleet::{FleetControl, NodeIdentity, PublicationTarget};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let fleet = FleetControl::new(&Settings::standalone("redis://127.0.0.1")?)?;
//! let limiter = Arc::new(Limiter::new(RuleSet::default(), MemoryStore::new()));
//! let _following = fleet.follow(limiter, NodeIdentity::here(), |event| println!("{event:?}"))?;
//!
//! let text = "rules: [{ id: login, key: address, limit: 5/min }]";
//! let published = fleet.publish_rules("rules.yaml", text, "ann", None).await?;
//! fleet.publish_mode(&PublicationTarget::Rule("login".to_owned()), Some(Mode::Shadow), "ann", Some(published.version)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Users with few permissions
//! A node needs the keys and the channel `tidegate:{#steering}:*` (another prefix if one is set) and the commands
//! `+strlen +getrange +time +set +hset +zadd +zrem +zremrangebyscore +zcard +hmget +pexpire +del +multi +exec +subscribe`. A publisher
//! needs `+strlen +getrange +time +set +watch +multi +exec +publish`, `+zrange` to see the fleet, and `+hset +hdel +hmget +hscan` for the
//! tiers of API keys. `+hvals` is needed to move the shares of regions after demand, and
//! `+scan` with the permissions of a [store](crate::RedisStore) to move the rights of running windows, and `+cluster|nodes` in a cluster.

mod applied;
mod control;
mod error;
mod follower;
mod history;
mod keys;
mod merging_replication;
mod mode_change;
mod publication;
mod published;
mod region_balance;
mod region_demand;
mod region_driver;
mod region_follower;
mod region_init;
mod region_moves;
mod region_outcome;
mod region_record;
mod region_retirement;
mod region_rights;
mod region_transfers;
mod regions_error;
mod report;
mod session;
mod signature;
mod size;
mod state_keys;
mod stored_ledger;
mod tiers;

pub use self::control::FleetControl;
pub use self::error::{FleetError, PublishError};
pub use self::follower::{Event, Following, NoRuntime};
pub use self::history::{ChangeKind, PublishedChange};
pub use self::merging_replication::MergingReplication;
pub use self::mode_change::ModeChange;
pub use self::publication::{Publication, PublicationTarget};
pub use self::published::{Published, PublishedModes, PublishedRules, Switched};
pub use self::region_balance::BalanceStep;
pub use self::region_demand::{DemandSource, NodeDemand};
pub use self::region_driver::RegionsControl;
pub use self::region_follower::{FollowingRegion, RegionEvent};
pub use self::region_outcome::{Resumption, TakenBack, TransferOutcome};
pub use self::region_record::RegionRecord;
pub use self::region_retirement::{Inheritance, Retirement};
pub use self::regions_error::RegionsError;
pub use self::report::{Fleet, NodeError, NodeIdentity, NodeReport, NodeState};
pub use self::signature::Signature;
pub use self::tiers::ServingTiers;
