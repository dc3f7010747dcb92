//! Measurements of the machine.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::cli::Folder;

/// The measurements of a benchmark in JSON, by name.
fn measurements(report: &Value) -> BTreeMap<&str, &Value> {
    let rows = report["measurements"].as_array().unwrap();
    rows.iter().map(|row| (row["name"].as_str().unwrap(), row)).collect()
}

#[test]
fn a_benchmark_measures_checks_listeners_and_a_redis() {
    let redis = tidegate_test_support::redis::Server::start();
    let args = ["bench", "--seconds", "4", "--keys", "1000", "--connections", "4", "--json", "--redis", &redis.url()];
    let ran = Folder::with(&[]).run(&args);
    // No progress bar unless on a terminal.
    assert_eq!((ran.good().is_empty(), ran.err()), (false, ""));
    let report = ran.json();
    let rows = measurements(&report);
    let expected = [
        "in-process/one-key/one-thread",
        "in-process/many-keys/one-thread",
        "listener/http-api",
        "listener/envoy-grpc",
        "listener/redis-protocol",
        "listener/gateway",
        "redis/many-keys",
        "redis/one-leased-key",
    ];
    for name in expected {
        let row = rows.get(name).unwrap_or_else(|| panic!("{name}: {report:#}"));
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        assert!(number("checks") > 0.0 && number("per_second") > 0.0, "{row}");
        assert!(number("p50_ns") > 0.0 && number("p50_ns") <= number("p99_ns"), "{row}");
        assert!(number("allowed") > 0.0, "{row}");
    }
    assert_eq!(rows.contains_key("in-process/many-keys/all-threads"), report["processors"].as_u64().unwrap() > 1);
    let keys: Vec<String> = redis.run(&["KEYS", "*"]);
    assert!(keys.iter().all(|key| key.starts_with("tidegate-bench")), "{keys:?}");
}

#[test]
fn a_benchmark_prints_a_table_and_errors_of_redis() {
    let folder = Folder::with(&[]);
    let table = folder.run(&["bench", "--seconds", "0.4", "--keys", "100", "--connections", "2"]);
    for part in ["checks/s", "p50", "p99", "allowed", "HTTP API, 2 connections", "in process, 100 keys, 1 thread"] {
        assert!(table.good().contains(part), "{part}: {}", table.out());
    }
    assert!(!table.out().contains("Redis, "), "{}", table.out());
    let refused = folder.run(&["bench", "--seconds", "0.4", "--redis", "http://127.0.0.1"]);
    assert!(refused.bad().contains("its scheme is not redis"), "{}", refused.err());
    // A port without a listener.
    let port = tidegate_test_support::free_port();
    let silent = folder.run(&["bench", "--redis", &format!("redis://127.0.0.1:{port}")]);
    assert!(silent.bad().starts_with("error: Redis does not answer: "), "{}", silent.err());
    for args in [&["--seconds", "0"][..], &["--keys", "1"], &["--connections", "0"]] {
        folder.run(&[&["bench"], args].concat()).usage_error();
    }
}

#[test]
fn a_benchmark_shows_its_progress_on_a_terminal() {
    let program = env!("CARGO_BIN_EXE_tidegate");
    let command = format!("stty cols 100 rows 30; {program} bench --seconds 0.4 --keys 100 --connections 2");
    // A terminal of its own.
    let output = Command::new("script").args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}");
    let (progress, table) = shown.split_once("checks/s").unwrap();
    assert!(progress.contains("0/") && progress.contains("in process, 1 key"), "{progress:?}");
    assert!(table.contains("HTTP API, 2 connections"), "{table}");
}
