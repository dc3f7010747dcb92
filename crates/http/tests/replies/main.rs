//! Replies: the headers, statuses and bodies that clients receive.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod headers;
mod refusals;
mod support;
mod upstream_limits;
