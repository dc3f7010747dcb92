//! The dashboard and the alerts name only metrics that exist.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_redis::RedisStore;
use tidegate_redis::link::Settings;
use tidegate_test_support::redis::Server as Redis;

use crate::admin::support::Server;
use crate::support::certificates::{authority, issued};
use crate::support::{self, free_port};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(deploy().join(file)).unwrap()
}

/// The names of all metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text
        .split(|c| !is_part(c))
        .filter(|word| ["tidegate_", "process_"].iter().any(|start| word.starts_with(start)));
    // The Debian package is called `tidegate_` and its version.
    let is_package = |word: &str| word.strip_prefix("tidegate_").is_some_and(|rest| rest.starts_with(char::is_numeric));
    words.filter(|word| !CRATES.contains(word) && !is_package(word)).map(str::to_owned).collect()
}

/// Names of crates that begin like a metric.
const CRATES: [&str; 6] =
    ["tidegate_client", "tidegate_core", "tidegate_http", "tidegate_lab", "tidegate_redis", "tidegate_tower"];

/// Runs a check of promtool on a text. Panics with its output on a finding.
fn promtool(check: &[&str], text: &str) {
    let mut promtool = Command::new("promtool")
        .args(check)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool should be installed: run tools/setup");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "promtool {check:?}: {words}\n{text}");
}

/// A server with its state in memory, and one with an unavailable Redis, both after some requests.
fn servers() -> (Server, Server) {
    let in_memory = Server::start();
    in_memory.requests("203.0.113.7", 5);
    let redis = Redis::start();
    let url = redis.url();
    let shared = Server::over(|_| {}, || RedisStore::open(Settings::standalone(&url).unwrap()).unwrap().into());
    shared.requests("203.0.113.7", 5);
    drop(redis);
    // The failure policy now decides requests.
    while !shared.get("/metrics").text.contains("tidegate_decisions_without_store_total{") {
        shared.requests("203.0.113.8", 1);
    }
    (in_memory, shared)
}

