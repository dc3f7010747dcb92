//! A guide to the crate, by example. This module has no code.
//!
//! # One limit
//! A [`Gate`](crate::Gate) enforces one limit for any number of keys. It is `Send` and `Sync`; share it by
//! reference or in an [`Arc`](std::sync::Arc).
//!
//! ```
//! use tidegate_core::{Gate, Limit};
//!
//! let gate = Gate::new(Limit::per_second(2));
//! assert!(gate.check("alice").is_allowed());
//! assert!(gate.check("alice").is_allowed());
//!
//! let denied = gate.check("alice");
//! assert!(denied.retry_after().is_some());
//! assert!(gate.check("bob").is_allowed());
//! ```
//!
//! # Keys
//! A key is text, bytes, a number, an address, or several parts. [`Key::GLOBAL`](crate::Key::GLOBAL) is the single
//! key of a limit that all requests share.
//!
//! ```
//! use std::net::IpAddr;
//!
//! use tidegate_core::{Gate, Key, Limit};
//!
//! let gate = Gate::new(Limit::per_minute(100));
//! gate.check("alice");
//! gate.check(b"\x00\x01");
//! gate.check(4711_u64);
//! gate.check(IpAddr::from([203, 0, 113, 7]));
//! gate.check(Key::of(["acme", "alice"]));
//! gate.check(Key::GLOBAL);
//! ```
//!
//! # Limits
//! [`Limit::per_second`](crate::Limit::per_second) and its siblings make token buckets. Every algorithm has a
//! [type of its own](crate::limit) and a notation that can be parsed and printed.
//!
//! ```
//! use tidegate_core::limit::SlidingWindow;
//! use tidegate_core::{Gate, Limit, Micros};
//!
//! let sliding = Gate::new(SlidingWindow::new(100, Micros::from_secs(60))?.into());
//! let parsed: Limit = "sliding 100/min".parse()?;
//! assert_eq!(sliding.limit(), &parsed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Costs
//! A request may cost more than one unit. A cost above the burst can never be admitted; the outcome is then
//! [`Outcome::TooLarge`](crate::Outcome::TooLarge).
//!
//! ```
//! use tidegate_core::{Gate, Limit, Outcome};
//!
//! let gate = Gate::new(Limit::per_second(10));
//! assert_eq!(gate.check_cost("alice", 7).remaining, 3);
//! assert_eq!(gate.check_cost("alice", 11).outcome, Outcome::TooLarge { max: 10 });
//! ```
//!
//! # Reservations and slots
//! A [`Permit`](crate::gate::Permit) holds an estimate until the real cost is known, or a slot of a concurrency limit.
//! Dropping a permit refunds what it holds.
//!
//! ```
//! use std::time::Duration;
//!
//! use tidegate_core::{Gate, Limit};
//!
//! let tokens = Gate::new(Limit::per_minute(10_000));
//! let call = tokens.reserve("alice", 4_000, Duration::from_secs(300))?;
//! call.settle(&[1_250]);
//! assert_eq!(tokens.peek("alice").remaining, 8_750);
//!
//! let uploads = Gate::new(Limit::concurrent(1));
//! let upload = uploads.slot("alice")?;
//! assert!(uploads.slot("alice").is_err());
//! drop(upload);
//! assert!(uploads.slot("alice").is_ok());
//! # Ok::<(), tidegate_core::gate::Refusal>(())
//! ```
//!
//! # Several limits, all or none
//! A [`Store`](crate::Store) decides several charges together. If one limit denies, none is charged.
//!
//! ```
//! use tidegate_core::{Charge, Key, Limit, MemoryStore, RuleId, Verdict};
//!
//! let store = MemoryStore::new();
//! let (burst, quota) = (RuleId::new("burst"), RuleId::new("quota"));
//! let (per_second, per_day) = (Limit::per_second(10), Limit::per_day(20));
//! let key = Key::from("alice");
//!
//! let cost = |cost| [Charge::new(&burst, &key, &per_second).cost(1), Charge::new(&quota, &key, &per_day).cost(cost)];
//! assert!(Verdict::of(&store.decide(&cost(15))?.decisions).is_allowed());
//! assert!(!Verdict::of(&store.decide(&cost(15))?.decisions).is_allowed());
//! # Ok::<(), tidegate_core::StoreError>(())
//! ```
//!
//! # Tests without waiting
//! Tests of time-dependent logic use a [`ManualClock`](crate::ManualClock).
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tidegate_core::{Gate, Limit, ManualClock, MemoryStore, Timestamp};
//!
//! let clock = ManualClock::at(Timestamp::from_secs(1_000));
//! let store = Arc::new(MemoryStore::with_clock(clock.clone()));
//! let gate = Gate::in_store(store, "logins", Limit::per_minute(1));
//! assert!(gate.check("alice").is_allowed());
//! assert!(!gate.check("alice").is_allowed());
//!
//! clock.advance(Duration::from_secs(60));
//! assert!(gate.check("alice").is_allowed());
//! ```
