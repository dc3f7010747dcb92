//! Runs the commands in the guides that need only files, and compares their output with the one that the guides show.
//!
//! Commands that start a server are passed to `tidegate config`, which takes the same flags and rejects invalid ones. Commands that
//! use a server are in [`sessions`](crate::docs::sessions).

use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::docs::blocks::{Fate, Kind, fate, kind};
use crate::docs::guide::{Guide, guide, guides, plain};
use crate::support::{Process, Server, folder, free_port, until};

/// Commands that need only files.
const ALONE: [&str; 5] = ["check", "explain", "replay", "simulate", "test"];
/// Options that need a server, or a file that guides do not show.
const NEEDS_MORE: [&str; 3] = ["--redis", "--jwt", "--config"];

const RULES: &str = "rules: [{ id: api, key: address, limit: 20/s burst 50 }]\n";
const LOG: &str = "time,address,method,path\n0,203.0.113.7,GET,/\n1,203.0.113.7,POST,/login\n";
const DESCRIPTORS: &str =
    "domain: edge\ndescriptors: [{ key: user, rate_limit: { unit: second, requests_per_unit: 9 } }]\n";
const TESTS: &str =
    "rules: rules.yaml\ntests: [{ name: one, steps: [{ request: GET /, address: 203.0.113.7, expect: allowed }] }]\n";

/// Whether a command needs nothing but files.
pub(crate) fn is_alone(command: &str) -> bool {
    let name = command.strip_prefix("tidegate ").and_then(|rest| rest.split(' ').next());
    name.is_some_and(|name| ALONE.contains(&name)) && !NEEDS_MORE.iter().any(|flag| command.contains(flag))
}

/// A shell command line with `tidegate` in its `PATH`.
pub(crate) fn shell_command(place: &Path, line: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("PATH", path).env_remove("CLICOLOR_FORCE").current_dir(place);
    command
}

pub(crate) fn shell(place: &Path, line: &str) -> Output {
    shell_command(place, line).output().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Whether an output is the one that a guide shows. Spaces do not count, and `…` stands for anything.
pub(crate) fn is_shown(shown: &str, output: &str) -> bool {
    let dense = |text: &str| text.split_whitespace().collect::<String>();
    let (shown, output) = (dense(shown), dense(output));
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| output.strip_prefix(first)) else { return false };
    let mut is_whole = rest.is_empty();
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        is_whole = rest.is_empty() || part.is_empty();
    }
    is_whole
}

/// The commands of a guide with what they print there, in order: below the prompt, or in the next block.
pub(crate) fn commands(guide: &Guide) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (at, block) in guide.blocks.iter().enumerate() {
        match kind(guide, at) {
            Some(Kind::Commands) => {
                all.extend(block.commands().into_iter().map(|shown| (shown.command, shown.output)));
            }
            Some(Kind::Output) => {
                if let Some((_, output)) = all.last_mut() {
                    // A part of the output, on its own.
                    *output = format!("…\n{}\n…", block.text);
                }
            }
            _ => {}
        }
    }
    all
}

#[test]
fn commands_in_guides_run() {
    let (mut ran, mut read, mut compared) = (0, 0, 0);
    for guide in guides() {
        let rules = guide.rules().unwrap_or(RULES);
        let files = [("rules.yaml", rules), ("stricter.yaml", rules), ("ratelimit.yaml", DESCRIPTORS)];
        let tests = guide.labelled("yaml,test").next().unwrap_or(TESTS);
        let more =
            [("access.log", LOG), ("config/edge.yaml", DESCRIPTORS), ("tidegate.yaml", ""), ("rules.test.yaml", tests)];
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("config")).unwrap();
        for (name, text) in files.iter().chain(&more) {
            std::fs::write(place.path().join(name), text).unwrap();
        }
        for (command, shown) in commands(&guide) {
            let command = plain(&command);
            match fate(&guide.name, &command) {
                Some(Fate::Server) => {
                    let output = shell(place.path(), &command.replacen("tidegate serve", "tidegate config", 1));
                    assert!(output.status.success(), "{}: {command}\n{}", guide.name, said(&output));
                    read += 1;
                }
                Some(Fate::Alone) => {
                    let output = shell(place.path(), &command);
                    assert!(output.status.success(), "{}: {command}\n{}", guide.name, said(&output));
                    ran += 1;
                    if !shown.is_empty() {
                        let printed = String::from_utf8_lossy(&output.stdout);
                        assert!(is_shown(&shown, &printed), "{}: {command}\n{printed}\nis not\n{shown}", guide.name);
                        compared += 1;
                    }
                }
                _ => {}
            }
        }
    }
    assert!(ran > 12 && read > 6 && compared > 4, "{ran} ran, {read} read, {compared} compared");
}

/// The service that the guide starts, on a free port, with its URL.
fn service(guide: &Guide, place: &Path) -> (Process, String) {
    let mut lines = guide.labelled("sh").flat_map(str::lines);
    let port = free_port().to_string();
    let line = lines.find(|line| line.starts_with("python3 ")).unwrap().replace("3000", &port);
    let mut command = shell_command(place, &format!("exec {line}"));
    let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let address = format!("127.0.0.1:{port}");
    until("a connection to the service", || TcpStream::connect(&address).ok());
    (Process(process), format!("http://{address}"))
}

/// The first steps, in order, end with the promised denial.
#[test]
fn getting_started_ends_with_a_denial() {
    let guide = guide("getting-started.md");
    let rules = guide.rules().unwrap();
    let place = folder(&[("rules.yaml", rules)]);
    let checked = guide.calls().into_iter().filter(|call| call.starts_with("tidegate check"));
    checked.for_each(|call| assert!(shell(place.path(), &call).status.success(), "{call}"));

    let (_service, upstream) = service(&guide, place.path());
    let args = ["--rules", "rules.yaml", "--gateway", "127.0.0.1:0", "--upstream", &upstream];
    let server = Server::start(&[("rules.yaml", rules)], &args);
    let gateway = server.listener("Gateway").to_string();
    let lines = guide.labelled("sh").flat_map(str::lines);
    let asks: Vec<&str> = lines.filter(|line| line.contains("curl ") && line.contains("127.0.0.1:8000")).collect();
    let [six, once] = asks[..] else { panic!("{asks:?}") };
    let run = |line: &str| said(&shell(place.path(), &line.replace("127.0.0.1:8000", &gateway)));
    let shown = guide.labelled("text").find(|block| block.starts_with("501\n")).unwrap();
    assert_eq!(run(six).trim_end(), shown);
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

#[test]
fn an_output_that_differs_is_noticed() {
    assert!(is_shown("a  b\n…\nd", "a b\nc\nd\n") && is_shown("a…", "ab") && is_shown("a", "a\n"));
    for (shown, output) in [("a", "ab"), ("a…c", "ab"), ("b…", "ab"), ("a…b", "abc"), ("a … b", "a")] {
        assert!(!is_shown(shown, output), "{shown} {output}");
    }
}
