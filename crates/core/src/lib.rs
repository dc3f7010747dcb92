//! The engine of Tidegate: limits that are exact, and a store to keep them in.
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
//! # How it hangs together
//! A request becomes [`Charge`]s: which rule asks how much of whom. A [`Store`] decides them together, all or none, by
//! asking each [`Limit`] with the key's state and the present instant. Each limit answers with a [`Decision`], and a
//! [`Verdict`] combines them.
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
//! Nothing here knows of sockets, HTTP or an async runtime. Only [`SystemClock`] reads a clock; tests pass a
//! [`ManualClock`] and never wait.

mod body_number;
mod charge;
mod clock;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod date;
mod decimal;
mod decision;
mod disclosure;
mod divisor;
mod facts;
mod gate;
mod key;
pub mod limit;
mod limiter;
mod memory;
mod notation;
mod permit;
mod rate;
mod receipt;
pub mod rules;
mod store;
mod time;
mod verdict;
pub mod yaml;

pub use body_number::BodyNumber;
pub use charge::{Charge, groups};
pub use clock::{Clock, ManualClock, SystemClock};
pub use date::Date;
pub use decision::{Decision, Outcome};
pub use disclosure::{DenialKind, DenialStatus, Disclosure, QuotaUnit};
pub use facts::{Fact, Facts, Request, Values, syntax};
pub use gate::{Gate, Refusal};
pub use key::{Key, RuleId};
pub use limit::{Algorithm, Limit, LimitError, Recovery, State};
pub use limiter::{
    Asked, BroughtLimit, Charging, Condition, DecidedBy, DescriptorRuling, DescriptorsRuling, DomainTerms, Generation,
    Health, Hits, KeyRefusal, Limiter, Reports, ResetError, Ruled, Ruling, SecondNames, Spent, WithoutStore,
};
pub use memory::{DEFAULT_MAX_KEYS, MemoryStats, MemoryStore, RuleUsage};
pub use notation::NotationError;
pub use permit::Permit;
pub use rate::{LONGEST_PERIOD, Rate};
pub use receipt::{Held, Receipt, ReceiptId, ReceiptIdError, Settlement};
pub use store::{Adjustment, Answer, Decisions, Store, StoreError};
pub use time::{MAX_EXACT, Micros, Timestamp};
pub use verdict::Verdict;
