//! What HTTP means to Tidegate: client addresses, numbers in bodies, replies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so and stops")]

mod clients;
mod fuzz;
mod json;
mod replies;
