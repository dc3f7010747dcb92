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
