//! nginx with `limit_req`, which states neither its limit nor a time to wait. A shared pace with the same rate is not
//! denied.
#![cfg(all(feature = "reqwest", feature = "shared"))]

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_client::{ClientLayer, ReqwestClient, SharedPaceLayer};
use tidegate_core::MemoryStore;
use tidegate_rules::{Limiter, RuleSet};
use tokio::task::JoinSet;

struct Nginx {
    process: Child,
    url: String,
    _folder: TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Nginx {
    /// Allows 5 requests per second, and 3 more at once.
    async fn start() -> Nginx {
        let port = tidegate_test_support::free_port();
        let folder = tempfile::tempdir().unwrap();
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temp = temp.map(|what| format!("{what}_temp_path {what};")).concat();
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log; events {{}}
             http {{ access_log off; {temp}
               limit_req_zone $binary_remote_addr zone=one:1m rate=5r/s; limit_req_status 429;
               server {{ listen 127.0.0.1:{port};
                 location / {{ limit_req zone=one burst=3 nodelay; try_files /none @empty; }}
                 location @empty {{ return 204; }} }} }}"
        );
        fs::write(folder.path().join("nginx.conf"), text).unwrap();
        let mut command = Command::new("nginx");
        command.args(["-e", "error.log", "-c", "nginx.conf", "-p"]).arg(folder.path());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let started = Nginx { process, url: format!("http://127.0.0.1:{port}/"), _folder: folder };
        for _ in 0..1_000 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return started;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nginx does not listen on {port}");
    }
}

/// The statuses of 20 concurrent calls.
async fn statuses(client: &ReqwestClient, url: &str) -> Vec<u16> {
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let (client, request) = (client.clone(), reqwest::Request::new(reqwest::Method::GET, url.parse().unwrap()));
        calls.spawn(async move { client.execute(request).await.unwrap().status().as_u16() });
    }
    calls.join_all().await
}

#[tokio::test]
async fn a_shared_pace_with_the_rate_of_a_server_is_not_denied() {
    let nginx = Nginx::start().await;
    let unpaced = ReqwestClient::new(reqwest::Client::new(), ClientLayer::new().retries(0));
    assert!(statuses(&unpaced, &nginx.url).await.contains(&429), "the server denies");

    let nginx = Nginx::start().await;
    let rules = RuleSet::parse("rules.yaml", "rules: [{ id: partner, key: host, limit: 5/s burst 1 }]").unwrap().rules;
    let limiter = Arc::new(Limiter::new(rules, MemoryStore::new()));
    let paced = unpaced.shared_pace(SharedPaceLayer::new(limiter));
    assert_eq!(statuses(&paced, &nginx.url).await, [204; 20]);
}
