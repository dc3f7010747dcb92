//! A limiter over real servers that are killed, frozen, paused, flushed, filled, failed over and cut off under load, with a
//! rule for each policy.
//!
//! In each case: nobody waits for longer than the deadline, each rule does what it says, no client is admitted more than
//! is promised, and the store decides again by itself. What was measured is printed, for `docs/failure-modes.md`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod clusters;
mod crowd;
mod network;
mod sentinels;
mod standalone;
