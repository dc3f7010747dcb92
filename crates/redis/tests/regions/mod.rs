//! Regions with real Redis servers, with proxies in between that cut one or both directions, and drivers that crash.

mod load;
mod lost_changes;
mod nodes;
mod rights;
mod share_transfers;
mod world;
