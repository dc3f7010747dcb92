//! The memory per key as reported by the server, including the expiry.

use redis::aio::MultiplexedConnection;
use tidegate_bench::report::{Report, Row, lowest};

use crate::peers::Scripted;
use crate::server::Server;
use crate::throughput::Rules;

pub async fn measure(report: &mut Report, server: &Server) {
    server.flush().await;
    let mut connection = server.connection().await;
    // A name as long as Tidegate's.
    Scripted::new(connection.clone()).await.check("tidegate:{client-1234567}:api", 1, 200).await;
    let hash = bytes_a_key(&mut connection).await;
    let mut rows = Vec::new();
    for (name, notation) in [
        ("token bucket", "100/s burst 200"),
        ("GCRA", "gcra 100/s burst 200"),
        ("meter", "meter 100/s burst 200"),
        ("shaper", "shaper 100/s queue 200"),
        ("fixed window", "fixed 100/min"),
        ("sliding window", "sliding 100/min"),
        ("sliding log, 1 entry", "log 100/min"),
        ("concurrency, 1 slot", "concurrent 10 ttl 60s"),
    ] {
        server.flush().await;
        Rules::named("api", notation).check(&server.store(), "client-1234567").await;
        let ours = bytes_a_key(&mut connection).await;
        rows.push(Row::smaller_is_better(format!("bytes a key, {name}"), ours, "a hash of two fields", hash, "bytes"));
    }
    report.section("Memory in Redis", lowest("redis/bytes", rows));
}

/// Memory of the only key.
async fn bytes_a_key(connection: &mut MultiplexedConnection) -> f64 {
    let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(connection).await.expect("names");
    let mut sum = 0;
    for name in names {
        let bytes: u64 = redis::cmd("MEMORY").arg("USAGE").arg(name).query_async(connection).await.expect("a number");
        sum += bytes;
    }
    sum as f64
}
