//! A limiter with real servers that are killed, frozen, paused, flushed, filled, failed over and cut off under load, with a
//! rule for each policy.
//!
//! In each case, no request waits for longer than the deadline, each rule applies its policy, no client is admitted more
//! than is guaranteed, and the store decides again without intervention. The measurements are printed, for
//! `docs/failure-modes.md`.

mod clusters;
mod crowd;
mod network;
mod sentinels;
mod standalone;
