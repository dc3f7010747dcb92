//! Limits with write-behind: [`copies`] has what a node decides by itself, in virtual time, and [`fleets`] holds nodes on a real server
//! against the stated bound.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod copies;
mod fleets;
