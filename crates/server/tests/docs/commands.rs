//! The commands of the guides run.
//!
//! Those that need neither a server nor a Redis are run as they are written, with the rules of their guide. Those that start a server
//! are read by `tidegate config`, which takes the same flags and refuses what the server could not use. What talks to a server or a
//! Redis is run by the tests of the guides of their own: `fleet`, `identity`, `serve`.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Server, folder};
use crate::{Guide, guides};

/// Commands that need nothing but files.
const ALONE: [&str; 5] = ["check", "explain", "replay", "simulate", "test"];
/// Options that need a server or a file that guides do not show.
const NEEDS_MORE: [&str; 3] = ["--redis", "--jwt", "--config"];

const RULES: &str = "rules: [{ id: api, key: address, limit: 20/s burst 50 }]\n";
const LOG: &str = "time,address,method,path\n0,203.0.113.7,GET,/\n1,203.0.113.7,POST,/login\n";
const DESCRIPTORS: &str =
    "domain: edge\ndescriptors: [{ key: user, rate_limit: { unit: second, requests_per_unit: 9 } }]\n";
const TESTS: &str =
    "rules: rules.yaml\ntests: [{ name: one, steps: [{ request: GET /, address: 203.0.113.7, expect: allowed }] }]\n";

/// Runs a line of a shell with `tidegate` in its path.
fn shell(place: &Path, line: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    Command::new("sh").args(["-c", line]).env("PATH", path).current_dir(place).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The calls of `tidegate` in a guide's blocks for shells.
fn calls(guide: &Guide) -> Vec<String> {
    let shells = guide.blocks.iter().filter(|(label, _)| ["sh", "console"].contains(&label.as_str()));
    let joined: Vec<String> = shells.map(|(_, block)| block.replace("\\\n", " ")).collect();
    let lines = joined.iter().flat_map(|block| block.lines()).flat_map(|line| line.split("&&"));
    let calls =
        lines.map(|line| line.trim().trim_start_matches(['$', ' ']).replace("cargo run -p tidegate --", "tidegate"));
    let calls = calls.map(|call| call.split(" # ").next().unwrap_or_default().trim_end_matches(['&', ' ']).to_owned());
    calls.filter(|call| call.starts_with("tidegate ")).collect()
}

/// The first block of a guide that is a rules file.
fn rules(guide: &Guide) -> &str {
    let is_rules =
        |block: &str| block.starts_with("rules:\n") || block.starts_with("tiers:") || block.starts_with("region:");
    let blocks = guide.blocks.iter().filter(|(label, block)| label == "yaml" && is_rules(block));
    blocks.map(|(_, block)| block.as_str()).find(|block| block.contains("id:")).unwrap_or(RULES)
}

#[test]
fn commands_in_guides_run() {
    let (mut ran, mut read) = (0, 0);
    for guide in guides() {
        let rules = rules(&guide);
        let files = [("rules.yaml", rules), ("stricter.yaml", rules), ("ratelimit.yaml", DESCRIPTORS)];
        let more =
            [("access.log", LOG), ("config/edge.yaml", DESCRIPTORS), ("tidegate.yaml", ""), ("rules.test.yaml", TESTS)];
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("config")).unwrap();
        for (name, text) in files.iter().chain(&more) {
            std::fs::write(place.path().join(name), text).unwrap();
        }
        for call in calls(&guide) {
            let command = call.split_whitespace().nth(1).unwrap_or_default();
            if let Some(flags) = call.strip_prefix("tidegate serve") {
                let output = shell(place.path(), &format!("tidegate config{flags}"));
                assert!(output.status.success(), "{}: {call}\n{}", guide.name, said(&output));
                read += 1;
            } else if ALONE.contains(&command) && !NEEDS_MORE.iter().any(|flag| call.contains(flag)) {
                let output = shell(place.path(), &call);
                assert!(output.status.success(), "{}: {call}\n{}", guide.name, said(&output));
                ran += 1;
            }
        }
    }
    assert!(ran > 12 && read > 6, "{ran} ran, {read} read");
}

/// A service that answers every request with 204.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let _ = reader.into_inner().write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

/// The first steps, in their order, end with the denial that they promise.
#[test]
fn getting_started_ends_with_a_denial() {
    let all = guides();
    let guide = all.iter().find(|guide| guide.name == "getting-started.md").unwrap();
    let place = folder(&[("rules.yaml", rules(guide))]);
    let checked = calls(guide).into_iter().filter(|call| call.starts_with("tidegate check"));
    checked.for_each(|call| assert!(shell(place.path(), &call).status.success(), "{call}"));

    let upstream = format!("http://{}", service());
    let args = ["--rules", "rules.yaml", "--gateway", "127.0.0.1:0", "--upstream", &upstream];
    let server = Server::start(&[("rules.yaml", rules(guide))], &args);
    let gateway = server.listener("Gateway").to_string();
    let lines = guide.blocks.iter().filter(|(label, _)| label == "sh").flat_map(|(_, block)| block.lines());
    let asks: Vec<&str> = lines.filter(|line| line.contains("curl ")).collect();
    let [six, once] = asks[..] else { panic!("{asks:?}") };
    let run = |line: &str| said(&shell(place.path(), &line.replace("127.0.0.1:8000", &gateway)));
    assert_eq!(run(six), "204\n204\n204\n204\n204\n429\n");
    let denied = run(once).to_ascii_lowercase();
    assert!(denied.starts_with("http/1.1 429") && denied.contains("\r\nretry-after: "), "{denied}");
}

#[test]
fn a_command_that_does_not_run_is_noticed() {
    let place = folder(&[("rules.yaml", RULES)]);
    for call in ["tidegate check missing.yaml", "tidegate config --rules missing.yaml", "tidegate simulate '5/parsec'"]
    {
        assert!(!shell(place.path(), call).status.success(), "{call}");
    }
}
