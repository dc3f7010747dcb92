//! Real nginx, Caddy, HAProxy and Traefik in front of an upstream, configured as in the guides.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::spellings::{RULES as LOGIN, node, rule_denies, served_as_login, spellings};
use crate::support::{Process, Server, free_port, until};

const RULES: &str = "rules: [{ id: limited, match: { path: /limited }, key: address, limit: log 3/h }]";

/// An upstream that answers every request with its own body, and records the requests.
struct Upstream {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let requests = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, &requests);
            }
        });
        Upstream { address, seen }
    }

    fn seen(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn answer(stream: TcpStream, requests: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let from = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
        if let Some(value) = head[from..].to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    requests.lock().unwrap().push(head);
    let mut stream = reader.into_inner();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(&body)
}

/// A guide's blocks in a language.
fn blocks(guide: &str, language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(guide);
    let text = std::fs::read_to_string(path).unwrap();
    let begin = format!("```{language}\n");
    text.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

struct Proxy {
    process: Process,
    address: String,
    folder: TempDir,
}

/// A guide's configuration with the addresses of this test.
fn with_addresses(text: &str, (listen, port): (&str, u16), tidegate: SocketAddr, upstream: SocketAddr) -> String {
    for address in [listen, "127.0.0.1:8080", "127.0.0.1:3000"] {
        assert!(text.contains(address), "the guide has no {address}");
    }
    let here = listen.replace("80", &format!("127.0.0.1:{port}")).replace(":127.", "http://127.");
    text.replace("127.0.0.1:8080", &tidegate.to_string())
        .replace("127.0.0.1:3000", &upstream.to_string())
        .replace(listen, &here)
}

impl Proxy {
    fn nginx(block: &str, tidegate: SocketAddr, upstream: SocketAddr) -> Proxy {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let block = with_addresses(block, ("listen 80;", port), tidegate, upstream);
        let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {kind};"))
            .join("\n");
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\nhttp {{ access_log off;\n{temp}\n{block}\n}}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), text).unwrap();
        let mut command = Command::new("nginx");
        command.args(["-e", "error.log", "-c", "nginx.conf", "-p"]).arg(folder.path());
        Proxy::start(command, folder, port)
    }

    fn caddy(block: &str, tidegate: SocketAddr, upstream: SocketAddr) -> Proxy {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let block = with_addresses(block, (":80 {", port), tidegate, upstream);
        std::fs::write(folder.path().join("Caddyfile"), format!("{{\n\tadmin off\n}}\n{block}")).unwrap();
        let mut command = Command::new("caddy");
        command.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]).env("HOME", folder.path());
        command.env("XDG_DATA_HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
        Proxy::start(command, folder, port)
    }

    fn haproxy(script: &str, configuration: &str, tidegate: SocketAddr, upstream: SocketAddr) -> Proxy {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let (listener, own) = ("abns@tidegate", format!("abns@tidegate-test-{port}"));
        assert!(script.contains(listener) && configuration.contains("bind abns@tidegate\n"));
        let configuration = with_addresses(configuration, ("bind :80", port), tidegate, upstream)
            .replace("bind http://", "bind ")
            .replace(listener, &own)
            .replace("global\n", "global\n  stats socket unix@haproxy.sock\n");
        std::fs::write(folder.path().join("haproxy.cfg"), configuration).unwrap();
        std::fs::write(folder.path().join("tidegate.lua"), script.replace(listener, &own)).unwrap();
        let mut command = Command::new("haproxy");
        command.args(["-db", "-f", "haproxy.cfg"]);
        Proxy::start(command, folder, port)
    }

    fn traefik(files: &[String], tidegate: SocketAddr, upstream: &Upstream) -> Proxy {
        let [entry_points, dynamic, ..] = files else { panic!("two files") };
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let (open, asked, served) = ("address: \":80\"", "127.0.0.1:8080", "127.0.0.1:3000");
        assert!(entry_points.contains(open) && dynamic.contains(asked) && dynamic.contains(served));
        let entry_points = entry_points.replace(open, &format!("address: \"127.0.0.1:{port}\""));
        let entry_points = format!("{entry_points}global: {{ checkNewVersion: false }}\n");
        let dynamic = dynamic.replace(asked, &tidegate.to_string()).replace(served, &upstream.address.to_string());
        std::fs::write(folder.path().join("traefik.yaml"), entry_points).unwrap();
        std::fs::write(folder.path().join("dynamic.yaml"), dynamic).unwrap();
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).unwrap();
        let program = cache.join("tidegate/traefik/bin/traefik");
        assert!(program.is_file(), "there is no {}: run tools/setup", program.display());
        let mut command = Command::new(program);
        command.arg("--configFile=traefik.yaml");
        let proxy = Proxy::start(command, folder, port);
        // Traefik listens before it has loaded its routes.
        until("the routes", || (proxy.ask("/free", &[]).0 == 200).then_some(()));
        upstream.seen.lock().unwrap().clear();
        proxy
    }

    fn start(mut command: Command, folder: TempDir, port: u16) -> Proxy {
        let log = std::fs::File::create(folder.path().join("output.log")).unwrap();
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut proxy =
            Proxy { process: Process(command.spawn().unwrap()), address: format!("127.0.0.1:{port}"), folder };
        until("the proxy", || {
            let ended = proxy.process.0.try_wait().unwrap();
            assert!(ended.is_none(), "the proxy ended: {}", proxy.log());
            TcpStream::connect(&proxy.address).ok()
        });
        proxy
    }

    fn log(&self) -> String {
        let read = |name| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        format!("{}{}", read("output.log"), read("error.log"))
    }

    /// HAProxy's statistics of a backend, by name.
    fn haproxy_counts(&self, backend: &str, names: [&str; 2]) -> [u64; 2] {
        let mut socket = UnixStream::connect(self.folder.path().join("haproxy.sock")).unwrap();
        socket.write_all(b"show stat\n").unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let header = lines.next().unwrap();
        let counts = lines.find(|line| line[0].trim() == backend && line[1] == "BACKEND").unwrap();
        names.map(|name| counts[header.iter().position(|column| *column == name).unwrap()].parse().unwrap())
    }

    /// Sends a request with curl. Returns the status, the headers and the body.
    fn ask(&self, path: &str, args: &[&str]) -> (u16, String, String) {
        let mut command = Command::new("curl");
        command.args(["-s", "-i", "--max-time", "60"]).args(args).arg(format!("http://{}{path}", self.address));
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let (head, body) = output.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{output}\n{}", self.log()));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), body.to_owned())
    }
}

