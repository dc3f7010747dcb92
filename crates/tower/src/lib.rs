//! Tidegate in front of any HTTP service: one [`Layer`](tower_layer::Layer) for axum, tonic, hyper and whatever else
//! speaks [`http`].
//!
//! ```
//! use axum::{Router, routing::get};
//! use tidegate_tower::RateLimitLayer;
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_client("20/s burst 50".parse()?));
//! # Ok::<(), tidegate_core::NotationError>(())
//! ```
//!
//! A request is held against the rules before the service sees it. One that does not go ahead is answered here: 429 with
//! `Retry-After` and a problem body, or `RESOURCE_EXHAUSTED` with `RetryInfo` if it speaks gRPC. One that does goes to the
//! service, perhaps after a delay if a rule shapes traffic, and its response tells the client how it stands.
//!
//! # What is given back
//! Slots of concurrency limits are held until the *body* of the response has ended, failed or been dropped, and their
//! leases are renewed until then. Reserved costs are settled at the same moment: at what the service [says](ActualCost), or at
//! what its rule finds in the response as it passes (`settle: body:usage.total_tokens`), or else as they were taken. If there
//! is no response, because the client has gone away or the service has failed, slots, reserved costs and places in queues
//! are given back. A service that answers for somebody else can say that the request never got there ([`Unserved`]), or that it
//! may have got there and was not answered ([`Unanswered`]), and a connection that becomes something else keeps what it holds
//! ([`UpgradeHold`]).
//!
//! # What it needs
//! With a store in memory a decision is made on the spot: nothing is awaited, spawned or put in a box. Rules that shape or
//! limit concurrency, and stores elsewhere, need a tokio runtime.

mod aside;
mod body;
mod cost;
mod future;
mod hold;
mod identify;
mod layer;
mod meter;
mod missing_address;
mod peer;
mod reading;
mod request_body;
mod service;
mod settings;
mod unserved;
mod upgrade;
mod witness;

pub use body::ResponseBody;
pub use cost::ActualCost;
pub use future::ResponseFuture;
pub use identify::{ApiKeyHeader, Identify};
pub use layer::RateLimitLayer;
pub use peer::Peer;
pub use reading::{BodyReading, BodyReadingFuture, BodyReadingLayer};
pub use request_body::RequestBody;
pub use service::RateLimit;
pub use unserved::{Unanswered, Unserved};
pub use upgrade::UpgradeHold;
pub use witness::{Note, Unsettled, Witness};