/// The metrics of a gateway with TLS that has answered, failed, settled and refunded.
fn of_gateway() -> String {
    const RULES: &str = "
rules:
  - { id: model, key: address, limits: [{ limit: fixed 1000/h, cost: 100, settle: 'header:x-cost' }] }
  - { id: by-user, key: user, limit: 100/s }
  - { id: fleet, shed: { slots: 1000 } }
  - { id: adaptive, adapt: { between: 100/s..1000/s, on: errors > 50% } }
";
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in upstream.incoming().flatten() {
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    let (certificate, key) = issued(&authority("deploy"));
    let files = [("rules.yaml", RULES), ("cert.pem", &certificate), ("key.pem", &key)];
    let (upstream, dead) = (format!("http://{address}"), format!("/dead http://127.0.0.1:{}", free_port()));
    let args =
        ["--rules", "rules.yaml", "--gateway", "127.0.0.1:0", "--upstream", &upstream, "--gateway-routes", &dead];
    let tls = ["--rls-tls", "on", "--tls-certificate", "cert.pem", "--tls-key", "key.pem"];
    let log = ["--access-log-format", "json", "--access-log-path", "access.log"];
    let args = [
        &args[..],
        &tls,
        &log,
        &["--admin-open-metrics", "true", "--store-file", "state"],
        &["--gateway-concurrency", "gradient2", "--gateway-shedding", "enforce"],
    ]
    .concat();
    let server = support::Server::start(&files, &args);
    let gateway = server.listener("Gateway");
    assert_eq!(server.get_from(&format!("http://{gateway}/"), &[]).status, 200);
    assert_eq!(server.get_from(&format!("http://{gateway}/dead"), &[]).status, 502);
    let metrics = format!("http://{}/metrics", server.listener("Admin"));
    support::until("the requests to be counted", || {
        let text = server.get_from(&metrics, &[]).body;
        let has = |part: &str| text.contains(part);
        (has("tidegate_gateway_errors_total{") && has("tidegate_unsettled_total{") && has("in_flight 0"))
            .then_some(text)
    })
}

/// The metrics of a fleet node with write-behind limits and with tiers in Redis.
fn of_fleet_node() -> String {
    const RULES: &str = "
tiers: { from: store, default: free }
rules:
  - { id: soft, limit: 1000/s, write_behind: { at_most: 10% } }
  - { id: plan, key: api_key, tiers: { free: 5/s, paid: 50/s } }
";
    let redis = Redis::start();
    let args = ["--rules", "rules.yaml", "--redis", &redis.url(), "--admin-open-metrics", "true"];
    let server = support::Server::start(&[("rules.yaml", RULES)], &args);
    server.check(r#"{"path":"/","api_key":"k1"}"#);
    server.get_from(&format!("http://{}/metrics", server.listener("Admin")), &[]).body
}

/// The names of the series in a text of metrics.
fn series(text: &str) -> Vec<String> {
    let series = text.lines().filter(|line| !line.starts_with('#'));
    series.map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned()).collect()
}

/// The names of all series on these servers.
fn scraped() -> BTreeSet<String> {
    let (in_memory, shared) = servers();
    let mut all: BTreeSet<String> =
        [&in_memory, &shared].iter().flat_map(|server| series(&server.get("/metrics").text)).collect();
    all.extend(series(&of_gateway()));
    all.extend(series(&of_fleet_node()));
    let histograms: Vec<String> =
        all.iter().filter_map(|name| name.strip_suffix("_bucket").map(str::to_owned)).collect();
    all.extend(histograms);
    all
}

#[test]
fn alerts_and_dashboard_name_only_existing_metrics() {
    let mut exist = scraped();
    // These servers have no requests from Envoy, and no tokens: the tests of identity cover these series.
    exist.extend(["descriptors_total", "descriptors_near_limit_total"].map(|name| format!("tidegate_{name}")));
    let tokens = ["tokens_total", "keys", "keys_current", "key_fetches_total", "cache_tokens", "cache_bytes"];
    exist.extend(tokens.map(|name| format!("tidegate_jwt_{name}")));
    // These servers are in no region: the tests of regions cover these series.
    let regions = ["confirmed", "share_ratio", "floor_ratio", "parked_ratio", "demand"];
    exist.extend(regions.map(|name| format!("tidegate_region_{name}")));
    let guides = std::fs::read_dir(deploy().join("../docs")).unwrap().map(|file| file.unwrap().file_name());
    let guides = guides.filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(".md"));
    let mut files: Vec<String> = guides.map(|name| format!("../docs/{name}")).collect();
    files.extend(["../README.md", "grafana/tidegate.json", "prometheus/alerts.yaml"].map(str::to_owned));
    for file in &files {
        let missing: Vec<_> = named(&read(file)).difference(&exist).cloned().collect();
        assert!(missing.is_empty(), "{file} names {missing:?}, and there are only {exist:#?}");
    }
    let documented = named(&read("../docs/operating.md"));
    let is_family = |name: &String| !["_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end));
    let missing: Vec<_> = exist.iter().filter(|name| is_family(name) && !documented.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/operating.md does not name {missing:?}");
}

#[test]
fn promtool_finds_nothing_wrong_with_metrics_and_alerts() {
    let (in_memory, shared) = servers();
    for server in [&in_memory, &shared] {
        promtool(&["check", "metrics"], &server.get("/metrics").text);
    }
    promtool(&["check", "metrics"], &of_gateway());
    promtool(&["check", "rules", deploy().join("prometheus/alerts.yaml").to_str().unwrap()], "");
}

#[test]
fn alerts_on_overload_and_on_shares_fire() {
    for alerts in ["overload", "region"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/admin/{alerts}_alerts.yaml"));
        promtool(&["test", "rules", file.to_str().unwrap()], "");
    }
}

#[test]
fn metrics_come_in_the_format_that_the_scraper_asks_for() {
    let server = Server::start();
    let text = server.scrape("*/*");
    assert_eq!(text.kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(text.text.contains("# TYPE tidegate_requests_total counter\n") && !text.text.contains("# EOF"));
    let open_metrics = server.scrape("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5");
    assert_eq!(open_metrics.kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open_metrics.text.contains("# TYPE tidegate_requests counter\n"));
    assert!(open_metrics.text.ends_with("# EOF\n"));
}

#[test]
fn every_alert_has_a_section_that_says_what_to_do() {
    let (alerts, runbook) = (read("prometheus/alerts.yaml"), read("../docs/alerts.md"));
    let sections: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut named = Vec::new();
    for line in alerts.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            named.push((name, None));
        } else if let Some(url) = line.strip_prefix("runbook_url: ") {
            let (alert, anchor) = named.last_mut().unwrap();
            assert_eq!(anchor.replace(url), None, "{alert} has two");
        }
    }
    for (alert, url) in &named {
        let anchor = alert.to_ascii_lowercase();
        let wanted = format!("\"https://github.com/tidegate/tidegate/blob/main/docs/alerts.md#{anchor}\"");
        assert_eq!(*url, Some(wanted.as_str()), "{alert}");
    }
    let named: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    assert_eq!(sections, named, "docs/alerts.md and alerts.yaml differ");
}

#[test]
fn the_dashboard_is_one() {
    let dashboard: Value = serde_json::from_str(&read("grafana/tidegate.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 10);
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().unwrap() {
            assert!(target["expr"].as_str().is_some_and(|expr| !expr.is_empty()), "{panel}");
        }
    }
}
