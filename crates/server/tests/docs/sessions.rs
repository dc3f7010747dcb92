//! Runs the commands in the guides that use a server, in order, against servers of the test.
//!
//! Addresses in a guide are replaced by those of these servers. The output is compared with the one that the guide shows, except for
//! numbers that differ from run to run.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use tidegate_test_support::redis::Server as Redis;

use crate::docs::blocks::{Fate, fate};
use crate::docs::commands::{commands, is_shown, said, shell_command};
use crate::docs::guide::{Guide, guide, plain};
use crate::support::Server;

pub(crate) const TOKEN: &str = "0123456789abcdef";

/// Programs that use a server. `tg` is an alias that a guide defines.
const PROGRAMS: [&str; 4] = ["curl", "redis-cli", "tg", "tidegate"];

/// How the commands of a guide are run.
struct Session {
    guide: &'static str,
    /// Files besides the rules.
    files: &'static [(&'static str, &'static str)],
    /// The rules: the first block that contains this. The whole text, if the guide has none.
    rules: &'static str,
    has_redis: bool,
    has_gateway: bool,
    /// Whether numbers differ from run to run, not only fractions.
    varies: bool,
}

const PLAIN: Session =
    Session { guide: "", files: &[], rules: "", has_redis: false, has_gateway: false, varies: false };

/// Two rules, at the places that the guide to operating shows.
pub(crate) const OPS: &str = "\
rules:
  - id: login
    match: { path: /login }
    key: address
    limit: 5/min
  - id: search
    match: { path: /search }
    mode: shadow
    key: user
    limit: 20/s burst 50
";

static SESSIONS: &[Session] = &[
    Session { guide: "README.md", rules: "-", varies: true, ..PLAIN },
    Session {
        guide: "client.md",
        rules: "rules: [{ id: api, limit: 10/s }]",
        has_gateway: true,
        varies: true,
        ..PLAIN
    },
    Session { guide: "envoy.md", rules: "domain: edge", ..PLAIN },
    Session { guide: "fleet.md", rules: "- id: login", has_redis: true, ..PLAIN },
    Session {
        guide: "identity.md",
        files: &[("tidegate.yaml", "rules: [rules.yaml]\n"), ("keys.csv", "k_09bc,enterprise\n")],
        rules: "from: store",
        has_redis: true,
        ..PLAIN
    },
    Session { guide: "migrating.md", rules: "- id: posts", ..PLAIN },
    Session { guide: "operating.md", files: &[("candidate.yaml", OPS)], rules: OPS, ..PLAIN },
    Session { guide: "rules.md", rules: "body:max_completion_tokens", ..PLAIN },
    Session { guide: "write-behind.md", rules: "- id: everything", has_redis: true, ..PLAIN },
];

/// Whether the commands of a line are run in a session of this guide.
pub(crate) fn runs(guide: &str, commands: &[String]) -> bool {
    let uses_server = |command: &String| {
        // A loop runs one program.
        let body = command.strip_prefix("for ").and_then(|rest| rest.split_once("; do "));
        let program = body.map_or(command.as_str(), |(_, body)| body).split(' ').next().unwrap_or_default();
        PROGRAMS.contains(&program) && !command.starts_with("tidegate serve")
    };
    SESSIONS.iter().any(|session| session.guide == guide) && commands.iter().all(uses_server)
}

/// A service that greets, and its URL.
pub(crate) fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                    if line == "\r\n" {
                        let head = "HTTP/1.1 200 OK\r\nserver: nginx/1.22.1\r\ndate: Sun, 15 Nov 2026 14:04:46 GMT\r\n";
                        let body = "content-type: text/plain\r\ncontent-length: 12\r\n\r\nhello, world";
                        if reader.get_mut().write_all(format!("{head}{body}").as_bytes()).is_err() {
                            return;
                        }
                    }
                    line.clear();
                }
            });
        }
    });
    url
}

/// The servers of a session.
struct World {
    server: Server,
    redis: Option<Redis>,
}

