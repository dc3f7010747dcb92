//! Pace: requests are delayed so that the server need not deny them.

#[cfg(feature = "adaptive")]
mod capacity;
mod common_limits;
mod denial;
mod host;
mod limit;
mod limit_key;
mod routes;
mod service;
#[cfg(test)]
mod tests;
mod turn;
mod wait;
mod waiting;

pub(crate) use denial::is_denied;
pub(crate) use host::HostPace;
pub(crate) use service::send_paced;
pub use service::{Pace, PaceLayer};
pub use wait::Paced;
pub(crate) use wait::Pacer;
