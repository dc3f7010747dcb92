//! The engine of Tidegate: exact rate limits, and a store for their state.
//!
//! One limit over many keys takes two lines:
//!
//! ```
//! use tidegate_core::{Gate, Outcome};
//!
//! let gate = Gate::new("2/s".parse()?);
//! assert!(gate.check("alice").is_allowed());
//! assert!(gate.check("alice").is_allowed());
//! match gate.check("alice").outcome {
//!     Outcome::Allow { .. } => unreachable!("both were spent a moment ago"),
//!     Outcome::Deny { retry_after } => assert!(!retry_after.is_zero()),
//!     Outcome::TooLarge { max } => unreachable!("one is not more than {max}"),
//! }
//! # Ok::<(), tidegate_core::NotationError>(())
//! ```
//!
//! # Overview
//! A request becomes [`Charge`]s: each consists of a rule, a key, a limit and a cost. A [`Store`] decides a [`Question`] of
//! charges together, all or none. Each [`Limit`] maps the key's state and the present instant to a [`Decision`], and a
//! [`Verdict`] combines the decisions.
//!
//! ```
//! use tidegate_core::{Charge, Key, Limit, MemoryStore, RuleId, Verdict};
//!
//! let store = MemoryStore::new();
//! let (burst, quota) = (RuleId::new("burst"), RuleId::new("quota"));
//! let (per_second, per_day): (Limit, Limit) = ("10/s".parse()?, "fixed 1000/day".parse()?);
//! let key = Key::of(["acme", "alice"]);
//!
//! let charges = [Charge::new(&burst, &key, &per_second), Charge::new(&quota, &key, &per_day).cost(25)];
//! let answer = store.decide(&charges)?;
//! assert!(Verdict::of(&answer.decisions).is_allowed());
//! assert_eq!(answer.decisions[1].remaining, 975);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`guide`] covers the rest, example by example. Rules that match requests are in another crate, `tidegate-rules`.
//!
//! # Features
//! - `tsc` (default): [`SystemClock`] reads the processor's time-stamp counter, through `quanta`. Without it, every reading
//!   asks the operating system, which takes about twice as long.
//! - `contract`: the test suite that every store must pass.
//!
//! By default there are 35 other packages in `Cargo.lock`, of which 12 are compiled on Linux. With `default-features = false` there
//! are 13, of which 8 are compiled: `ahash` with four dependencies, `smallvec`, `pin-project-lite` and `libc`. The engine and its
//! results are the same.
//!
//! This crate contains no sockets, no HTTP types and no async runtime. Only [`SystemClock`] reads a clock; tests pass a
//! [`ManualClock`] and never wait.

pub mod adaptive;
mod charge;
mod clock;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod decision;
pub mod disclosure;
pub mod gate;
#[cfg(any(doc, doctest))]
pub mod guide;
mod key;
pub mod lease;
pub mod limit;
pub mod memory;
pub mod notation;
mod now_or_later;
mod permit;
pub mod priority;
mod question;
pub mod receipt;
mod receipt_id;
pub mod regions;
// Hidden modules are shared with Tidegate's other crates, and may change in any version.
#[doc(hidden)]
pub mod shares;
pub mod shed;
#[doc(hidden)]
pub mod sketch;
pub mod store;
pub mod time;
#[doc(hidden)]
pub mod varint;
mod verdict;
pub mod write_behind;

pub use charge::Charge;
pub use clock::{Clock, ManualClock, SystemClock};
pub use decision::{Decision, Outcome};
pub use gate::Gate;
pub use key::{Key, RuleId};
pub use limit::Limit;
pub use memory::MemoryStore;
pub use notation::NotationError;
pub use question::Question;
pub use receipt::{Receipt, Settlement};
pub use store::{Store, StoreError};
pub use time::{Micros, Timestamp};
pub use verdict::Verdict;

/// The crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
