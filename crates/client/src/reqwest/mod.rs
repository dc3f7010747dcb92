//! Adapters for `reqwest` and `reqwest-middleware`.

mod call;
mod client;
#[cfg(feature = "reqwest-middleware")]
mod middleware;

pub use client::ReqwestClient;
#[cfg(feature = "reqwest-middleware")]
pub use middleware::ReqwestMiddleware;
