//! Limits with write-behind: [`copies`] tests the decisions of a single node, in virtual time, and [`fleets`] compares
//! nodes on a real server with the stated bound. [`stopping`] tests what a node reports when it stops.

mod copies;
mod fleets;
mod stopping;
