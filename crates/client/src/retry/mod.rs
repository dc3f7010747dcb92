//! Retries.

mod attempts;
mod policy;
mod service;

#[cfg(feature = "reqwest")]
pub(crate) use attempts::Attempts;
pub(crate) use attempts::Retrier;
pub use policy::Idempotent;
#[cfg(feature = "reqwest")]
pub(crate) use policy::NextStep;
pub use service::{Retry, RetryLayer};
