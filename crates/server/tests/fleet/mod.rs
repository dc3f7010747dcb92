//! Tests of fleet commands: the program, a real Redis, and nodes in this process.

mod keys;
mod regions;
mod stored_tiers;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_core::MemoryStore;
use tidegate_redis::fleet::{FleetControl, Following, NodeIdentity};
use tidegate_redis::link::Settings;
use tidegate_rules::{Limiter, Mode, RuleSet};
use tidegate_test_support::redis::Server;
use tidegate_test_support::until;
use tokio::runtime::Runtime;

use crate::support::ran::Ran;

const GOOD: &str = "\
rules:
  - { id: login, key: address, limit: 5/min }
  - { id: search, key: user, limit: 10/s, mode: shadow }
";

const BROKEN: &str = "\
rules:
  - { id: login, key: address, limit: 5/parsec }
";

/// A Redis, a folder with rules files, and nodes.
struct TestFleet {
    server: Server,
    folder: TempDir,
    control: FleetControl,
    runtime: Runtime,
    nodes: Vec<(Arc<Limiter<MemoryStore>>, Following)>,
}

impl TestFleet {
    fn with_nodes(names: &[&str]) -> TestFleet {
        let server = Server::start();
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("rules.yaml", GOOD), ("broken.yaml", BROKEN)] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let control = FleetControl::new(&Settings::standalone(&server.url()).unwrap()).unwrap();
        let runtime = Runtime::new().unwrap();
        let mut place = TestFleet { server, folder, control, runtime, nodes: Vec::new() };
        names.iter().for_each(|name| place.add_node(name));
        until("all nodes", || {
            if names.is_empty() {
                return Some(());
            }
            let fleet = place.run(&["fleet", "--format", "json"]).json();
            (fleet["nodes"].as_array()?.len() == names.len()).then_some(())
        });
        place
    }

    fn add_node(&mut self, name: &str) {
        self.add_node_at(name, "test-host");
    }

    fn add_node_at(&mut self, name: &str, host: &str) {
        let limiter = Arc::new(Limiter::new(RuleSet::default(), MemoryStore::new()));
        let node = NodeIdentity::new(name, host).unwrap();
        let _inside = self.runtime.enter();
        let following = self.control.follow(Arc::clone(&limiter), node, |_| {}).unwrap();
        self.nodes.push((limiter, following));
    }

    fn run(&self, words: &[&str]) -> Ran {
        self.run_at(&self.server.url(), words)
    }

    fn run_at(&self, url: &str, words: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words).current_dir(self.folder.path()).env("TIDEGATE_REDIS", url).env("USER", "ann");
        for name in ["CLICOLOR_FORCE", "NO_COLOR", "TIDEGATE_REDIS_USER", "TIDEGATE_REDIS_PASSWORD"] {
            command.env_remove(name);
        }
        Ran(command.output().unwrap())
    }

    /// The output of a command line, including errors.
    fn shell(&self, line: &str) -> String {
        let folder = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec 2>&1; {line}")]).current_dir(self.folder.path()).env("PATH", path);
        command.env("TIDEGATE_REDIS", self.server.url()).env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }
}

