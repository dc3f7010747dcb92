//! Pace: requests are held back so that the server need not deny them.

#[cfg(feature = "adaptive")]
mod capacity;
mod denial;
mod host;
mod limit;
mod routes;
mod service;
#[cfg(test)]
mod tests;
mod wait;

pub(crate) use denial::is_denied;
pub(crate) use host::HostPace;
pub(crate) use service::send_paced;
pub use service::{Pace, PaceLayer};
pub use wait::Paced;
pub(crate) use wait::Pacer;
