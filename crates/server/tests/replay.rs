//! Tests of `tidegate replay` and `tidegate simulate`.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const RULES: &str = "\
rules:
  - { id: everyone, key: address, limit: 5/s burst 8 }
  - { id: login, match: { method: POST, path: /login }, key: address, limit: log 2/min }
";
const STRICTER: &str = "rules: [{ id: everyone, key: address, limit: fixed 1/min }]\n";

/// Ten seconds of a site: one client tries to log in every second, and another reads a page.
fn log() -> String {
    let line = |second: u32| {
        let time = format!("[15/Nov/2026:09:52:{second:02} +0000]");
        format!(
            "203.0.113.7 - - {time} \"POST /login HTTP/1.1\" 200 2 \"-\" \"curl\"\n\
             2001:db8::7 - ann {time} \"GET / HTTP/1.1\" 200 2 \"-\" \"curl\"\n"
        )
    };
    (10..20).map(line).collect()
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("rules.yaml", RULES), ("stricter.yaml", STRICTER), ("access.log", &log())] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Folder(folder)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(args).current_dir(self.0.path()).env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "no bar where there is no terminal");
        text(&output.stdout)
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.good(args)).unwrap()
    }

    /// The error message of a run that ends with this status.
    fn bad(&self, status: i32, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(status), String::new()));
        text(&output.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_log_is_held_against_rules() {
    let folder = Folder::new();
    let out = folder.good(&["replay", "--rules", "rules.yaml", "access.log"]);
    for part in [
        "access.log (combined): 20 lines",
        "2026-11-15 09:52:10 to 2026-11-15 09:52:19 UTC",
        "denied     8  40.00 %",
        "login     enforce         2       8  log 2/min",
        "keys that would have been limited: 1",
        "longest streak: 8 denials in a row, `203.0.113.7` by login",
        "retry-after: from ",
        "denied    │",
    ] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
}

#[test]
fn programs_get_json_and_spreadsheets_a_table() {
    let folder = Folder::new();
    let report = folder.json(&["replay", "--rules", "rules.yaml", "--format", "json", "access.log"]);
    assert_eq!(report["outcome"]["denied"], 8);
    assert_eq!(report["outcome"]["keys"][0]["key"], "203.0.113.7");
    let table = folder.good(&["replay", "--rules", "rules.yaml", "--format", "csv", "access.log"]);
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("what,limit,key,admitted,denied,longest_streak,first,last"));
    assert!(table.contains("\nkey,login,203.0.113.7,,8,8,2026-11-15 09:52:12,2026-11-15 09:52:19\n"), "{table}");
}

