//! The link to Redis, tested with real servers that are healthy, failing and down.

mod caller_deadlines;
mod calls;
mod clusters;
mod counter_script;
mod events;
mod generations;
mod load;
mod outages;
mod oversized_replies;
mod refusals;
mod sentinels;
mod servers;