impl World {
    fn start(session: &Session, guide: &Guide) -> World {
        let rules = guide.labelled("yaml").find(|block| block.contains(session.rules)).unwrap_or(session.rules);
        let mut files = session.files.to_vec();
        files.push(("rules.yaml", rules));
        let redis = session.has_redis.then(Redis::start);
        let url = redis.as_ref().map(Redis::url);
        let greeting = upstream();
        let mut args = vec!["--admin-token", TOKEN];
        // The README begins without rules of one's own.
        args.extend(["--rules", "rules.yaml"].into_iter().filter(|_| session.rules != "-"));
        args.extend(url.iter().flat_map(|url| ["--redis", url]));
        let gateway = ["--gateway", "127.0.0.1:0", "--upstream", &greeting];
        args.extend(gateway.into_iter().filter(|_| session.has_gateway));
        World { server: Server::start(&files, &args), redis }
    }

    /// A command with the addresses of this world.
    fn here(&self, command: &str, session: &Session) -> String {
        let (server, api) = (&self.server, self.server.address.to_string());
        let mut command = plain(command)
            .replace("127.0.0.1:8080", &api)
            .replace("localhost:8080", &api)
            .replace("localhost:8081", &server.listener("Envoy").to_string())
            .replace("-p 6380", &format!("-p {}", server.listener("Redis").port()))
            .replace("127.0.0.1:9600", &server.listener("Admin").to_string())
            .replace("$(openssl rand -hex 16)", TOKEN);
        if session.has_gateway {
            command = command.replace("127.0.0.1:8000", &server.listener("Gateway").to_string());
        }
        match &self.redis {
            Some(redis) => command.replace("redis://cache.internal", &redis.url()),
            None => command,
        }
    }
}

/// A text in which numbers are one and the same: fractions, or all.
fn masked(text: &str, all: bool) -> String {
    let mut masked = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
        let number = number[..end].trim_end_matches('.');
        masked.push_str(before);
        masked.push_str(if all || number.contains('.') { "#" } else { number });
        rest = &rest[at + number.len()..];
    }
    masked.push_str(rest);
    // A wait is shorter than a second, or longer.
    masked.replace("#ms", "#s").replace("#µs", "#s")
}

#[test]
fn sessions_in_guides_run() {
    for session in SESSIONS {
        let guide = guide(session.guide);
        let world = World::start(session, &guide);
        let commands = commands(&guide);
        let is_setting = |command: &str| fate(session.guide, command) == Some(Fate::Setting);
        let settings = commands.iter().filter(|(command, _)| is_setting(command));
        let settings: String = settings.map(|(command, _)| world.here(command, session) + "\n").collect();
        let mut ran = 0;
        for (command, shown) in commands {
            let here = world.here(&command, session);
            if fate(session.guide, &command) != Some(Fate::Session) {
                continue;
            }
            let mut shell = shell_command(world.server.folder.path(), &format!("{settings}{here}"));
            let output = shell.env_remove("TIDEGATE_ADMIN_TOKEN").output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            let is_problem = printed.contains("\"type\":\"about:blank\"") || printed.starts_with("(error)");
            let name = session.guide;
            assert!(output.status.success() && !is_problem, "{name}: {command}\n{here}\n{}", said(&output));
            let [expected, actual] = [shown.as_str(), &*printed].map(|text| masked(text, session.varies));
            let is_expected = shown.is_empty() || is_shown(&expected, &actual);
            assert!(is_expected, "{name}: {command}\n{printed}\nis not\n{shown}");
            ran += 1;
        }
        assert!(ran > 0, "{} has no commands for its session", session.guide);
    }
}

#[test]
fn numbers_that_vary_are_masked() {
    assert_eq!(masked("4.0s, 12ms. 5 at 127.0.0.1", false), "#s, 12ms. 5 at #");
    assert_eq!(masked("4.0s, 12ms. 5", true), "#s, #s. #");
}
