//! Real Redis servers for tests and benchmarks: standalone, with TLS, behind Sentinel, in a Cluster.
//!
//! Each server has free ports and a folder of its own, is polled until it answers, and ends when it is dropped. Servers
//! that all tests of a program share end with the program ([`reap_at_exit`]).
//!
//! Everything but the [`Proxy`] blocks while it waits for a server, so asynchronous tests that use it run on several
//! threads (`#[tokio::test(flavor = "multi_thread")]`).

mod cluster;
mod ports;
mod proxy;
mod reaper;
mod sentinel;
mod server;
#[cfg(feature = "tls")]
mod tls;
mod wait;

pub use self::cluster::{Cluster, NODE_TIMEOUT};
pub use self::ports::free_port;
pub use self::proxy::{Break, FLOOD, Proxy};
pub use self::reaper::reap_at_exit;
pub use self::sentinel::{DOWN_AFTER, PRIMARY, Sentinels};
pub use self::server::{Flavour, Server, run_on};
#[cfg(feature = "tls")]
pub use self::tls::{Authority, TlsIdentity, TlsServer};
pub use self::wait::{PATIENCE, eventually, until};
