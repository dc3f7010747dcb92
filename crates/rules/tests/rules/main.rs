//! The language of rules files: what each thing that can be written means, and what is said of what cannot.
//!
//! [`support`] has the few words that the tests are written in. [`guide`] holds `docs/rules.md` against the reader, and
//! [`fuzz`] throws arbitrary bytes at it. For longer runs: `TIMES=100 cargo test -p tidegate-rules --test rules`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

mod support;

mod adapt;
mod allocations;
mod files;
mod fuzz;
mod guide;
mod hostile;
mod index;
mod keys;
mod limits;
mod long_form;
mod matching;
mod mistakes;
mod order;
mod paths;
mod regions;
mod rotation;
mod shed;
mod tiers;
mod upstreams;
mod warnings;
