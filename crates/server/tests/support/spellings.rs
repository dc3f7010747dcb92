//! Spellings of `/login` and of similar paths, for servers that interpret paths differently.
#![allow(dead_code, reason = "not every test needs everything")]
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use fastrand::Rng;
use tidegate_core::contract::seed::seed;

use crate::support::Process;

/// The response of an upstream that serves `/login`.
pub(crate) const SERVED: &str = "served by login";

/// The rule that every test uses: two logins an hour for all clients together.
pub(crate) const RULES: &str = "rules: [{ id: login, match: { path: /login }, limit: log 2/h }]";

/// Number of spellings that are sent to each upstream. `TIDEGATE_TEST_SPELLINGS` overrides it.
fn how_many() -> usize {
    std::env::var("TIDEGATE_TEST_SPELLINGS").ok().and_then(|count| count.parse().ok()).unwrap_or(300)
}

const SEPARATORS: [&str; 30] = [
    "/",
    "/",
    "/",
    "//",
    "///",
    "%2f",
    "%2F",
    "/%2f",
    "%2f/",
    "%5c",
    "/%5C",
    "\\",
    "/\\",
    "/./",
    "/../",
    "/%2e/",
    "/%2e%2E/",
    "/.%2e/",
    "/..%2f",
    "%2f..%2f",
    "/..%5c",
    "%252f",
    "/%252e%252e/",
    "/.;/",
    "/..;/",
    "/..;x=y/",
    "/;/",
    "/%3b/",
    "/%00/",
    "/%u002f",
];
const DECOYS: [&str; 8] = ["x", "a.b", "login", "static", "%78", "x;y", "%c0%ae", "x%00"];
const WORDS: [&str; 14] = [
    "login",
    "login",
    "login",
    "login",
    "%6cogin",
    "l%6Fgin",
    "%6C%6F%67%69%6E",
    "%256cogin",
    "%25%36%63ogin",
    "lo%00gin",
    "./login",
    "log%09in",
    "%2elogin",
    "log\\in",
];
const ENDS: [&str; 36] = [
    "",
    "",
    "",
    "",
    "/",
    "//",
    "/.",
    "/..",
    "/x/..",
    "/x/../",
    "/%2e",
    "%2f",
    "%2F..",
    "/..%2flogin",
    ";",
    ";a=b",
    "%3b",
    "%3Ba=b",
    "%00",
    "%00.png",
    "%0a",
    "%0d%0a",
    "%09",
    "%20",
    "%7f",
    "?",
    "?a=/../x",
    "%3f",
    "%3fa",
    "#",
    "#a",
    "%23",
    "%25",
    "%",
    "\\",
    "%5c",
];

fn one_of<'t>(dice: &mut Rng, all: &[&'t str]) -> &'t str {
    all[dice.usize(..all.len())]
}

/// Targets, each beginning with a slash. Spellings that evaded rules in the past come first.
pub(crate) fn spellings() -> Vec<String> {
    let known =
        ["/%2flogin", "/x/..%2flogin", "/x%2f..%2flogin", "//x/login", "/\\x/login", "/login%0a", "/login/../x"];
    let mut all: Vec<String> = known.into_iter().map(str::to_owned).collect();
    let mut dice = Rng::with_seed(seed(25));
    while all.len() < how_many() {
        let mut target = String::from("/");
        for _ in 0..dice.u8(..3) {
            target.push_str(one_of(&mut dice, &DECOYS));
            target.push_str(one_of(&mut dice, &SEPARATORS));
        }
        if dice.bool() {
            target.push_str(one_of(&mut dice, &SEPARATORS));
        }
        target.push_str(one_of(&mut dice, &WORDS));
        target.push_str(one_of(&mut dice, &ENDS));
        all.push(target);
    }
    all
}

/// Sends each target. Returns those that the upstream has served as `/login`.
pub(crate) fn served_as_login(address: SocketAddr, targets: &[String]) -> Vec<String> {
    targets.iter().filter(|target| response(address, target).contains(SERVED)).cloned().collect()
}

/// Asserts that the rule is what denies further logins, and that it admitted no more than two, these spellings included.
///
/// It may have admitted fewer: some spellings count as `/login` although the upstream serves another page, such as `/login%20`.
pub(crate) fn rule_denies(address: SocketAddr, served: &[String]) {
    let plain = vec!["/login".to_owned(); 3];
    assert!(served.len() + served_as_login(address, &plain).len() <= 2, "{served:#?}");
    let response = response(address, "/login");
    assert!(response.starts_with("HTTP/1.1 429 "), "{response}");
}

fn response(address: SocketAddr, target: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8_lossy(&response).into_owned();
    assert!(response.starts_with("HTTP/1."), "{target}: {response:?}");
    response
}

/// A Node server whose router parses paths as browsers do, and then decodes them.
pub(crate) fn node() -> (Process, SocketAddr) {
    let script = format!(
        r#"
const server = require("http").createServer((request, response) => {{
  let path = "";
  try {{ path = decodeURIComponent(new URL(request.url, "http://here").pathname); }} catch {{ response.statusCode = 400; }}
  response.end(path === "/login" || path === "/login/" ? "{SERVED}" : "elsewhere");
}});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"#
    );
    let mut command = Command::new("node");
    command.arg("-e").arg(script).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Process(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (process, SocketAddr::from(([127, 0, 0, 1], line.trim().parse().unwrap())))
}
