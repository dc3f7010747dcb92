//! Admissions beyond a limit by peers that trade exactness for fewer calls, as they publish them.
//!
//! | peer | what a node spends without asking | source |
//! |---|---|---|
//! | Bucket4j, delay optimisation | `maxUnsynchronizedTokens`, a parameter, by its last snapshot | <https://github.com/bucket4j/bucket4j/blob/master/bucket4j-core/src/main/java/io/github/bucket4j/distributed/proxy/optimization/DelayParameters.java> |
//! | Gubernator, `GLOBAL` | everything that comes in one `GlobalSyncWait`, 100 ms by default | <https://github.com/gubernator-io/gubernator/blob/master/docs/architecture.md>, `config.go` |
//! | Limitador, cached Redis | everything that comes in one flushing period, 1 s by default. "We can go over limits" | <https://github.com/Kuadrant/limitador/blob/main/limitador/src/storage/redis/redis_cached.rs> |
//!
//! Each of *n* nodes may spend the same rest of a limit by its own copy, so the fleet admits up to *n* − 1 times that too much. They are
//! not measured here: the first two run on the JVM and in Go. The Redis storage of the third (0.14) needs the headers of OpenSSL, and compiles
//! only together with its RocksDB storage.

use std::time::Duration;

/// A peer whose nodes decide without asking for a while.
pub struct Peer {
    pub name: &'static str,
    /// The time for which a node does not learn what the others have admitted.
    blind_for: Duration,
}

/// Users choose Bucket4j's parameter: here the tokens that a node spends between two renewals of a lease, which makes as many calls
/// of Redis.
pub const PEERS: [Peer; 3] = [
    Peer { name: "Bucket4j, delay: at most", blind_for: Duration::from_millis(200) },
    Peer { name: "Gubernator, GLOBAL: one sync wait", blind_for: Duration::from_millis(100) },
    Peer { name: "Limitador, cached Redis: one flush", blind_for: Duration::from_secs(1) },
];

impl Peer {
    /// Maximum admissions beyond a limit of this capacity by nodes with these rates: the blind admissions of all nodes but the largest.
    pub fn beyond(&self, rates: &[u64], capacity: u64) -> f64 {
        let blind = |rate: &u64| (*rate as f64 * self.blind_for.as_secs_f64()).min(capacity as f64);
        let all: f64 = rates.iter().map(blind).sum();
        all - rates.iter().map(blind).fold(0.0, f64::max)
    }
}

#[test]
fn one_node_alone_admits_nothing_beyond_the_limit() {
    for peer in PEERS {
        assert_eq!(peer.beyond(&[500], 1_000), 0.0);
        assert!(peer.beyond(&[500, 500], 1_000) > 0.0 && peer.beyond(&[500_000; 3], 1_000) == 2_000.0);
    }
}