#[test]
fn rules_are_pushed_and_arrive() {
    let place = TestFleet::with_nodes(&["gw-1", "gw-2", "gw-3"]);
    let pushed = place.run(&["rules", "push", "rules.yaml", "--who", "ann"]);
    assert_eq!(pushed.good(), "ok: 2 rules, no problems found\npublished: version 1, by ann; the first\n");
    let fleet = place.run(&["fleet", "--wait", "10"]);
    println!("{}", fleet.good());
    let lines: Vec<&str> = fleet.out().lines().collect();
    assert!(lines[0].starts_with("published: version 1, by ann, "), "{lines:?}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(lines[2]), ["node", "host", "version", "rules", "generation", "since", "state"]);
    for (line, name) in lines[3..6].iter().zip(["gw-1", "gw-2", "gw-3"]) {
        let words = words(line);
        assert_eq!(
            (&words[..5], words.last().unwrap().as_str()),
            (&[name, "test-host", "1", "1", "2"].map(str::to_owned)[..], "current")
        );
    }
    assert_eq!(*lines.last().unwrap(), "3 of 3 have version 1");
    assert!(place.nodes.iter().all(|(limiter, _)| limiter.rules().rules.rules().len() == 2));
    let again = place.run(&["rules", "push", "rules.yaml", "--who", "bob"]);
    assert!(
        again.good().contains("published: version 2, by bob; the last change before it was by ann, "),
        "{}",
        again.out()
    );
}

#[test]
fn broken_rules_are_not_pushed() {
    let place = TestFleet::with_nodes(&[]);
    let ran = place.run(&["rules", "push", "broken.yaml"]);
    assert_eq!(ran.code(), Some(1));
    assert!(ran.out().contains("--> broken.yaml:2:") && ran.out().contains("not usable: 1 error"), "{}", ran.out());
    place.write("including.yaml", "include: rules.yaml\n");
    assert_eq!(place.run(&["rules", "push", "including.yaml"]).code(), Some(1));
    let missing = place.run(&["rules", "push", "missing.yaml"]);
    assert!(missing.code() == Some(1) && missing.out().contains("`missing.yaml` cannot be read"), "{}", missing.out());
    assert!(place.run(&["rules", "push", "."]).bad().contains("is a folder"));
    assert!(place.run(&["rules", "show"]).bad().contains("nothing is published"));
}

#[test]
fn two_operators_do_not_undo_each_others_work() {
    let place = TestFleet::with_nodes(&[]);
    place.run(&["rules", "push", "rules.yaml", "--expect", "0", "--who", "ann"]).good();
    let late = place.run(&["rules", "push", "rules.yaml", "--expect", "0", "--who", "bob"]);
    assert_eq!(late.bad(), "error: version 0 was expected, but version 1 is published, by ann\n");
    assert!(place.run(&["mode", "login", "off", "--expect", "7"]).bad().contains("version 7 was expected"));
    place.run(&["rules", "push", "rules.yaml", "--expect", "1"]).good();
}

#[test]
fn published_rules_are_shown_unchanged() {
    let place = TestFleet::with_nodes(&[]);
    place.run(&["rules", "push", "rules.yaml"]).good();
    place.run(&["mode", "login", "off", "--who", "bob"]).good();
    place.run(&["mode", "--all", "shadow", "--who", "cat"]).good();
    let shown = place.run(&["rules", "show"]);
    assert_eq!(shown.good(), GOOD);
    let about: Vec<&str> = shown.err().lines().map(str::trim_end).collect();
    assert!(about[0].starts_with("version   3, by cat, "), "{about:?}");
    assert!(about[1].starts_with("rules     rules.yaml of version 1, by ann@"), "{about:?}");
    assert!(about[2].starts_with("switched  all rules to shadow, by cat, "), "{about:?}");
    assert!(about[3].starts_with("          login to off, by bob, "), "{about:?}");
    let json = place.run(&["rules", "show", "--format", "json"]).json();
    assert_eq!((&json["version"], &json["rules"]["text"]), (&3.into(), &GOOD.into()));
    assert_eq!((&json["switched"][0]["rule"], &json["switched"][0]["mode"]), (&Value::Null, &"shadow".into()));
    assert_eq!((&json["switched"][1]["rule"], &json["switched"][1]["who"]), (&"login".into(), &"bob".into()));
    assert!(json["at"].as_u64().unwrap() > 1_700_000_000);
}

#[test]
fn modes_are_switched_on_every_node() {
    let place = TestFleet::with_nodes(&["gw-1", "gw-2"]);
    place.run(&["rules", "push", "rules.yaml"]).good();
    assert_eq!(place.run(&["mode", "login", "shadow"]).good(), "published: version 2: `login` is shadow\n");
    place.run(&["fleet", "--wait", "10"]).good();
    let modes =
        |rule: &str| place.nodes.iter().map(|(limiter, _)| limiter.rules().rules.mode_of(rule)).collect::<Vec<_>>();
    assert_eq!(modes("login"), [Some(Mode::Shadow); 2]);
    let all = place.run(&["mode", "--all", "off"]);
    assert_eq!(all.good(), "published: version 3: all rules are off\n");
    place.run(&["fleet", "--wait", "10"]).good();
    assert_eq!((modes("login"), modes("search")), (vec![Some(Mode::Off); 2], vec![Some(Mode::Off); 2]));
    let both = place.run(&["mode", "login", "enforce"]);
    assert!(both.good().contains("note: all rules are switched to off, which takes precedence"), "{}", both.out());
    let back = place.run(&["mode", "--all", "as-written"]);
    assert!(back.good().contains("all rules are as written") && back.out().contains("one rule is still switched"));
    let mistyped = place.run(&["mode", "logn", "off"]);
    let refused = mistyped.bad();
    assert!(refused.contains("rules.yaml of version 1 has no rule `logn`: did you mean `login`?"), "{refused}");
    assert!(refused.contains("add --force"), "{refused}");
    let unknown = place.run(&["mode", "logn", "off", "--force"]);
    let note = "note: rules.yaml of version 1 has no rule `logn`; the switch applies once there is one";
    assert!(unknown.good().contains(note), "{}", unknown.out());
    let fleet = place.run(&["fleet", "--wait", "10"]);
    assert!(fleet.good().contains("gw-1 has no rule for these switches: logn"), "{}", fleet.out());
    let enforce = place.run(&["mode", "--all", "enforce"]);
    assert!(enforce.good().contains("also enforces rules"), "{}", enforce.out());
}

#[test]
fn a_switch_can_have_an_end_that_every_node_keeps() {
    let place = TestFleet::with_nodes(&["gw-1", "gw-2"]);
    place.run(&["rules", "push", "rules.yaml"]).good();
    let timed = place.run(&["mode", "--all", "off", "--for", "15min"]);
    assert_eq!(timed.good(), "published: version 2: all rules are off for 15min\n");
    assert!(place.run(&["rules", "show"]).err().contains("for 15 min more"));
    let shown = place.run(&["rules", "show", "--format", "json"]).json();
    let (at, end) = (shown["switched"][0]["at"].as_u64().unwrap(), shown["switched"][0]["until"].as_u64().unwrap());
    assert!((899..=901).contains(&(end - at)), "{shown}");
    // The switch expires by itself: nothing more is published.
    place.run(&["mode", "--all", "off", "--for", "2s"]).good();
    place.run(&["fleet", "--wait", "10"]).good();
    let modes = || place.nodes.iter().map(|(limiter, _)| limiter.rules().rules.mode_of("login")).collect::<Vec<_>>();
    until("the end", || (modes() == [Some(Mode::Enforce); 2]).then_some(()));
    assert!(place.run(&["rules", "show"]).err().contains("ended"));
    // An expired switch is not published again.
    place.run(&["mode", "login", "shadow"]).good();
    let shown = place.run(&["rules", "show", "--format", "json"]).json();
    assert_eq!(shown["switched"].as_array().unwrap().len(), 1, "{shown}");
}

#[test]
fn a_node_that_lags_or_refuses_is_listed_and_sets_the_exit_status() {
    let mut place = TestFleet::with_nodes(&["gw-1"]);
    place.run(&["rules", "push", "rules.yaml"]).good();
    place.run(&["fleet", "--wait", "10"]).good();
    // A node that does not support rules published by a later version.
    place.server.run::<()>(&["SET", "tidegate:{#steering}:rules", BROKEN]);
    place.add_node("gw-2");
    let refused = until("a refusal", || {
        let ran = place.run(&["fleet"]);
        ran.out().contains("refused").then_some(ran)
    });
    assert_eq!(refused.code(), Some(1), "{}", refused.out());
    println!("{}", refused.out());
    assert!(refused.out().contains("gw-2 keeps its current rules: rules.yaml:2:"), "{}", refused.out());
    assert!(refused.out().ends_with("1 of 2 have version 1\n"), "{}", refused.out());
    let json = place.run(&["fleet", "--format", "json"]);
    assert_eq!(json.code(), Some(1));
    let json = json.json();
    assert_eq!((&json["current"], &json["version"]), (&Value::Bool(false), &1.into()));
    assert_eq!((&json["nodes"][0]["state"], &json["nodes"][1]["state"]), (&"current".into(), &"refused".into()));
    assert!(json["nodes"][1]["refused"].as_str().unwrap().contains("5/parsec"));
    // Waiting for a fleet that never becomes current ends after the timeout.
    assert_eq!(place.run(&["fleet", "--wait", "1"]).code(), Some(1));
    place.run(&["rules", "push", "rules.yaml"]).good();
    place.run(&["fleet", "--wait", "10"]).good();
}

#[test]
fn a_fleet_without_nodes_is_nothing_to_rely_on() {
    let place = TestFleet::with_nodes(&[]);
    let ran = place.run(&["fleet"]);
    assert_eq!((ran.code(), ran.out()), (Some(1), "published: nothing\n\nno node follows\n"));
}

#[test]
fn an_unreachable_redis_is_reported_without_the_password() {
    let mut place = TestFleet::with_nodes(&[]);
    let url = format!("redis://ann:hunter2@{}", place.server.address());
    for words in [&["fleet"][..], &["rules", "show"], &["rules", "push", "rules.yaml"], &["mode", "--all", "off"]] {
        let ran = place.run_at(&url, words);
        assert!(ran.bad().starts_with("error: Redis answered: "), "{}", ran.err());
        assert!(!ran.err().contains("hunter2"));
    }
    place.server.kill();
    let gone = place.run_at(&url, &["fleet"]);
    assert!(gone.bad().starts_with("error: Redis cannot be reached: 127.0.0.1:"), "{}", gone.err());
}

#[test]
fn users_and_passwords_can_come_from_elsewhere() {
    let place = TestFleet::with_nodes(&[]);
    place.server.run::<()>(&["ACL", "SETUSER", "ann", "on", ">hunter2", "~*", "&*", "+@all"]);
    place.server.run::<()>(&["ACL", "SETUSER", "bob", "on", ">hunter2", "~*", "&*", "+@all", "-@write"]);
    place.server.run::<()>(&["ACL", "SETUSER", "default", "off"]);
    let missing = place.run(&["rules", "push", "rules.yaml"]);
    for said in ["this Redis requires a password", "--redis-password", "TIDEGATE_REDIS_PASSWORD", "--redis-user"] {
        assert!(missing.bad().contains(said), "{said}: {}", missing.err());
    }
    let wrong = place.run(&["mode", "login", "off", "--redis-user", "ann", "--redis-password", "hunter3"]);
    assert!(
        wrong.bad().contains("the user or the password is wrong: give the password with `--redis-password`"),
        "{}",
        wrong.err()
    );
    place.run(&["rules", "push", "rules.yaml", "--redis-user", "ann", "--redis-password", "hunter2"]).good();
    place.run(&["mode", "login", "as_written", "--redis-user", "ann", "--redis-password", "hunter2"]).good();
    let weak = place.run(&["mode", "login", "off", "--redis-user", "bob", "--redis-password", "hunter2"]);
    assert!(weak.bad().contains("docs/fleet.md lists the rights"), "{}", weak.err());
}

#[test]
fn usage_errors_have_their_own_exit_status() {
    let place = TestFleet::with_nodes(&[]);
    for (words, wanted) in [
        (&["rules", "push"][..], "FILE"),
        (&["rules"], "push"),
        (&["mode", "login"], "MODE"),
        (&["mode", "off"], "RULE"),
        (&["mode", "login", "on"], "as-written"),
        (&["mode", "login", "off", "--all"], "--all"),
        (&["mode", "login", "off", "--for", "soon"], "--for"),
        (&["mode", "login", "off", "--for", "0s"], "the duration is zero"),
        (&["mode", "login", "as-written", "--for", "5min"], "use only one of them"),
        (&["fleet", "--wait", "soon"], "--wait"),
        (&["fleet", "--redis", "cache.internal"], "error"),
        (&["fleet", "--redis", "http://ann:hunter2@cache.internal"], "error"),
        (&["fleet", "--prefix", "a{b}"], "prefix"),
        (&["fleet", "--tls-ca", "missing.pem"], "missing.pem"),
        (&["fleet", "--tls-ca", "rules.yaml"], "rediss://"),
    ] {
        let ran = place.run(words);
        assert_eq!(ran.code(), Some(2), "{words:?}: {}{}", ran.out(), ran.err());
        assert!(ran.err().contains(wanted) && !ran.err().contains("hunter2"), "{words:?}: {}", ran.err());
    }
}

/// The guide's commands, run in order, print the output in the guide.
#[test]
fn the_guide_shows_what_the_program_prints() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let mut place = TestFleet::with_nodes(&[]);
    place.write("rules.yaml", blocks(&guide, "yaml")[0]);
    for (node, host) in [("gate-1", "eu-a"), ("gate-2", "eu-a"), ("gate-3", "eu-b")] {
        place.add_node_at(node, host);
    }
    until("three nodes", || place.run(&["fleet", "--format", "json"]).json()["nodes"].get(2).map(drop));
    let mut commands = 0;
    for block in blocks(&guide, "console") {
        for story in block.split("$ ").skip(1) {
            let (command, printed) = story.split_once('\n').unwrap();
            assert_eq!(timeless(&place.shell(command)), timeless(printed), "{command}");
            commands += 1;
            // Each change is applied separately, as when an operator types the commands.
            until("all nodes", || place.run(&["fleet"]).out().contains("3 of 3").then_some(()));
        }
    }
    assert!(commands > 8);
}

