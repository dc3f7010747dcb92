//! Real Redis servers for tests and benchmarks: standalone, with TLS, behind Sentinel, in a Cluster. And a bucket that the
//! admissions of a fleet are held against ([`Admissions`]).
//!
//! Each server has free ports and its own folder, is polled until it answers, and is stopped when it is dropped. Servers
//! shared by all tests of a program are stopped when the program ends ([`reap_at_exit`]).
//!
//! Everything except the [`Proxy`] blocks while it waits for a server, so asynchronous tests that use it must run on
//! several threads (`#[tokio::test(flavor = "multi_thread")]`).

mod admissions;
mod cluster;
mod proxy;
mod reaper;
mod sentinel;
mod server;
#[cfg(feature = "tls")]
mod tls;

pub use self::admissions::{Admission, Admissions};
pub use self::cluster::{Cluster, NODE_TIMEOUT};
pub use self::proxy::{Break, FLOOD, Proxy};
pub use self::reaper::reap_at_exit;
pub use self::sentinel::{DOWN_AFTER, PRIMARY, Sentinels};
pub use self::server::{Flavour, Server, run_on};
#[cfg(feature = "tls")]
pub use self::tls::{Authority, TlsIdentity, TlsServer};
