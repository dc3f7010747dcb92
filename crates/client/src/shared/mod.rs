//! A pace shared by a fleet: a Tidegate limiter decides when a request may be sent.

mod admission;
#[cfg(feature = "reqwest")]
mod any;
mod error;
mod layer;
mod queues;
mod reservation;
mod to_the_end;

#[cfg(feature = "reqwest")]
pub(crate) use any::{AnySharedPace, RequestHead};
pub use error::{RuleRefused, TooLarge};
pub use layer::{SharedPace, SharedPaceLayer};
pub(crate) use queues::KeyQueues;
#[cfg(feature = "reqwest")]
pub(crate) use reservation::RequestEnd;
pub use reservation::Reservation;
