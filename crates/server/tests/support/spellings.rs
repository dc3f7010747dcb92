//! Spellings of `/login` and of what may be taken for it, to be sent to servers that read paths in their own ways.
#![allow(dead_code, reason = "not every test needs everything")]
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::Process;

/// The answer of an upstream that serves `/login`.
pub(crate) const SERVED: &str = "served by login";

/// The rule that every test holds spellings against: two logins an hour, whoever asks.
pub(crate) const RULES: &str = "rules: [{ id: login, match: { path: /login }, limit: log 2/h }]";

/// So many spellings are sent to each upstream, unless `TIDEGATE_TEST_SPELLINGS` says otherwise.
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

/// A fixed sequence that looks like chance.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap()
    }

    fn of<'t>(&mut self, all: &[&'t str]) -> &'t str {
        all[self.next() % all.len()]
    }
}

/// Targets, each of which begins with a slash, the ones that have dodged rules before first.
pub(crate) fn spellings() -> Vec<String> {
    let known =
        ["/%2flogin", "/x/..%2flogin", "/x%2f..%2flogin", "//x/login", "/\\x/login", "/login%0a", "/login/../x"];
    let mut all: Vec<String> = known.into_iter().map(str::to_owned).collect();
    let mut chance = Chance(0x5eed_0fa7_1de6_a7e5);
    while all.len() < how_many() {
        let mut target = String::from("/");
        for _ in 0..chance.next() % 3 {
            target.push_str(chance.of(&DECOYS));
            target.push_str(chance.of(&SEPARATORS));
        }
        if chance.next().is_multiple_of(2) {
            target.push_str(chance.of(&SEPARATORS));
        }
        target.push_str(chance.of(&WORDS));
        target.push_str(chance.of(&ENDS));
        all.push(target);
    }
    all
}

/// Sends each of the targets. Says which of them the upstream has served as `/login`.
pub(crate) fn served_as_login(address: SocketAddr, targets: &[String]) -> Vec<String> {
    let is_served = |target: &&String| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1."), "{target}: {answer:?}");
        answer.contains(SERVED)
    };
    targets.iter().filter(is_served).cloned().collect()
}

/// A server of Node whose router takes paths as browsers do, and then decodes them.
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
