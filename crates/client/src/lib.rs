//! The client side of rate limits: clients that respect limits and retry within a budget.
//!
//! A [`ClientLayer`] is tower middleware for any service of [`http`] requests, such as hyper-util's client and tonic's
//! channel. It waits as long as servers ask for, paces itself so that requests need not be denied, and retries within a
//! budget.
//!
//! ```
//! use tidegate_client::ClientLayer;
//! use tower::{ServiceBuilder, service_fn};
//! # let http = service_fn(|_: ()| async { Ok::<_, ()>(()) });
//!
//! let client = ServiceBuilder::new().layer(ClientLayer::new()).service(http);
//! ```
//!
//! | part | alone | does |
//! |---|---|---|
//! | retry | [`RetryLayer`] | retries denied and failed requests after the [requested](Hint) or a random wait ([`Backoff`]) |
//! | budget | [`Budget`] | limits retries to a tenth of the requests |
//! | pace | [`PaceLayer`] | learns the [limits] of each host from its responses, and stays within them |
//! | throttle | [`ThrottleLayer`] | sends less to hosts that refuse most requests; off by default |
//!
//! # Requests
//! Extensions of a request provide more information: its [`Deadline`], whether it is [`Idempotent`], the [`Partition`] in
//! which the server counts it, how many [`Tokens`] of a language model it will use, and its `Priority` (feature
//! `adaptive`).
//!
//! # Features
//! None is on by default.
//! - `adaptive`: `ClientLayer::concurrency`, a limit on requests in flight that follows the capacity of each host.
//! - `hyper-util`: recognises all connections that hyper-util's client failed to make; without it, only those that were
//!   refused.
//! - `reqwest`: `ReqwestClient`, a `reqwest::Client` with all parts around it.
//! - `reqwest-middleware`: `ReqwestMiddleware`, the same as a middleware.
//! - `shared`: `SharedPaceLayer`, a pace that a fleet shares, decided by a limiter of Tidegate.
//! - `tonic`: recognises all connections that tonic's channel never made; without it, those that were refused.
//!
//! # Time
//! Waits need a Tokio runtime with its timer. All parts get the time from a [`Clock`], so tests run in Tokio's paused time.

mod backoff;
mod budget;
mod clock;
#[cfg(feature = "adaptive")]
mod concurrency;
mod counters;
mod deadline;
mod environment;
mod grpc;
mod hint;
mod hosts;
mod layer;
pub mod limits;
mod pace;
mod partition;
mod recent_counts;
mod replay;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retry;
mod send;
#[cfg(feature = "shared")]
mod shared;
mod throttle;
mod throttle_service;
mod times;
mod tokens;
mod unsent;

use std::error::Error;
use std::pin::Pin;

pub use backoff::Backoff;
pub use budget::Budget;
pub use clock::{Clock, SystemClock};
#[cfg(feature = "adaptive")]
pub use concurrency::HostBusy;
pub use counters::{HostSnapshot, LimitStanding, Snapshot};
pub use deadline::{Deadline, DeadlineExceeded};
pub use hint::{Hint, HintSource};
pub use layer::ClientLayer;
pub use pace::{Pace, PaceLayer, Paced};
pub use partition::Partition;
pub use replay::ReplayBody;
#[cfg(feature = "reqwest")]
pub use reqwest::ReqwestClient;
#[cfg(feature = "reqwest-middleware")]
pub use reqwest::ReqwestMiddleware;
pub use retry::{Idempotent, Retry, RetryLayer};
#[cfg(feature = "shared")]
pub use shared::{Reservation, RuleRefused, SharedPace, SharedPaceLayer, TooLarge};
pub use throttle::Throttle;
pub use throttle_service::{ThrottleLayer, ThrottleService, Throttled};
#[cfg(feature = "adaptive")]
pub use tidegate_core::priority::Priority;
pub use tokens::Tokens;
pub use unsent::Unsent;

/// The error type of the services: boxed, as in tower. Contains the error of the inner service, [`Paced`], [`Throttled`],
/// [`DeadlineExceeded`], `HostBusy` (feature `adaptive`), or `TooLarge` or `RuleRefused` (feature `shared`).
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The future type of the services.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
