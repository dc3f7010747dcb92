//! A real Envoy, with the configuration in the guide, between curl and a small application.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_test_support::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::programs::{Running, python_packages};
use super::support::Served;

const GUIDE: &str = include_str!("../../../../docs/envoy.md");

/// The first block of YAML in the guide that begins like this.
fn block(beginning: &str) -> &'static str {
    let from = GUIDE.find(&format!("```yaml\n{beginning}")).unwrap() + "```yaml\n".len();
    GUIDE[from..].split("```").next().unwrap()
}

/// An application that greets every client.
async fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// The response that curl receives from Envoy: the status, `Retry-After`, and the remaining amount in Envoy's headers.
async fn curl(port: u16, user: &str) -> (u16, String, String) {
    let (url, user) = (format!("http://127.0.0.1:{port}/"), format!("x-user: {user}"));
    let run = move || {
        let form = "%{http_code}\n%header{retry-after}\n%header{x-ratelimit-remaining}";
        let args = ["-s", "-o", "/dev/null", "-H", &user, "-w", form, &url];
        String::from_utf8(Command::new("curl").args(args).output().unwrap().stdout).unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let mut lines = output.split('\n').map(str::to_owned);
    let mut next = || lines.next().unwrap();
    (next().parse().unwrap(), next(), next())
}

/// A separate Envoy for a test.
struct Envoy {
    port: u16,
    _process: Running,
    _folder: tempfile::TempDir,
}

impl Envoy {
    /// Starts Envoy between clients and `app`, with `tidegate` as its rate-limit service. Returns once it forwards
    /// requests.
    async fn start(config: &str, app: SocketAddr, tidegate: SocketAddr) -> Envoy {
        let port = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = config
            .replace("port_value: 10000", &format!("port_value: {port}"))
            .replace("port_value: 3000", &format!("port_value: {}", app.port()))
            .replace("port_value: 8081", &format!("port_value: {}", tidegate.port()));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let envoy = Command::new(python_packages().join("envoy/_bin/envoy"))
            .args(["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning", "-c"])
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let mut envoy = Running(envoy.unwrap());
        // A separate user for this check, which detects when Envoy is ready.
        eventually("Envoy", async || {
            let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            assert!(envoy.0.try_wait().unwrap().is_none(), "Envoy has ended: {}", log());
            (curl(port, "somebody").await.0 > 0).then_some(())
        })
        .await;
        Envoy { port, _process: envoy, _folder: folder }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_does_as_it_is_told_without_an_answer() {
    let app = application().await;
    // One address accepts connections without responding, and the other has no listener.
    let silent = StdListener::bind("127.0.0.1:0").unwrap();
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let allowing = block("static_resources").to_owned();
    let denying = allowing.replace("failure_mode_deny: false", "failure_mode_deny: true");
    assert_ne!(allowing, denying);
    for (config, expected) in [(allowing, 200), (denying, 500)] {
        for tidegate in [silent.local_addr().unwrap(), nobody.local_addr().unwrap()] {
            let envoy = Envoy::start(&config, app, tidegate).await;
            assert_eq!(curl(envoy.port, "alice").await.0, expected, "{tidegate}");
        }
    }
}

/// The actions that send the facts of rules, in the place of those in the guide's first configuration.
#[test]
fn envoy_knows_the_actions_of_the_guide() {
    let configuration = block("static_resources");
    let is_action = |line: &&str| !line.trim_start().starts_with("- actions:");
    let lines: Vec<&str> = configuration.lines().filter(is_action).collect();
    let (indent, _) = configuration.lines().find_map(|line| line.split_once("rate_limits:")).unwrap();
    let actions: Vec<String> = block("rate_limits:").lines().map(|line| format!("{indent}{line}")).collect();
    let replaced =
        lines.iter().map(|line| if line.trim() == "rate_limits:" { actions.join("\n") } else { (*line).to_owned() });
    let folder = tempfile::tempdir().unwrap();
    let validate = |configuration: &str| {
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, configuration).unwrap();
        let mut envoy = Command::new(python_packages().join("envoy/_bin/envoy"));
        envoy.args(["--mode", "validate", "--use-dynamic-base-id", "-c"]).arg(file).output().unwrap()
    };
    let text = replaced.collect::<Vec<_>>().join("\n");
    assert!(text.contains("descriptor_key: path"), "{text}");
    let output = validate(&text);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!validate(&text.replace("remote_address:", "remote_adress:")).status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_asks_and_obeys() {
    let (served, app) = (Served::new(block("domain: edge")).await, application().await);
    // Longer timeouts, because the machine may be busy.
    let config = block("static_resources")
        .replace("timeout: 0.1s", "timeout: 60s")
        .replace("failure_mode_deny: false", "failure_mode_deny: true");
    let envoy = Envoy::start(&config, app, served.address).await;
    let port = envoy.port;

    let mut told = Vec::new();
    for _ in 0..5 {
        told.push(curl(port, "alice").await);
    }
    let statuses: Vec<_> = told.iter().map(|(status, _, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(told[0].1, "");
    assert!(told[3].1.parse::<u64>().unwrap() > 0, "{told:?}");
    assert_eq!((told[0].2.as_str(), told[2].2.as_str()), ("2", "0"), "{told:?}");
    assert_eq!(curl(port, "bob").await.0, 200);

    // A denial has the conventional headers only once: Envoy's.
    let head = move || {
        let url = format!("http://127.0.0.1:{port}/");
        let args = ["-s", "-D", "-", "-o", "/dev/null", "-H", "x-user: alice", &url];
        String::from_utf8(Command::new("curl").args(args).output().unwrap().stdout).unwrap().to_ascii_lowercase()
    };
    let head = tokio::task::spawn_blocking(head).await.unwrap();
    assert!(head.starts_with("http/1.1 429"), "{head}");
    assert_eq!(head.matches("x-ratelimit-limit:").count(), 1, "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_envoy_of_the_compose_file_counts_clients_by_their_address() {
    let rules = include_str!("../../../../deploy/compose/rules/rules.yaml").replace("10/s burst 20", "log 3/h");
    let served = Served::new(&rules).await;
    let inner = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = include_str!("../../../../deploy/compose/envoy.yaml")
        .replace("address: tidegate", "address: 127.0.0.1")
        .replace("port_value: 9000", &format!("port_value: {inner}"))
        .replace("timeout: 0.1s", "timeout: 60s");
    let envoy = Envoy::start(&config, served.address, served.address).await;
    let mut statuses = Vec::new();
    for user in ["alice", "bob", "carol", "dave", "erin"] {
        statuses.push(curl(envoy.port, user).await.0);
    }
    assert!(statuses.iter().filter(|status| **status == 200).count() <= 3, "{statuses:?}");
    assert_eq!(statuses[3..], [429, 429], "{statuses:?}");
}

/// The value of the patch in an EnvoyFilter that applies to `apply_to`.
fn patch(filter: &Value, apply_to: &str) -> Value {
    let patches = filter["spec"]["configPatches"].as_array().unwrap();
    patches.iter().find(|patch| patch["applyTo"] == apply_to).unwrap()["patch"]["value"].clone()
}

/// Istio itself needs a cluster. The test applies its patches to the Envoy of the compose file, where Istio would.
#[tokio::test(flavor = "multi_thread")]
async fn the_filter_for_istio_tells_rules_the_address_and_the_path() {
    let served = Served::new("rules: [{ id: orders, match: { path: '/' }, key: address, limit: log 3/h }]").await;
    let filter: Value = serde_saphyr::from_str(include_str!("../../../../deploy/istio/envoyfilter.yaml")).unwrap();
    let mut limiting = patch(&filter, "HTTP_FILTER");
    let service = limiting["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"]["cluster_name"].clone();
    assert_eq!(service, "outbound|8081||tidegate.tidegate.svc.cluster.local", "the port of Kubernetes' Service");
    // Longer timeouts, because the machine may be busy.
    limiting["typed_config"]["timeout"] = "60s".into();

    let inner = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let base = include_str!("../../../../deploy/compose/envoy.yaml")
        .replace("address: tidegate", "address: 127.0.0.1")
        .replace("port_value: 9000", &format!("port_value: {inner}"));
    let mut config: Value = serde_saphyr::from_str(&base).unwrap();
    let resources = &mut config["static_resources"];
    let connections = &mut resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    connections["http_filters"][0] = limiting;
    let host = &mut connections["route_config"]["virtual_hosts"][0];
    host["routes"][0]["route"].as_object_mut().unwrap().remove("rate_limits");
    host["rate_limits"] = patch(&filter, "VIRTUAL_HOST")["rate_limits"].clone();
    resources["clusters"][1]["name"] = service.clone();
    resources["clusters"][1]["load_assignment"]["cluster_name"] = service;

    let config = config.to_string().replace("\"port_value\":", "port_value: ");
    let envoy = Envoy::start(&config, served.address, served.address).await;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(curl(envoy.port, "alice").await.0);
    }
    assert_eq!(statuses[3..], [429, 429], "{statuses:?}");
    let port = envoy.port;
    let elsewhere = move || {
        let url = format!("http://127.0.0.1:{port}/elsewhere");
        let args = ["-s", "-o", "/dev/null", "-w", "%{http_code}", &url];
        String::from_utf8(Command::new("curl").args(args).output().unwrap().stdout).unwrap()
    };
    assert_eq!(tokio::task::spawn_blocking(elsewhere).await.unwrap(), "200", "the rule is for another path");
}
