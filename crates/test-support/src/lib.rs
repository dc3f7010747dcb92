//! Shared by the tests and benchmarks of Tidegate.
//!
//! - [`redis`]: real servers, and a bucket that the admissions of a fleet are held against.
//! - [`limits`] and [`traces`]: random limits of every algorithm, and random operations on them.
//! - [`fuzz`]: tests that take arbitrary bytes.
//! - [`times`]: the number of random cases.
//! - [`until`], [`eventually`] and [`free_port`]: readiness of other processes.

#[cfg(feature = "fuzz")]
pub mod fuzz;
#[cfg(feature = "limits")]
#[allow(missing_docs, clippy::unwrap_used, reason = "generators for tests")]
pub mod limits;
mod ports;
#[cfg(feature = "redis")]
pub mod redis;
mod times;
#[cfg(feature = "limits")]
#[allow(missing_docs, clippy::unwrap_used, reason = "generators for tests")]
pub mod traces;
mod wait;

pub use self::ports::free_port;
pub use self::times::times;
pub use self::wait::{TIMEOUT, eventually, until};
