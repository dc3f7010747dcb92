//! The language of rules files: the meaning of valid files, and the findings for invalid ones.
//!
//! [`support`] contains helpers. [`guide`] compares `docs/rules.md` with the reader, and [`fuzz`] tests it with arbitrary
//! bytes. For longer runs: `TIMES=100 cargo test -p tidegate-rules --test tests rules::`.

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
mod match_conditions;
mod mistakes;
mod order;
mod paths;
mod regions;
mod rotation;
mod shed;
mod tiers;
mod upstreams;
mod warnings;
