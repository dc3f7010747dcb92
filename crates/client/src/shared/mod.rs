//! A pace that a fleet shares: a limiter of Tidegate decides when a request may be sent.

mod admission;
#[cfg(feature = "reqwest")]
mod any;
mod layer;
mod reservation;

pub use admission::{RuleRefused, TooLarge};
#[cfg(feature = "reqwest")]
pub(crate) use any::{AnySharedPace, RequestHead};
pub use layer::{SharedPace, SharedPaceLayer};
#[cfg(feature = "reqwest")]
pub(crate) use reservation::RequestEnd;
pub use reservation::Reservation;
