//! One limit for the fleet: state in Redis, Valkey or Redis Cluster.

pub mod tier;
