//! Identity of the user: tokens from PyJWT, keys from a real HTTP server, and forward-auth with real proxies.

mod forward_auth;
mod guide;
mod invalid;
mod keys;
mod sources;
mod warnings;

use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Answer, Process, Server, folder, free_port, until};

/// Keys, key sets and tokens, generated once.
static MADE: LazyLock<Value> = LazyLock::new(|| {
    let made = Command::new("/usr/bin/python3").args(["-c", include_str!("tokens.py")]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    serde_json::from_slice(&made.stdout).unwrap()
});

fn token(name: &str) -> &'static str {
    MADE["tokens"][name].as_str().unwrap()
}

fn jwks(name: &str) -> String {
    MADE["jwks"][name].to_string()
}

/// Python's HTTP server, for key sets and as an upstream. It serves the files of its folder, and logs a line for each
/// request.
struct Files {
    port: u16,
    folder: TempDir,
    process: Option<Process>,
}

impl Files {
    fn start(files: &[(&str, &str)]) -> Files {
        let mut server = Files { port: free_port(), folder: folder(files), process: None };
        server.go_on();
        server
    }

    /// Starts or restarts the server on its port.
    fn go_on(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        let process = Command::new("/usr/bin/python3")
            .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", &self.port.to_string(), "--directory"])
            .arg(self.folder.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.process = Some(Process(process.unwrap()));
        until("the HTTP server", || std::net::TcpStream::connect(("127.0.0.1", self.port)).ok());
    }

    fn stop(&mut self) {
        self.process = None;
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.folder.path().join("http.log")
    }

    /// The number of requests to a path.
    fn asked(&self, path: &str) -> usize {
        let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
        log.lines().filter(|line| line.contains(&format!("\"GET {path} "))).count()
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Replaces a file atomically.
    fn replace(&self, name: &str, text: &str) {
        let new = self.folder.path().join(format!("{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.folder.path().join(name)).unwrap();
    }
}

const RULES: &str = "
rules:
  - { id: per-user, key: user, tiers: { gold: 3/h }, limit: 2/h }
";

/// A gateway in front of an upstream, with these rules and these arguments.
fn gateway(upstream: &Files, rules: &str, files: &[(&str, &str)], args: &[&str]) -> Server {
    let files: Vec<(&str, &str)> = files.iter().copied().chain([("rules.yaml", rules)]).collect();
    let upstream = upstream.url("");
    let usual = ["--rules", "rules.yaml", "--gateway", "127.0.0.1:0", "--upstream", &upstream];
    Server::start(&files, &[&usual[..], args].concat())
}

/// The answer of a gateway to a request with these headers.
fn ask(server: &Server, headers: &[(&str, &str)]) -> Answer {
    get(&format!("http://{}/index.html", gateway_address(server)), headers)
}

fn gateway_address(server: &Server) -> String {
    let (_, rest) = server.banner.split_once("\n  Gateway ").unwrap();
    let (_, address) = rest.lines().next().unwrap().split_once("://").unwrap();
    address.trim().to_owned()
}

/// Sends a request with curl, which follows no redirects and adds few headers.
fn get(url: &str, headers: &[(&str, &str)]) -> Answer {
    let mut command = Command::new("curl");
    command.args(["-s", "-i", "--max-time", "60", url]);
    for (name, value) in headers {
        // curl omits a header without a value unless it ends in a semicolon.
        command.arg("-H").arg(if value.is_empty() { format!("{name};") } else { format!("{name}: {value}") });
    }
    answer(&String::from_utf8(command.output().unwrap().stdout).unwrap())
}

fn answer(text: &str) -> Answer {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    Answer { status, headers, body: body.to_owned() }
}

fn bearer(token: &str) -> (&'static str, String) {
    ("Authorization", format!("Bearer {token}"))
}

/// The status of a gateway's response to a request with this token.
fn status(server: &Server, token: &str) -> u16 {
    let (name, value) = bearer(token);
    ask(server, &[(name, &value)]).status
}

/// The value of a metric, by its name with labels; 0 if it does not exist.
fn metric(server: &Server, name: &str) -> u64 {
    let text = get(&format!("http://{}/metrics", server.listener("Admin")), &[]).body;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |value| value.trim().parse().unwrap())
}