#[test]
fn logs_come_through_a_pipe_too() {
    let folder = Folder::new();
    let mut child = folder
        .command(&["replay", "--rules", "rules.yaml", "--format", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(log().as_bytes()).unwrap();
    let report: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(report["outcome"]["denied"], 8);
    assert_eq!(report["reading"]["logs"][0][0], "standard input");
}

#[test]
fn a_change_of_rules_is_compared() {
    let folder = Folder::new();
    let out = folder.good(&["replay", "--compare", "rules.yaml", "stricter.yaml", "access.log"]);
    for part in
        ["denied by the new rules only  10", "denied by the old rules only  0", "who loses: 2 keys", "2001:db8::/64"]
    {
        assert!(out.contains(part), "{part} in\n{out}");
    }
}

#[test]
fn a_limit_is_suggested_with_rules_and_without() {
    let folder = Folder::new();
    let out = folder.good(&["replay", "--suggest", "access.log"]);
    assert!(out.contains("\nsuggested limit: "), "{out}");
    let pasted = out.split_once("to try it in shadow mode:\n").unwrap().1;
    std::fs::write(folder.0.path().join("suggested.yaml"), pasted).unwrap();
    folder.good(&["check", "suggested.yaml"]);
    assert!(out.contains("of 2 keys; the aim was to leave 99.9 % alone"), "{out}");
    assert!(out.contains("\n  headroom: half of the keys used up to "), "{out}");
    // The output names the keys that would be limited.
    let busy: String = (0..20).map(|tenth| format!("{}.{},203.0.113.7\n", tenth / 10, tenth % 10)).collect();
    std::fs::write(folder.0.path().join("busy.csv"), format!("time,address\n0,198.51.100.9\n{busy}")).unwrap();
    let out = folder.good(&["replay", "--suggest", "--share", "50", "--rules", "rules.yaml", "busy.csv"]);
    assert!(out.contains("would have limited 1 of 2 keys"), "{out}");
    assert!(out.contains("\n    203.0.113.7: 20 requests, would need a burst of "), "{out}");
    assert!(out.contains("\n  to try it in shadow mode, in place of the limit of everyone:\n    limit: "), "{out}");
    let report = folder.json(&[
        "replay",
        "--suggest",
        "--rules",
        "rules.yaml",
        "--share",
        "100",
        "--format",
        "json",
        "access.log",
    ]);
    let limits: Vec<_> =
        report["suggestions"].as_array().unwrap().iter().map(|one| one["limit"].as_str().unwrap()).collect();
    assert_eq!(limits, ["everyone", "login"]);
    let mistaken = folder.bad(2, &["replay", "--suggest", "--key", "adress", "access.log"]);
    assert_eq!(mistaken, "error: --key: `adress` is not a part of a key\n  = did you mean `address`?\n");
}

#[test]
fn a_page_is_written_beside() {
    let folder = Folder::new();
    folder.good(&["replay", "--rules", "rules.yaml", "--html", "report.html", "access.log"]);
    let page = std::fs::read_to_string(folder.0.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("Replay of access.log"));
    // Numbers are aligned with their headers.
    assert!(page.contains("<th scope=\"col\" class=\"n\">wait</th>"), "{page}");
    assert!(page.contains("<td>shortest</td><td class=\"n\">"), "{page}");
}

/// Clients that a limit in shadow mode would have denied were not denied.
#[test]
fn limits_in_shadow_mode_are_reported_separately() {
    let folder = Folder::new();
    let rules = RULES.replace("limit: log 2/min", "limit: log 2/min, mode: shadow");
    std::fs::write(folder.0.path().join("rules.yaml"), rules).unwrap();
    let report = folder.json(&["replay", "--rules", "rules.yaml", "--format", "json", "access.log"]);
    let outcome = &report["outcome"];
    assert_eq!(
        (&outcome["denied"], &outcome["denied_keys"], &outcome["shadow_keys"]),
        (&0.into(), &0.into(), &1.into())
    );
    assert_eq!((&outcome["streak"], &outcome["waits"]), (&Value::Null, &Value::Null));
    assert_eq!(outcome["keys_in_shadow"][0]["key"], "203.0.113.7");
    let out = folder.good(&["replay", "--rules", "rules.yaml", "access.log"]);
    assert!(!out.contains("keys that would have been limited") && !out.contains("longest streak"), "{out}");
    assert!(out.contains("keys that limits in shadow mode would have limited: 1"), "{out}");
}

/// An hour of a site: many clients, one that guesses passwords, one that reads everything, and an invalid line.
fn an_hour() -> String {
    let line = |second: u32, client: &str, request: &str| {
        let time = format!("[14/Nov/2026:08:{:02}:{:02} +0000]", second / 60, second % 60);
        format!("{client} - - {time} \"{request} HTTP/1.1\" 200 512 \"-\" \"Mozilla/5.0\"\n")
    };
    let mut log = String::new();
    for second in 0..3_600 {
        for number in 0..1 + second % 2 {
            let client = format!("203.0.113.{}", 1 + (second * 7 + number * 31) % 135);
            log += &line(second, &client, &format!("GET /items/{}", second % 97));
        }
        if (1_200..2_100).contains(&second) && second % 4 == 0 {
            log += &line(second, "198.51.100.23", "POST /login");
        }
        if (2_400..2_800).contains(&second) {
            (0..10).for_each(|item| log += &line(second, "192.0.2.66", &format!("GET /items/{item}")));
        }
        if second == 1_801 {
            log += "203.0.113.9 - - [14/Nov/2026:08:30:01 +0000] \"\\x16\\x03\\x01\" 400 157 \"-\" \"-\"\n";
        }
    }
    log
}

/// The guide's commands print the output in the guide.
#[test]
fn the_guide_shows_what_the_program_prints() {
    let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/replay.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let blocks = |label: &str| -> Vec<&str> {
        let begin = format!("```{label}\n");
        guide.split(begin.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
    };
    let folder = Folder::new();
    for (name, text) in
        [("rules.yaml", blocks("yaml")[0]), ("stricter.yaml", blocks("yaml")[1]), ("access.log", &an_hour())]
    {
        std::fs::write(folder.0.path().join(name), text).unwrap();
    }
    let consoles = blocks("console");
    assert_eq!(consoles.len(), 3);
    for console in consoles {
        let (command, printed) = console.split_once('\n').unwrap();
        let words: Vec<&str> = command.strip_prefix("$ tidegate ").unwrap().split(' ').collect();
        assert_eq!(folder.good(&words), printed, "{command}");
    }
}

#[test]
fn impossible_requests_are_explained() {
    let folder = Folder::new();
    assert!(folder.bad(2, &["replay", "access.log"]).contains("--rules rules.yaml"));
    assert!(
        folder.bad(1, &["replay", "--rules", "rules.yaml", "missing.log"]).contains("`missing.log` cannot be read")
    );
    assert!(folder.bad(1, &["replay", "--rules", "rules.yaml", "."]).contains("it is a folder"));
    assert!(folder.bad(1, &["replay", "--rules", "rules.yaml", "rules.yaml"]).contains("in an unknown format"));
    assert!(folder.bad(1, &["replay", "--rules", "missing.yaml", "access.log"]).contains("missing.yaml"));
    assert!(folder.bad(2, &["replay", "--suggest", "--share", "0", "access.log"]).contains("above 0"));
    let share = folder.bad(2, &["replay", "--suggest", "--share", "0.999", "access.log"]);
    assert!(share.contains("it is a percentage: write 99.9, or 0.999%"), "{share}");
    folder.good(&["replay", "--suggest", "--share", "99.9%", "access.log"]);
    let small = folder.json(&["replay", "--suggest", "--share", "0.5%", "--format", "json", "access.log"]);
    assert_eq!(small["suggestions"][0]["share"], 0.005);
    // One log is longer than the maximum length of values in rules, and one is not.
    std::fs::write(folder.0.path().join("long.log"), log().repeat(20)).unwrap();
    for log in ["access.log", "long.log"] {
        let swapped = folder.bad(1, &["replay", "--rules", log, "rules.yaml"]);
        assert!(swapped.contains(&format!("`{log}` is a log (combined), not rules: write --rules ")), "{swapped}");
    }
    let checked = folder.run(&["check", "long.log"]);
    let other = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{other}");
    assert!(other.contains("does not look like a rules file, which begins with `rules:`"), "{other}");
}

#[test]
fn a_table_with_an_unknown_column_is_refused_by_its_name() {
    let folder = Folder::new();
    std::fs::write(folder.0.path().join("log.csv"), "time,adress\n0,192.0.2.1\n").unwrap();
    for more in [&[][..], &["--log-format", "csv"]] {
        let args = [&["replay", "--rules", "rules.yaml", "log.csv"], more].concat();
        let said = folder.bad(1, &args);
        assert!(said.contains("unknown column `adress`: known are time, address, "), "{said}");
    }
}

#[test]
fn a_log_without_a_single_request_is_an_error() {
    let folder = Folder::new();
    std::fs::write(folder.0.path().join("log.csv"), "time,address\nsoon,192.0.2.1\nlater,192.0.2.1\n").unwrap();
    let said = folder.bad(1, &["replay", "--rules", "rules.yaml", "log.csv"]);
    assert!(said.contains("none of 2 lines is a request in the format csv. `log.csv`, line 2: its time"), "{said}");
    assert!(said.contains("--log-format"), "{said}");
    std::fs::write(folder.0.path().join("empty.log"), "").unwrap();
    folder.good(&["replay", "--rules", "rules.yaml", "empty.log"]);
}

#[test]
fn a_log_that_lacks_the_key_is_noted() {
    let folder = Folder::new();
    let rules = "rules: [{ id: tenants, key: 'header:X-Tenant', limit: 5/s }, { id: users, key: user, limit: 5/s }]";
    std::fs::write(folder.0.path().join("keyed.yaml"), rules).unwrap();
    let out = folder.good(&["replay", "--rules", "keyed.yaml", "access.log"]);
    for note in [
        "no request in the log has a `header:x-tenant`, the key of tenants: such requests count as one key\n",
        "10 of 20 requests have no `user`, the key of users: such requests count as one key\n",
    ] {
        assert!(out.contains(note), "{note} is not in\n{out}");
    }
    let out = folder.good(&["replay", "--suggest", "--key", "header:X-Tenant", "access.log"]);
    assert!(out.contains("\nno request in the log has a `header:x-tenant`: such requests count as one key\n"), "{out}");
    let report = folder.json(&["replay", "--rules", "keyed.yaml", "--format", "json", "access.log"]);
    let users = &report["outcome"]["unkeyed"][1];
    assert_eq!(
        (&users["rule"], &users["requests"], &users["of"]),
        (&"users".into(), &10.into(), &20.into()),
        "{users}"
    );
    let known = folder.good(&["replay", "--rules", "rules.yaml", "access.log"]);
    assert!(!known.contains("count as one key"), "{known}");
}

#[test]
fn a_simulation_stands_beside_an_estimate() {
    let folder = Folder::new();
    let run = ["simulate", "10/s burst 20", "fixed 10/s", "--traffic", "steady 50/s", "--for", "10s", "--accuracy"];
    let out = folder.good(&run);
    for part in [
        "steady 50/s for 10s, seed 1",
        "10/s burst 20",
        "admitted cost              119           119",
        "wrongly admitted",
    ] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let report = folder.json(&[&run[..], &["--format", "json"]].concat());
    assert_eq!(report["limits"][0]["expected"]["ceiling"], 119);
    assert_eq!(report["limits"][1]["totals"]["admitted"], 100);
}

#[test]
fn a_simulation_is_the_same_every_time() {
    let folder = Folder::new();
    let run =
        ["simulate", "sliding 10/s", "--traffic", "poisson 900/s clients 50 zipf 1.1", "--for", "1min", "--seed", "7"];
    assert_eq!(folder.good(&run), folder.good(&run));
}

#[test]
fn a_run_is_as_long_as_its_traffic_says() {
    let folder = Folder::new();
    let traffic = |text: &str| {
        let report = folder.json(&["simulate", "20/s", "--traffic", text, "--format", "json"]);
        report["micros"].as_u64().unwrap() / 1_000_000
    };
    assert_eq!(traffic("steady 10/s"), 60);
    assert_eq!(traffic("steady 10/s for 5min"), 300);
    assert_eq!(traffic("steady 10/s for 10s then steady 20/s"), 60);
    assert_eq!(traffic("steady 10/s for 1min then spike 1000 then steady 10/s"), 120);
}

#[test]
fn a_fleet_is_simulated_with_the_price_of_a_crash_and_a_partition() {
    let folder = Folder::new();
    let run = ["simulate", "2000/s", "--traffic", "poisson 3000/s", "--for", "12s", "--fleet"];
    let out = folder.good(&[&run[..], &["20"]].concat());
    for part in
        ["20 nodes with leases", "above the limit              0", "2 nodes crash after 6s", "2 nodes cut off for 3s"]
    {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let fleet = &folder.json(&[&run[..], &["20", "--format", "json"]].concat())["limits"][0]["fleet"];
    let number = |value: &Value| value.as_u64().unwrap();
    assert!(number(&fleet["admitted_cost"]) * 100 >= number(&fleet["ideal_cost"]) * 95, "{fleet}");
    assert!(fleet["acceptance"][0].as_f64().unwrap() > 0.4, "{fleet}");
    for fault in [&fleet["crash"], &fleet["partition"]] {
        assert_eq!((number(&fault["excess_cost"]), number(&fault["nodes"])), (0, 2), "{fleet}");
    }
    // A tenth of the requests for three seconds, except those covered by leases.
    assert!((500..1_000).contains(&number(&fleet["partition"]["undecided_cost"])), "{fleet}");
    // Very large fleets can be simulated too.
    let large = ["simulate", "1000000/s", "--traffic", "poisson 100000/s", "--for", "1s", "--fleet"];
    assert!(folder.good(&[&large[..], &["10000"]].concat()).contains("10000 nodes with leases"));
    assert!(folder.bad(2, &[&large[..], &["10001"]].concat()).contains("10000"));
}

#[test]
fn recorded_arrivals_are_simulated_too() {
    let folder = Folder::new();
    std::fs::write(folder.0.path().join("trace.csv"), "0,ann\n0.1,ann\n0.2,ann\n5,bob,3\n").unwrap();
    let report = folder.json(&["simulate", "2/s", "--trace", "trace.csv", "--format", "json"]);
    assert_eq!(report["limits"][0]["totals"]["admitted"], 2);
    assert_eq!(report["limits"][0]["totals"]["too_large"], 1);
    std::fs::write(folder.0.path().join("trace.csv"), "0\nsoon\n").unwrap();
    assert!(folder.bad(1, &["simulate", "2/s", "--trace", "trace.csv"]).contains("line 2: `soon` is not a time"));
    assert!(folder.bad(2, &["simulate", "2/s", "--traffic", "study 5/s"]).contains("not `study`"));
    assert!(folder.bad(2, &["simulate", "2/parsec", "--traffic", "steady 5/s"]).contains("no such unit of time"));
}
