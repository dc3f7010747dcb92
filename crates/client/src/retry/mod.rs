//! Retries.

mod attempts;
mod policy;
mod service;

pub(crate) use attempts::Retrier;
pub use policy::Idempotent;
#[cfg(feature = "reqwest")]
pub(crate) use policy::Next;
pub use service::{Retry, RetryLayer};