/// A configuration with long timeouts for Tidegate, because the machine may be busy.
fn patient(configuration: &str) -> String {
    let times = [
        ("timeout connect 200ms", "timeout connect 60s"),
        ("timeout server 1s", "timeout server 60s"),
        ("dial_timeout 200ms", "dial_timeout 60s"),
        ("response_header_timeout 1s", "response_header_timeout 60s"),
        ("proxy_connect_timeout 200ms", "proxy_connect_timeout 60s"),
        ("proxy_read_timeout 1s", "proxy_read_timeout 60s"),
    ];
    times.iter().fold(configuration.to_owned(), |text, (quick, slow)| text.replace(quick, slow))
}

/// Starts a proxy in front of Tidegate and an upstream. Returns the statuses that clients receive while Tidegate is
/// suspended, and after it was killed.
fn unanswered(start: impl Fn(SocketAddr, SocketAddr) -> Proxy) -> (Proxy, [u16; 2]) {
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]);
    let upstream = Upstream::start();
    let proxy = start(server.address, upstream.address);
    // On a busy machine, the first responses may exceed the guides' timeouts.
    until("an answer through the proxy", || (proxy.ask("/free", &["-d", "hi"]).0 == 200).then_some(()));
    server.signal(Signal::STOP);
    let stopped = proxy.ask("/limited", &["-d", "hi"]).0;
    drop(server);
    let gone = proxy.ask("/limited", &["-d", "hi"]).0;
    (proxy, [stopped, gone])
}

#[test]
#[ignore = "long: make nightly"]
fn nginx_applies_its_own_policy_without_an_answer() {
    let [block] = &blocks("nginx.md", "nginx")[..] else { panic!("one configuration") };
    let allowing = unanswered(|tidegate, upstream| Proxy::nginx(block, tidegate, upstream));
    assert_eq!(allowing.1, [200, 200], "{}", allowing.0.log());
    let line = "error_page 502 504 = @no_tidegate;";
    assert!(block.contains(line));
    let denying = unanswered(|tidegate, upstream| Proxy::nginx(&block.replace(line, ""), tidegate, upstream));
    assert_eq!(denying.1, [500, 500], "{}", denying.0.log());
}

