//! The Redis-protocol listener of a server whose store is a Redis that becomes unavailable.

use std::time::Duration;

use redis::{Client, Connection};
use tidegate_test_support::redis::Server as Redis;

use crate::support::{Server, until};

/// A server with its state in this Redis, and a client.
fn server(redis: &Redis, args: &[&str]) -> (Server, Connection) {
    let url = redis.url();
    let own = ["--store-kind", "redis", "--store-redis-urls", &url];
    let server = Server::start(&[], &[&own[..], args].concat());
    until("the store", || (server.get("/readyz?store=required").status == 200).then_some(()));
    let client = Client::open(format!("redis://{}", server.listener("Redis"))).unwrap();
    let connection = client.get_connection().unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    (server, connection)
}

/// Whether the request is limited, and the remaining amount.
fn throttle(connection: &mut Connection) -> (i64, i64) {
    let told: Vec<i64> = redis::cmd("CL.THROTTLE").arg("alice").arg(2).arg(3).arg(86_400).query(connection).unwrap();
    (told[0], told[2])
}

#[test]
fn without_the_store_the_failure_policy_of_resp_decides() {
    for (policy, alone) in [
        // The whole limit remains, and nothing is counted.
        ("allow", [(0, 3), (0, 3), (0, 3), (0, 3)]),
        ("deny", [(1, 0), (1, 0), (1, 0), (1, 0)]),
        // The whole limit again, in this process.
        ("local", [(0, 2), (0, 1), (0, 0), (1, 0)]),
    ] {
        let redis = Redis::start();
        let (_server, mut client) =
            server(&redis, &["--resp-on-store-failure", policy, "--store-redis-deadline", "10s"]);
        assert_eq!(throttle(&mut client), (0, 2), "{policy}");
        drop(redis);
        let told: Vec<(i64, i64)> = (0..4).map(|_| throttle(&mut client)).collect();
        assert_eq!(told, alone, "{policy}");
    }
}

#[test]
fn throttle_waits_for_the_store_until_its_deadline() {
    let redis = Redis::start();
    // Without its own deadline, the command would wait for the store until the client gives up.
    let args = ["--resp-on-store-failure", "deny", "--resp-store-deadline", "50ms", "--store-redis-deadline", "60s"];
    let (_server, mut client) = server(&redis, &args);
    // On a busy machine, the first responses may be late.
    until("an answer of the store", || (throttle(&mut client).0 == 0).then_some(()));
    redis.freeze();
    assert_eq!(throttle(&mut client), (1, 0), "it stands still, and so the policy decides");
    redis.thaw();
    until("an answer of the store", || (throttle(&mut client).0 == 0).then_some(()));
}
