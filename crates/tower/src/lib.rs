//! Tidegate as tower middleware: one [`Layer`](tower_layer::Layer) for axum, tonic, hyper and any other service of [`http`]
//! requests.
//!
//! ```no_run
//! use std::error::Error;
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tidegate_tower::RateLimitLayer;
//! use tokio::net::TcpListener;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let app: Router = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .layer(RateLimitLayer::per_client("20/s burst 50".parse()?));
//!     let listener = TcpListener::bind("127.0.0.1:3000").await?;
//!     // Gives the layer the client's address.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//!     Ok(())
//! }
//! ```
//!
//! Each request is checked against the rules before the service sees it. A denied request gets 429 with `Retry-After` and a
//! problem body, or `RESOURCE_EXHAUSTED` with `RetryInfo` for gRPC. An allowed request goes to the service, delayed if a
//! rule shapes traffic, and its response carries rate-limit headers.
//!
//! # Release and settlement
//! Slots of concurrency limits are held until the *body* of the response has ended, failed or been dropped. Their leases
//! are renewed until then. Reserved costs are settled at that time: at the service's [`ActualCost`], or at the cost
//! that the rule reads from the response (`settle: body:usage.total_tokens`), or else at the estimate.
//!
//! If there is no response, because the client has disconnected or the service has failed, slots are released. Reserved
//! costs are released too, unless the request may have arrived. A queue place is released only while the request still
//! waits in it.
//!
//! A proxy can mark a response as [`Unserved`] (the request never reached its destination), [`Unanswered`] (it may have) or [`Shed`] (it
//! was refused under overload).
//! An upgraded connection keeps its slots with an [`UpgradeHold`].
//!
//! # Requirements
//! With a store in memory a decision is made synchronously: nothing is awaited, spawned or boxed. Rules that shape traffic
//! or limit concurrency, and remote stores, need a Tokio runtime.

mod adaptive;
mod admission;
mod body;
mod body_cost;
mod cleanup;
mod client_hash;
mod cost;
mod future;
mod hold;
mod identity;
mod in_flight;
mod layer;
mod meter;
mod missing_address;
mod observer;
mod overload_future;
mod peer;
mod permit_body;
mod rate_outcome;
mod reduced_capacity;
mod request_body;
mod request_priority;
mod response_markers;
mod runtime_load;
mod sample_outcome;
mod service;
mod settings;
mod shed;
mod upgrade;

pub use adaptive::{AdaptiveConcurrencyLayer, AdaptiveConcurrencyService};
pub use body::ResponseBody;
pub use body_cost::{BodyCost, BodyCostFuture, BodyCostLayer};
pub use client_hash::ClientHash;
pub use cost::ActualCost;
pub use future::ResponseFuture;
pub use identity::{ApiKeyHeader, Identify};
pub use layer::RateLimitLayer;
pub use observer::{Observer, SampleToken, Unsettled};
pub use overload_future::OverloadFuture;
pub use peer::Peer;
pub use permit_body::PermitBody;
pub use request_body::RequestBody;
pub use request_priority::request_priority;
pub use response_markers::{Shed, Unanswered, Unserved};
pub use runtime_load::record_runtime_load;
pub use sample_outcome::sample_outcome;
pub use service::RateLimit;
pub use shed::{PriorityShed, PriorityShedLayer};
pub use upgrade::UpgradeHold;

/// The crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
