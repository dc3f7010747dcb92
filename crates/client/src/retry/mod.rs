//! Retries.

mod attempts;
mod policy;
mod service;

#[cfg(feature = "reqwest")]
pub(crate) use attempts::Judged;
pub(crate) use attempts::Retrier;
pub use policy::Idempotent;
pub use service::{Retry, RetryLayer};