fn blocks<'g>(guide: &'g str, label: &str) -> Vec<&'g str> {
    let begin = format!("```{label}\n");
    guide.split(begin.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Lines without the parts that vary between runs: elapsed times, and the widths of their columns.
fn timeless(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut line = words.join(" ").replace("just now", "0 s ago");
        for secs in 1..100 {
            line = line.replace(&format!(" {secs} s ago"), " 0 s ago");
        }
        line
    };
    text.trim_end().lines().map(line).collect()
}

#[test]
fn changes_are_listed_shown_compared_and_rolled_back() {
    let place = TestFleet::with_nodes(&["gw-1"]);
    assert!(place.run(&["rules", "history"]).bad().contains("nothing is published"));
    place.run(&["rules", "push", "rules.yaml", "--who", "ann"]).good();
    place.run(&["mode", "login", "off", "--for", "15min", "--who", "bob"]).good();
    let stricter = GOOD.replace("5/min", "3/min").replace("id: search", "id: find");
    place.write("stricter.yaml", &stricter);

    let diff = place.run(&["rules", "diff", "stricter.yaml"]);
    assert_eq!(diff.code(), Some(1), "{}{}", diff.out(), diff.err());
    for line in [
        "added    find\n",
        "removed  search\n",
        "changed  login: limits 5/min -> 3/min\n",
        "--- rules.yaml of version 1\n+++ stricter.yaml\n",
        "-  - { id: login, key: address, limit: 5/min }\n",
        "+  - { id: login, key: address, limit: 3/min }\n",
    ] {
        assert!(diff.out().contains(line), "{line}{}", diff.out());
    }
    assert_eq!(place.run(&["rules", "diff", "rules.yaml"]).good(), "no difference\n");
    place.run(&["rules", "push", "stricter.yaml", "--who", "cat"]).good();
    assert_eq!(place.run(&["rules", "diff", "rules.yaml", "--version", "1"]).good(), "no difference\n");

    let history = place.run(&["rules", "history"]);
    let lines: Vec<&str> = history.good().lines().collect();
    assert!(lines[1].starts_with("     3*  ") && lines[1].ends_with("  cat  rules: stricter.yaml"), "{lines:?}");
    assert!(
        lines[2].starts_with("     2   ") && lines[2].contains("  bob  mode: rule login to off, for "),
        "{lines:?}"
    );
    assert!(lines[3].starts_with("     1   ") && lines[3].ends_with("  ann  rules: rules.yaml"), "{lines:?}");
    let json = place.run(&["rules", "history", "--format", "json"]).json();
    assert_eq!((&json[0]["rules"]["name"], &json[0]["rules"]["kept"]), (&"stricter.yaml".into(), &true.into()));
    assert_eq!((&json[1]["mode"]["rule"], &json[1]["mode"]["mode"]), (&"login".into(), &"off".into()));

    assert_eq!(place.run(&["rules", "show", "--version", "1"]).good(), GOOD);
    assert!(place.run(&["rules", "show", "--version", "2"]).bad().contains("version 2 changed modes"));
    assert!(place.run(&["rules", "rollback", "9"]).bad().contains("version 9 is not among the last changes"));
    assert!(place.run(&["rules", "rollback", "1", "--expect", "2"]).bad().contains("version 2 was expected"));
    let back = place.run(&["rules", "rollback", "1", "--expect", "3", "--who", "dan"]);
    assert!(
        back.good().contains("published: version 4, by dan; the last change before it was by cat"),
        "{}",
        back.out()
    );
    assert_eq!(place.run(&["rules", "show"]).good(), GOOD);
    assert!(place.run(&["rules", "rollback", "4"]).bad().contains("are the ones that are published"));
    assert!(place.run(&["rules", "rollback", "2"]).bad().contains("has no rules to go back to"));
    assert!(place.run(&["rules", "history"]).good().contains("dan  rules: rules.yaml, rollback to version 1"));
    until("the node", || {
        let rules = place.nodes[0].0.rules();
        let is_back = rules.rules.rules().iter().any(|rule| rule.id() == "search");
        (is_back && rules.rules.mode_of("login") == Some(Mode::Off)).then_some(())
    });
}

