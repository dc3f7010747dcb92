//! Tiers of API keys in Redis, looked up by a server behind Sentinel and in a cluster.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tidegate_test_support::redis::{Cluster, PRIMARY, Sentinels};
use tidegate_test_support::{free_port, until};

use crate::support::ran::Ran;

const RULES: &str = "\
tiers: { from: store, default: free }
rules:
  - { id: plan, key: api_key, tiers: { free: fixed 10/day, paid: fixed 500/day } }
";

/// A server with separate rules.
struct TieredServer {
    child: Child,
    port: u16,
    admin: u16,
    folder: TempDir,
}

impl TieredServer {
    fn start(store: &[&str]) -> TieredServer {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let (port, admin) = (free_port(), free_port());
        let (api_at, admin_at) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{admin}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "--rules", "rules.yaml", "--api-listen", &api_at, "--admin-listen", &admin_at]);
        command.args(["--rls-listen", "off", "--resp-listen", "off", "--admin-open-metrics", "true"]);
        // A short TTL, so that a change takes effect soon. Long deadlines, because the machine may be busy.
        command.args(["--store-redis-tiers-ttl", "50ms", "--store-redis-tiers-deadline", "10s"]);
        command.args(["--store-redis-deadline", "10s", "--store-redis-connect-time", "10s"]).args(store);
        command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        TieredServer { child: command.spawn().unwrap(), port, admin, folder }
    }

    /// The limit that applies to an API key.
    fn limit(&self, api_key: &str) -> Option<u64> {
        let url = format!("http://127.0.0.1:{}/v1/peek", self.port);
        let body = format!(r#"{{"method":"GET","path":"/","api_key":"{api_key}"}}"#);
        let output = Command::new("curl").args(["-s", &url, "--json", &body]).output().ok()?;
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        answer["limits"][0]["limit"].as_u64()
    }

    fn becomes(&self, api_key: &str, limit: u64) {
        until(&format!("{limit} for {api_key}"), || (self.limit(api_key) == Some(limit)).then_some(()));
    }

    fn keys(&self, redis: &[&str], words: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("keys").args(words).args(redis).args(["--timeout", "30"]).current_dir(self.folder.path());
        for name in ["CLICOLOR_FORCE", "NO_COLOR", "TIDEGATE_REDIS"] {
            command.env_remove(name);
        }
        Ran(command.output().unwrap())
    }

    /// The server's metrics.
    fn metrics(&self) -> String {
        let url = format!("http://127.0.0.1:{}/metrics", self.admin);
        String::from_utf8(Command::new("curl").args(["-s", &url]).output().unwrap().stdout).unwrap()
    }
}

impl Drop for TieredServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A key has the default tier until it is set, then its own, and the default again after it was removed.
fn tiers_are_followed(server: &TieredServer, redis: &[&str]) {
    server.becomes("k_1", 10);
    assert_eq!(server.keys(redis, &["set", "k_1", "paid"]).good(), "set: 1 API key\n");
    server.becomes("k_1", 500);
    assert_eq!(server.limit("k_2"), Some(10));
    // An unknown tier counts as the default one.
    server.keys(redis, &["set", "k_2", "platinum"]).good();
    assert_eq!(server.keys(redis, &["get", "k_2"]).good(), "platinum\n");
    server.becomes("k_2", 10);
    assert_eq!(server.keys(redis, &["remove", "k_1"]).good(), "removed\n");
    server.becomes("k_1", 10);
    assert!(server.metrics().contains("tidegate_tier_lookups_total"), "{}", server.metrics());
}

#[test]
fn a_server_behind_sentinel_follows_stored_tiers_also_after_a_failover() {
    let mut set = Sentinels::start();
    let urls = set.urls().join(",");
    let server = TieredServer::start(&[
        "--store-kind",
        "sentinel",
        "--store-redis-urls",
        &urls,
        "--store-redis-primary",
        PRIMARY,
    ]);
    let redis = ["--redis", urls.as_str(), "--sentinel", PRIMARY];
    tiers_are_followed(&server, &redis);
    server.keys(&redis, &["set", "k_3", "paid"]).good();
    server.becomes("k_3", 500);
    // Waits until the replicas have the entry before the primary is killed.
    let primary = set.primary();
    for replica in set.servers.iter().enumerate().filter(|(place, _)| *place != primary).map(|(_, server)| server) {
        until("the replica", || (replica.run::<u32>(&["EXISTS", "tidegate:{#steering}:tiers"]) == 1).then_some(()));
    }
    set.servers[primary].kill();
    until("another primary", || (set.primary() != primary).then_some(()));
    server.becomes("k_3", 500);
    until("a primary that can be written", || {
        server.keys(&redis, &["set", "k_4", "paid"]).0.status.success().then_some(())
    });
    server.becomes("k_4", 500);
}

#[test]
fn a_server_on_a_cluster_follows_stored_tiers() {
    let cluster = Cluster::start();
    let urls = cluster.urls().join(",");
    let server = TieredServer::start(&["--store-kind", "cluster", "--store-redis-urls", &urls]);
    tiers_are_followed(&server, &["--redis", &urls]);
}
