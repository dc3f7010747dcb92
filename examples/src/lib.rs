//! One short program for each use of Tidegate, in `src/bin`. Run one with `cargo run -p tidegate-examples --bin NAME`:
//!
//! | name | what it shows |
//! |---|---|
//! | `quickstart` | real decisions by every algorithm |
//! | `three_limits` | several limits on one request, all or none |
//! | `llm_budget` | reserve an estimate, settle at the real cost |
//! | `concurrency_guard` | a bound on concurrent work, with slots that are released even on a panic |
//! | `shaping` | outbound calls at a steady pace |
//! | `axum_service` | an axum service behind rules, with a budget that is settled |
//! | `llm_service` | a language model's requests, tokens, money and streams, from JSON bodies and event streams |
//! | `tonic_service` | a gRPC service behind one limit |
//! | `hyper_service` | plain hyper behind one limit |
//! | `client_hyper`, `client_reqwest`, `client_tonic` | calls that keep to the limits of a service |
//!
//! Each program asserts its claims before it ends. The tests run all of them, and check the guides in `docs`: notation
//! parses, traces match the engine's answers, and snippets compile and run.

#[cfg(doctest)]
#[doc = include_str!("../../docs/choosing-an-algorithm.md")]
struct Guide;

#[cfg(doctest)]
#[doc = include_str!("../../docs/middleware.md")]
struct Middleware;

#[cfg(doctest)]
#[doc = include_str!("../../docs/from-governor.md")]
struct FromGovernor;

#[cfg(doctest)]
#[doc = include_str!("../../docs/shedding.md")]
struct Shedding;

#[cfg(doctest)]
#[doc = include_str!("../../docs/client.md")]
struct Client;

use std::io;
use std::net::SocketAddr;

use axum::Router;
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;

/// Serves `app` on a free port behind a limit per client, for programs that show how to call a limited service. Returns
/// its address.
///
/// # Errors
/// If the limit is malformed, or no port is free.
pub async fn serve_limited(app: Router, limit: &str) -> io::Result<SocketAddr> {
    let limit = limit.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = app.layer(RateLimitLayer::per_client(limit)).into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(address)
}