#[test]
fn explain_shows_the_bound_of_write_behind_for_the_present_fleet() {
    let place = TestFleet::with_nodes(&["gw-1", "gw-2", "gw-3"]);
    place.run(&["rules", "push", "rules.yaml"]).good();
    place.run(&["fleet", "--wait", "10"]).good();
    place.write("soft.yaml", "rules: [{ id: soft, limit: 1000/s, write_behind: { at_most: 5% } }]\n");
    let line = "1000/s, cost 1, write-behind every 100ms: the fleet admits at most 50 more (5%)";
    let shown = place.run(&["explain", "soft.yaml", "--request", "GET /"]);
    assert!(shown.good().contains(&format!("{line}; 16 unreported at each of 3 nodes\n")), "{}", shown.out());
    let given = place.run(&["explain", "soft.yaml", "--request", "GET /", "--nodes", "5"]);
    assert!(given.good().contains(&format!("{line}; 10 unreported at each of 5 nodes\n")), "{}", given.out());
    let many = place.run(&["explain", "soft.yaml", "--request", "GET /", "--nodes", "51"]);
    assert!(many.good().contains("; with 51 nodes that is less than one each, so Redis decides\n"), "{}", many.out());
    let json = place.run(&["explain", "soft.yaml", "--request", "GET /", "--nodes", "5", "--format", "json"]).json();
    assert!(json.to_string().contains("\"each_node\":10"), "{json}");
}
