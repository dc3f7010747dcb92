//! The store in Redis, on a real server.

mod contract;
mod server;