#[test]
#[ignore = "long: make nightly"]
fn caddy_applies_its_own_policy_without_an_answer() {
    let blocks = blocks("caddy.md", "caddyfile");
    assert_eq!(blocks.len(), 3);
    for (block, expected) in blocks.iter().zip([[504, 502], [504, 502], [200, 200]]) {
        let (proxy, told) = unanswered(|tidegate, upstream| Proxy::caddy(block, tidegate, upstream));
        assert_eq!(told, expected, "{block}\n{}", proxy.log());
    }
}

#[test]
#[ignore = "long: make nightly"]
fn haproxy_applies_its_own_policy_without_an_answer_and_tries_once() {
    let ([script], [configuration]) = (&blocks("haproxy.md", "lua")[..], &blocks("haproxy.md", "haproxy")[..]) else {
        panic!("one script and one configuration")
    };
    let (proxy, told) = unanswered(|tidegate, upstream| Proxy::haproxy(script, configuration, tidegate, upstream));
    assert_eq!(told, [503, 503], "{}", proxy.log());
    let [failed, retried] = proxy.haproxy_counts("tidegate", ["econ", "wretr"]);
    assert_eq!((failed, retried), (1, 0), "connections that failed, and that were tried again");

    let allowing = script.replace("ALLOW_UNANSWERED = false", "ALLOW_UNANSWERED = true");
    assert_ne!(allowing, *script);
    let (proxy, told) = unanswered(|tidegate, upstream| Proxy::haproxy(&allowing, configuration, tidegate, upstream));
    assert_eq!(told, [200, 200], "{}", proxy.log());
}

#[test]
#[ignore = "long: make nightly"]
fn traefik_answers_500_without_an_answer() {
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]);
    let upstream = Upstream::start();
    let proxy = Proxy::traefik(&blocks("traefik.md", "yaml"), server.address, &upstream);
    server.signal(Signal::STOP);
    assert_eq!(proxy.ask("/limited", &["-d", "hi"]).0, 500, "{}", proxy.log());
    drop(server);
    assert_eq!(proxy.ask("/limited", &["-d", "hi"]).0, 500, "{}", proxy.log());
    assert_eq!(upstream.seen(), 0);
}

/// Checks that every proxy must pass.
fn limits_by_address(proxy: &Proxy, upstream: &Upstream, headers_on_allowed: bool) {
    // Headers sent by the client change neither its address nor the request that is checked.
    let spoofs: [&[&str]; 4] = [
        &["-H", "X-Forwarded-For: 198.51.100.1"],
        &["-H", "X-Forwarded-Uri: /free", "-H", "X-Forwarded-Method: GET"],
        &["-H", "X-Original-URI: /free", "-H", "X-Original-Method: GET"],
        &["-d", "hello"],
    ];
    for (number, args) in spoofs[1..].iter().enumerate() {
        let (status, head, body) = proxy.ask("/limited?a=b", args);
        assert_eq!(status, 200, "{head}\n{}", proxy.log());
        assert_eq!(head.contains(&format!("x-ratelimit-remaining: {}", 2 - number)), headers_on_allowed, "{head}");
        assert_eq!(body, if args.contains(&"-d") { "hello" } else { "" });
    }
    assert_eq!(upstream.seen(), 3);
    for args in spoofs {
        let (status, head, body) = proxy.ask("/limited", args);
        assert_eq!(status, 429, "{head}");
        assert!(head.contains("x-ratelimit-remaining: 0") && head.contains("application/problem+json"), "{head}");
        let wait = head.split("retry-after: ").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
        assert!((3_000..=3_600).contains(&wait.parse::<u64>().unwrap()), "{wait}");
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&problem["status"], problem["type"].as_str().unwrap().ends_with("#quota-exceeded")),
            (&429.into(), true)
        );
    }
    assert_eq!(upstream.seen(), 3);
    assert_eq!(proxy.ask("/free", &["-X", "DELETE"]).0, 200);
    assert!(upstream.seen.lock().unwrap().last().unwrap().starts_with("DELETE /free"));
}

#[test]
fn nginx_limits_as_its_guide_says() {
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]);
    let upstream = Upstream::start();
    let [block] = &blocks("nginx.md", "nginx")[..] else { panic!("one configuration") };
    let proxy = Proxy::nginx(&patient(block), server.address, upstream.address);
    limits_by_address(&proxy, &upstream, true);
}

#[test]
fn caddy_limits_as_its_guide_says() {
    for (number, block) in blocks("caddy.md", "caddyfile").iter().enumerate() {
        let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]);
        let upstream = Upstream::start();
        let proxy = Proxy::caddy(&patient(block), server.address, upstream.address);
        limits_by_address(&proxy, &upstream, number == 1);
    }
}

#[test]
fn haproxy_limits_as_its_guide_says() {
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]);
    let upstream = Upstream::start();
    let ([script], [configuration]) = (&blocks("haproxy.md", "lua")[..], &blocks("haproxy.md", "haproxy")[..]) else {
        panic!("one script and one configuration")
    };
    let proxy = Proxy::haproxy(script, &patient(configuration), server.address, upstream.address);
    limits_by_address(&proxy, &upstream, true);
}

#[test]
fn traefik_limits_as_its_guide_says() {
    let server = Server::start(&[("rules.yaml", RULES)], &["--rules", "rules.yaml"]);
    let upstream = Upstream::start();
    let proxy = Proxy::traefik(&blocks("traefik.md", "yaml"), server.address, &upstream);
    limits_by_address(&proxy, &upstream, false);
}

/// Two logins are allowed, and no spelling adds a third. With the policy `as-is`, spellings evade the rule. `start`
/// starts the proxy in front of an upstream that decodes paths.
fn is_not_dodged(start: impl Fn(SocketAddr, SocketAddr) -> Proxy) {
    let ((_node, upstream), targets) = (node(), spellings());
    for policy in ["canonical", "strict", "as-is"] {
        let server = Server::start(&[("rules.yaml", LOGIN)], &["--rules", "rules.yaml", "--auth-paths", policy]);
        let proxy = start(server.address, upstream);
        let address = proxy.address.parse().unwrap();
        let served = served_as_login(address, &targets);
        if policy == "as-is" {
            assert!(served.len() > 2, "{served:#?}");
            continue;
        }
        assert!(served.len() <= 2, "{policy}: {served:#?}");
        rule_denies(address, &served);
        let (status, head, body) = proxy.ask("/x/..%2flogin", &["--path-as-is"]);
        assert_eq!(status, 400, "{head}");
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(problem["status"], 400, "{problem}");
        assert!(head.contains("application/problem+json"), "{head}");
    }
}

#[test]
fn no_spelling_dodges_a_rule_behind_nginx() {
    let [block] = &blocks("nginx.md", "nginx")[..] else { panic!("one configuration") };
    is_not_dodged(|tidegate, upstream| Proxy::nginx(&patient(block), tidegate, upstream));
}

#[test]
#[ignore = "long: make nightly"]
fn no_spelling_dodges_a_rule_behind_caddy() {
    for block in blocks("caddy.md", "caddyfile") {
        is_not_dodged(|tidegate, upstream| Proxy::caddy(&patient(&block), tidegate, upstream));
    }
}

#[test]
#[ignore = "long: make nightly"]
fn no_spelling_dodges_a_rule_behind_haproxy() {
    let ([script], [configuration]) = (&blocks("haproxy.md", "lua")[..], &blocks("haproxy.md", "haproxy")[..]) else {
        panic!("one script and one configuration")
    };
    is_not_dodged(|tidegate, upstream| Proxy::haproxy(script, &patient(configuration), tidegate, upstream));
}

#[test]
#[ignore = "long: make nightly"]
fn no_spelling_dodges_a_rule_behind_traefik() {
    let ((_node, address), targets) = (node(), spellings());
    for policy in ["canonical", "strict"] {
        let server = Server::start(&[("rules.yaml", LOGIN)], &["--rules", "rules.yaml", "--auth-paths", policy]);
        let upstream = Upstream { address, seen: Arc::default() };
        let proxy = Proxy::traefik(&blocks("traefik.md", "yaml"), server.address, &upstream);
        let listener = proxy.address.parse().unwrap();
        let served = served_as_login(listener, &targets);
        assert!(served.len() <= 2, "{policy}: {served:#?}");
        rule_denies(listener, &served);
    }
}
