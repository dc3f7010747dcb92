//! The program as people and scripts meet it.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

#[path = "support/ran.rs"]
mod ran;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::ran::Ran;

/// A folder with files in it, in which the program is run.
struct Folder(TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Folder(folder)
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(args).current_dir(self.0.path()).env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
        Ran(command.output().unwrap())
    }
}

const GOOD: &str = "\
rules:
  - id: login
    preset: login
    match: { method: POST, path: /login }
  - id: everything
    key: api_key
    limit: 20/s burst 50
";

const DOUBTFUL: &str = "rules: [{ id: by-header, key: 'header:X-Client', limit: 5/s }]\n";

const BROKEN: &str = "\
rules:
  - id: one
    limit: 20/parsec
  - id: two
    limt: 5/s
";

#[test]
fn envoys_files_are_counted_too() {
    let envoy = "
domain: edge
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 5 }
    descriptors: [{ key: plan, rate_limit: { unit: day, requests_per_unit: 9 } }]
";
    let folder = Folder::with(&[("edge.yaml", envoy), ("rules.yaml", GOOD)]);
    let alone = folder.run(&["check", "edge.yaml"]);
    assert_eq!(alone.good(), "ok: 1 domain with 2 descriptors, no problems found\n");
    let both = folder.run(&["check", "edge.yaml", "rules.yaml"]);
    assert_eq!(both.good(), "ok: 2 rules and 1 domain with 2 descriptors, no problems found\n");
    let report = folder.run(&["check", "--format", "json", "edge.yaml"]).json();
    assert_eq!((&report["rules"], &report["domains"], &report["descriptors"]), (&0.into(), &1.into(), &2.into()));
}

#[test]
fn good_rules_are_called_good() {
    let folder = Folder::with(&[("rules.yaml", GOOD)]);
    assert_eq!(folder.run(&["check", "rules.yaml"]).good(), "ok: 2 rules, no problems found\n");
}

#[test]
fn warnings_are_listed_and_allowed() {
    let folder = Folder::with(&[("rules.yaml", DOUBTFUL)]);
    let ran = folder.run(&["check", "rules.yaml"]);
    let out = ran.good();
    assert!(out.starts_with("warning: ") && out.contains("--> rules.yaml:1:"), "{out}");
    assert!(out.ends_with("\nok: 1 rule, 1 warning\n"), "{out}");
}

#[test]
fn warnings_can_be_denied() {
    let folder = Folder::with(&[("doubtful.yaml", DOUBTFUL), ("good.yaml", GOOD)]);
    let denied = folder.run(&["check", "--deny-warnings", "doubtful.yaml"]);
    assert_eq!(denied.code(), Some(1));
    assert!(denied.out().contains("denied: 1 rule, 1 warning, and --deny-warnings is set"), "{}", denied.out());
    assert_eq!(folder.run(&["check", "--deny-warnings", "good.yaml"]).code(), Some(0));
}

#[test]
fn rules_can_come_by_standard_input() {
    let folder = Folder::with(&[("good.yaml", GOOD), ("broken.yaml", BROKEN)]);
    for (file, code) in [("good.yaml", 0), ("broken.yaml", 1)] {
        for name in ["-", "/dev/stdin"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
            command.args(["check", name]).stdin(std::fs::File::open(folder.0.path().join(file)).unwrap());
            let ran = Ran(command.output().unwrap());
            assert_eq!(ran.code(), Some(code), "{}", ran.out());
            assert!(code == 0 || ran.out().contains("--> standard input:3:"), "{}", ran.out());
        }
    }
}

#[test]
fn the_output_of_init_passes_check_and_a_configuration_is_not_taken_for_rules() {
    let folder = Folder::with(&[]);
    folder.run(&["init", "here"]).good();
    assert!(folder.run(&["check", "here"]).good().starts_with("ok: "));
    let ran = folder.run(&["check", "here/tidegate.yaml"]);
    assert_eq!(ran.code(), Some(1));
    let folder = Folder::with(&[("own.yaml", "rules: [rules.yaml]\napi:\n  listen: 127.0.0.1:8080\n")]);
    let ran = folder.run(&["check", "own.yaml"]);
    assert!(ran.out().contains("this is the configuration of a server"), "{}", ran.out());
    assert!(ran.out().contains("--> own.yaml:2:1") && ran.out().contains("1 error\n"), "{}", ran.out());
}

#[test]
fn every_error_is_shown_with_its_place() {
    let folder = Folder::with(&[("rules.yaml", BROKEN)]);
    let ran = folder.run(&["check", "rules.yaml"]);
    assert_eq!(ran.code(), Some(1));
    for part in ["--> rules.yaml:3:", "20/parsec", "--> rules.yaml:5:", "did you mean `limit`?", "not usable: "] {
        assert!(ran.out().contains(part), "{part} in {}", ran.out());
    }
    assert!(!ran.out().contains('\u{1b}'), "colours are for terminals");
}

#[test]
fn colours_can_be_asked_for() {
    let folder = Folder::with(&[("rules.yaml", BROKEN)]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(["check", "rules.yaml"])
        .current_dir(folder.0.path())
        .env("CLICOLOR_FORCE", "1")
        .env_remove("NO_COLOR");
    assert!(Ran(command.output().unwrap()).out().contains("\u{1b}[1m"));
    let is_coloured = |when: &str| folder.run(&["check", "rules.yaml", "--color", when]).out().contains('\u{1b}');
    assert_eq!(["auto", "always", "never"].map(is_coloured), [false, true, false]);
}

#[test]
fn folders_are_checked_as_one() {
    let twice = Folder::with(&[("rules/a.yaml", GOOD), ("rules/b.yaml", GOOD)]);
    let ran = twice.run(&["check", "rules"]);
    assert_eq!(ran.code(), Some(1));
    assert!(ran.out().contains("login"), "{}", ran.out());
    let both = Folder::with(&[("rules/a.yaml", GOOD), ("rules/b.yaml", DOUBTFUL)]);
    assert!(both.run(&["check", "rules"]).good().ends_with("ok: 3 rules, 1 warning\n"));
}

#[test]
fn findings_come_as_json_too() {
    let folder = Folder::with(&[("rules.yaml", BROKEN), ("good.yaml", GOOD)]);
    let ran = folder.run(&["check", "--format", "json", "rules.yaml"]);
    assert_eq!(ran.code(), Some(1));
    let report = ran.json();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(report["errors"].as_u64(), u64::try_from(findings.len()).ok());
    assert_eq!((&report["usable"], &report["rules"]), (&Value::Bool(false), &Value::Null));
    let first = &findings[0];
    assert_eq!(
        (&first["severity"], &first["file"], &first["line"]),
        (&"error".into(), &"rules.yaml".into(), &3.into())
    );
    assert!(first["column"].is_u64() && first["problem"].is_string() && first["help"].is_string(), "{first}");
    assert_eq!(first["excerpt"], "    limit: 20/parsec");

    let good = folder.run(&["check", "--format", "json", "good.yaml"]);
    assert_eq!(good.code(), Some(0));
    assert_eq!((&good.json()["rules"], &good.json()["findings"]), (&2.into(), &Value::Array(Vec::new())));
}

#[test]
fn a_file_that_is_not_there_is_an_error() {
    let ran = Folder::with(&[]).run(&["check", "missing.yaml"]);
    assert_eq!(ran.code(), Some(1));
    assert!(ran.out().contains("`missing.yaml` cannot be read"), "{}", ran.out());
}

#[test]
fn usage_errors_have_their_own_exit_status() {
    let folder = Folder::with(&[("rules.yaml", GOOD)]);
    assert!(folder.run(&["check"]).usage_error().contains("FILE"));
    assert!(folder.run(&["chekc", "rules.yaml"]).usage_error().contains("check"));
    assert!(folder.run(&["check", "--format", "xml", "rules.yaml"]).usage_error().contains("json"));
    assert!(folder.run(&["explain", "rules.yaml"]).usage_error().contains("--request"));
}

const MANY: &str = "\
tiers: { from: 'header:X-Tier', default: free }
rules:
  - { id: old, limit: 1/s, mode: off }
  - { id: usual, limit: 100/s }
  - id: search
    match: { path: '/search/{what}', header: { X-Env: prod } }
    key: [address, 'path:what']
    limits: [20/s burst 50, { name: daily, limit: fixed 1000/day, cost: hits }]
    on_store_failure: deny
    store_deadline: 50ms
    replaces: usual
  - { id: dark, limit: 2/s, mode: shadow }
  - { id: staff, match: { address: 10.0.0.0/8 }, limit: unlimited }
  - { id: keys, key: api_key, tiers: { free: 5/s }, stop: true }
  - { id: beyond, limit: 1/s }
";

#[test]
fn an_explanation_tells_of_every_rule() {
    let folder = Folder::with(&[("rules.yaml", MANY)]);
    let ran = folder.run(&[
        "explain",
        "rules.yaml",
        "--request",
        "get /search/./tea/?q=1",
        "--header",
        "X-Env: prod",
        "--header",
        "Host: API.example.com:8443",
        "--ip",
        "::ffff:203.0.113.7",
        "--api-key",
        "hush",
        "--hits",
        "3",
    ]);
    assert_eq!(
        ran.good(),
        "\
method   GET
host     api.example.com
path     /search/tea
address  203.0.113.7
tier     free

old     off
usual   replaced     by `search`
search  match        key             address 203.0.113.7, path:what tea
                     limit           20/s burst 50, cost 1
                     limit           fixed 1000/day, cost 3 by hits
                     mode            enforce
                     store failure   deny
                     store deadline  50ms
                     written in      rules.yaml:5:5
dark    match        key             shared by all requests
                     limit           2/s, cost 1
                     mode            shadow
                     store failure   allow
                     written in      rules.yaml:12:5
staff   no match     address is `203.0.113.7`, wanted `10.0.0.0/8`
keys    match        key             api_key #f28f794d
                     limit           5/s, cost 1 (for this tier)
                     mode            enforce
                     store failure   allow
                     written in      rules.yaml:14:5
beyond  not reached  `keys` stops the search

rules that match: 3 of 7
"
    );
}

#[test]
fn an_explanation_tells_where_costs_come_from_and_how_they_are_settled() {
    let rules = "
rules:
  - id: model
    limits:
      - { name: tokens, limit: 9000/min, cost: 'body:max_tokens', settle: 'body:usage.total_tokens' }
      - { name: money, limit: 9000/day, cost: { from: 'body:max_tokens', times: 15 }, settle: { 'body:in': 3, 'header:X-Out': 15 } }
";
    let folder = Folder::with(&[("rules.yaml", rules)]);
    let explain = ["explain", "rules.yaml", "--request", "POST /v1/chat/completions", "--body", "max_tokens=500"];
    let ran = folder.run(&explain);
    for line in [
        "9000/min, cost 500 by body:max_tokens, to be settled within 10min at the response's body:usage.total_tokens\n",
        "9000/day, cost 7500 by 15 × body:max_tokens, to be settled within 10min at the response's 3 × body:in + 15 × header:x-out\n",
    ] {
        assert!(ran.good().contains(line), "{line} is not in {}", ran.good());
    }
}

#[test]
fn an_explanation_comes_as_json_too() {
    let folder = Folder::with(&[("rules.yaml", MANY)]);
    let ran = folder.run(&["explain", "--format=json", "rules.yaml", "--request", "GET /x", "--ip", "192.0.2.7"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.err());
    let report = ran.json();
    assert_eq!(
        (&report["path"], &report["tier"], &report["address"]),
        (&"/x".into(), &"free".into(), &"192.0.2.7".into())
    );
    assert_eq!(report["matched"], serde_json::json!(["usual", "dark", "keys"]));
    assert_eq!(report["refused_by"], Value::Null);
    let rule = |id: &str| report["rules"].as_array().unwrap().iter().find(|rule| rule["id"] == id).unwrap();
    assert_eq!(rule("staff")["outcome"], "mismatch");
    assert_eq!((&rule("staff")["condition"], &rule("staff")["actual"]), (&"address".into(), &"192.0.2.7".into()));
    assert_eq!((&rule("usual")["outcome"], &rule("usual")["limits"][0]["limit"]), (&"matched".into(), &"100/s".into()));
    assert_eq!((&rule("usual")["file"], &rule("usual")["line"]), (&"rules.yaml".into(), &4.into()));
}

#[test]
fn broken_rules_cannot_be_explained() {
    let folder = Folder::with(&[("rules.yaml", BROKEN)]);
    let ran = folder.run(&["explain", "rules.yaml", "--request", "GET /"]);
    assert_eq!((ran.code(), ran.out()), (Some(1), ""));
    assert!(ran.err().contains("--> rules.yaml:3:"), "{}", ran.err());
}

#[test]
fn a_mistake_in_the_request_comes_with_what_to_write() {
    let folder = Folder::with(&[("rules.yaml", GOOD)]);
    let explain = |more: &[&str]| {
        let args = [&["explain", "rules.yaml", "--request", "GET /"], more].concat();
        folder.run(&args).usage_error().to_owned()
    };
    for (more, wanted) in [
        (["--ip", "203.0.113.7:80"], "write it without the port: 203.0.113.7"),
        (["--ip", "home"], "such as 203.0.113.7"),
        (["--header", "X-Env"], "'X-Env: prod'"),
        (["--claim", "sub"], "write sub=value"),
        (["--hits", "many"], "--hits"),
    ] {
        let message = explain(&more);
        assert!(message.contains(wanted), "{message}");
    }
    let message = folder.run(&["explain", "rules.yaml", "--request", "/login"]);
    assert!(message.usage_error().contains("write 'GET /login'"), "{}", message.err());
}

#[test]
fn the_schema_is_printed_and_the_one_in_the_documentation_is_current() {
    let ran = Folder::with(&[]).run(&["schema"]);
    let schema: Value = serde_json::from_str(ran.good()).unwrap();
    assert_eq!(schema["title"], "Tidegate rules");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.schema.json");
    let shipped = std::fs::read_to_string(shipped).unwrap_or_default();
    assert!(shipped == ran.out(), "run `cargo run -p tidegate -- schema > docs/rules.schema.json`");
}

#[test]
fn help_has_an_example_for_every_command() {
    let folder = Folder::with(&[]);
    for command in ["check", "explain", "rules push", "rules show", "mode", "fleet", "schema"] {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let ran = folder.run(&words);
        assert!(ran.good().contains(&format!("  tidegate {command}")), "{}", ran.out());
    }
    assert!(folder.run(&["--help"]).good().contains("tidegate check rules.yaml"));
}

const TESTED: &str = "\
rules:
  - { id: login, match: { path: /login }, key: address, limit: 5/min burst 5 }
  - { id: slots, match: { path: /export }, limit: concurrent 2 ttl 1min }
";

const TESTS: &str = "\
rules: rules.yaml
tests:
  - name: the sixth login at once is denied
    steps:
      - { request: POST /login, address: 203.0.113.7, times: 5, expect: allowed }
      - { request: POST /login, address: 203.0.113.7, expect: denied, by: login, retry_after: 12s }
      - { request: POST /login, address: 203.0.113.8, expect: allowed }
      - { after: 12s, request: POST /login, address: 203.0.113.7, expect: allowed }
  - name: two exports at a time
    steps:
      - { request: GET /export, times: 3, expect: allowed }
      - { request: GET /export, times: 2, hold: true, expect: allowed }
      - { request: GET /export, expect: denied, by: slots }
";

#[test]
fn rules_are_tested_without_waiting() {
    let folder = Folder::with(&[("rules/rules.yaml", TESTED), ("rules/rules.test.yaml", TESTS)]);
    let ran = folder.run(&["test", "rules/rules.test.yaml"]);
    let expected = "passed  the sixth login at once is denied\npassed  two exports at a time\n2 tests: all passed\n";
    assert_eq!(ran.good(), expected);

    let looser = TESTED.replace("5/min burst 5", "5/min burst 6");
    let folder = Folder::with(&[("looser.yaml", &looser), ("rules.yaml", TESTED), ("t.yaml", TESTS)]);
    folder.run(&["test", "t.yaml"]).good();
    let ran = folder.run(&["test", "t.yaml", "--rules", "looser.yaml"]);
    assert_eq!(ran.code(), Some(1));
    for line in [
        "failed  the sixth login at once is denied\n",
        "        t.yaml:6:9: request 1 of this step is allowed; expected: denied\n",
        "          login allows it: 0 of 6 left\n",
        "2 tests: 1 failed\n",
    ] {
        assert!(ran.out().contains(line), "{line}{}", ran.out());
    }
    let report = folder.run(&["test", "t.yaml", "--rules", "looser.yaml", "--format", "json"]).json();
    assert_eq!((&report["passed"], &report["failed"]), (&1.into(), &1.into()));
    assert_eq!((&report["tests"][0]["failure"]["line"], &report["tests"][1]["failure"]), (&6.into(), &Value::Null));
}

#[test]
fn failed_expectations_are_described() {
    let failure = |step: &str| {
        let tests = format!("rules: rules.yaml\ntests:\n- name: one\n  steps:\n  - {step}\n");
        let folder = Folder::with(&[("rules.yaml", TESTED), ("t.yaml", &tests)]);
        let ran = folder.run(&["test", "t.yaml"]);
        assert_eq!(ran.code(), Some(1), "{step}");
        ran.out().lines().nth(1).unwrap().split_once("this step ").unwrap().1.to_owned()
    };
    assert_eq!(
        failure("{ request: POST /login, address: 203.0.113.7, times: 6, expect: allowed }"),
        "is denied by `login`; expected: allowed"
    );
    assert_eq!(
        failure("{ request: GET /other, expect: denied }"),
        "is allowed, since no rule limits it; expected: denied"
    );
    let held = "{ request: GET /export, times: 2, hold: true, expect: allowed }\n  - ";
    assert_eq!(
        failure(&format!("{held}{{ request: GET /export, expect: denied, by: login }}")),
        "is denied by `slots`; expected: denied by `login`"
    );
    let spent = "{ request: POST /login, times: 5, expect: allowed }\n  - ";
    assert_eq!(
        failure(&format!("{spent}{{ request: POST /login, expect: denied, retry_after: 10s }}")),
        "is told to retry after 12s; expected: 10s"
    );
}

#[test]
fn mistakes_in_a_test_file_are_pointed_at() {
    let told = |tests: &str| {
        let folder = Folder::with(&[("rules.yaml", TESTED), ("t.yaml", tests)]);
        let ran = folder.run(&["test", "t.yaml"]);
        assert_eq!(ran.code(), Some(1), "{tests}: {}", ran.out());
        ran.err().to_owned()
    };
    let in_step = |step: &str| told(&format!("rules: rules.yaml\ntests:\n- name: one\n  steps:\n  - {step}\n"));
    for (step, wanted) in [
        ("{ request: GET /, expect: maybe }", "write `allowed` or `denied`"),
        ("{ request: /login, expect: denied }", "a method is missing: write 'GET /login'"),
        ("{ request: GET /, expect: denied, adress: 203.0.113.7 }", "`address`"),
        ("{ request: GET /, expect: denied, address: nowhere }", "203.0.113.7"),
        ("{ request: GET /, expect: allowed, after: soon }", "500ms, 30s or 1h"),
        ("{ request: GET /, expect: allowed, times: 0 }", "write 1 to 1000000"),
        ("{ request: GET /, expect: allowed, by: login }", "leave it out, or write `expect: denied`"),
        ("{ request: GET /, expect: allowed, headers: [x] }", "`headers: { name: value }`"),
        ("{ expect: allowed }", "a step without `request`"),
        ("{ request: GET / }", "a step without `expect`"),
    ] {
        let said = in_step(step);
        assert!(said.contains(wanted) && said.contains("--> t.yaml:5:"), "{step}: {said}");
    }
    assert!(told("tests: []\n").contains("a test file without `rules`"));
    assert!(told("rules: rules.yaml\n").contains("a test file without `tests`"));
    assert!(told("rules: none.yaml\ntests: []\n").contains("none.yaml"));
    let misnamed = in_step("{ request: GET /, expect: denied, by: logn }");
    assert!(misnamed.contains("there is no rule `logn`") && misnamed.contains("did you mean `login`?"), "{misnamed}");
    let folder = Folder::with(&[]);
    assert!(folder.run(&["test", "t.yaml"]).bad().contains("the tests cannot be read"));
}

#[test]
fn two_rules_files_are_compared() {
    let folder = Folder::with(&[("a.yaml", TESTED), ("b.yaml", &TESTED.replace("key: address, ", ""))]);
    assert_eq!(folder.run(&["rules", "diff", "a.yaml", "a.yaml"]).good(), "no difference\n");
    let ran = folder.run(&["rules", "diff", "a.yaml", "b.yaml"]);
    assert_eq!(ran.code(), Some(1));
    assert!(
        ran.out().starts_with("changed  login: key address -> none\n\n--- a.yaml\n+++ b.yaml\n@@ "),
        "{}",
        ran.out()
    );
    let report = folder.run(&["rules", "diff", "a.yaml", "b.yaml", "--format", "json"]).json();
    assert_eq!(report["changed"][0]["fields"][0]["field"], "key");
    assert!(folder.run(&["rules", "diff", "a.yaml"]).bad().contains("--redis"));
}

#[test]
fn explain_shows_what_clients_see() {
    let rules = "rules: [{ id: r, limits: [5/h, { name: day, limit: 9/day, show: false }], problem: abnormal-usage, status: 403 }]";
    let folder = Folder::with(&[("rules.yaml", rules)]);
    let run = |more: &[&str]| {
        let asked = ["explain", "rules.yaml", "--request", "GET /"];
        folder.run(&[&asked[..], more].concat()).good().to_owned()
    };
    let told = run(&[]);
    for said in ["9/day, cost 1, not shown to clients", "problem         abnormal-usage", "status          403"] {
        assert!(told.contains(said), "{said}: {told}");
    }
    let told: Value = serde_json::from_str(&run(&["--format", "json"])).unwrap();
    let rule = &told["rules"][0];
    assert_eq!((&rule["problem"], &rule["status"]), (&"abnormal-usage".into(), &403.into()), "{told}");
    assert_eq!((&rule["limits"][0]["show"], &rule["limits"][1]["show"]), (&true.into(), &false.into()), "{told}");
}

#[test]
fn a_real_bash_completes_commands_and_options() {
    let completions = Folder::with(&[]).run(&["completions", "bash"]);
    let folder = Folder::with(&[("tidegate.bash", completions.good())]);
    let complete = |words: &str, last: usize| {
        let script = format!(
            "source tidegate.bash; COMP_WORDS=({words}); COMP_CWORD={last}; COMP_LINE='{words}'; COMP_POINT=${{#COMP_LINE}}; \
             _tidegate tidegate \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["-c", &script]).current_dir(folder.0.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(complete("tidegate ser", 1), "serve\n");
    assert_eq!(complete("tidegate check --deny", 2), "--deny-warnings\n");
    for shell in ["zsh", "fish"] {
        let completions = Folder::with(&[]).run(&["completions", shell]);
        assert!(completions.good().contains("deny-warnings"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::with(&[]);
    folder.run(&["man", "man1"]).good();
    for command in ["tidegate", "tidegate-serve", "tidegate-rules-push", "tidegate-completions"] {
        let page = std::fs::read_to_string(folder.0.path().join(format!("man1/{command}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains(".SH NAME"), "{command}: {page}");
    }
    let serve = std::fs::read_to_string(folder.0.path().join("man1/tidegate-serve.1")).unwrap();
    assert!(serve.contains("store\\-redis\\-urls"), "{serve}");
    assert!(Folder::with(&[("file", "")]).run(&["man", "file"]).bad().contains("file"));
}

#[test]
fn the_version_says_how_the_program_was_built() {
    let folder = Folder::with(&[]);
    let short = folder.run(&["-V"]);
    assert!(short.good().starts_with(concat!("tidegate ", env!("CARGO_PKG_VERSION"))), "{}", short.out());
    let long = folder.run(&["--version"]);
    for part in ["commit: ", &format!("target: {}-linux", std::env::consts::ARCH), "features: "] {
        assert!(long.good().contains(part), "{}", long.out());
    }
}

/// The measurements of a benchmark in JSON, by name.
fn measurements(report: &Value) -> BTreeMap<&str, &Value> {
    let rows = report["measurements"].as_array().unwrap();
    rows.iter().map(|row| (row["name"].as_str().unwrap(), row)).collect()
}

#[test]
fn a_benchmark_measures_checks_listeners_and_a_redis() {
    let redis = tidegate_test_redis::Server::start();
    let args = ["bench", "--seconds", "1", "--keys", "1000", "--connections", "4", "--json", "--redis", &redis.url()];
    let ran = Folder::with(&[]).run(&args);
    // No progress bar outside of terminals.
    assert_eq!((ran.good().is_empty(), ran.err()), (false, ""));
    let report = ran.json();
    let rows = measurements(&report);
    let expected = [
        "in-process/one-key/one-thread",
        "in-process/many-keys/one-thread",
        "listener/http-api",
        "listener/envoy-grpc",
        "listener/redis-protocol",
        "listener/gateway",
        "redis/many-keys",
        "redis/one-leased-key",
    ];
    for name in expected {
        let row = rows.get(name).unwrap_or_else(|| panic!("{name}: {report:#}"));
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        assert!(number("checks") > 0.0 && number("per_second") > 0.0, "{row}");
        assert!(number("p50_ns") > 0.0 && number("p50_ns") <= number("p99_ns"), "{row}");
        assert!(number("allowed") > 0.0, "{row}");
    }
    assert_eq!(rows.contains_key("in-process/many-keys/all-threads"), report["processors"].as_u64().unwrap() > 1);
    let keys: Vec<String> = redis.run(&["KEYS", "*"]);
    assert!(keys.iter().all(|key| key.starts_with("tidegate-bench")), "{keys:?}");
}

#[test]
fn a_benchmark_prints_a_table_and_errors_of_redis() {
    let folder = Folder::with(&[]);
    let table = folder.run(&["bench", "--seconds", "0.4", "--keys", "100", "--connections", "2"]);
    for part in ["checks/s", "p50", "p99", "allowed", "HTTP API, 2 connections", "in process, 100 keys, 1 thread"] {
        assert!(table.good().contains(part), "{part}: {}", table.out());
    }
    assert!(!table.out().contains("Redis, "), "{}", table.out());
    let refused = folder.run(&["bench", "--seconds", "0.4", "--redis", "http://127.0.0.1"]);
    assert!(refused.bad().contains("its scheme is none of redis"), "{}", refused.err());
    // A port that nobody listens on.
    let port = tidegate_test_redis::free_port();
    let silent = folder.run(&["bench", "--redis", &format!("redis://127.0.0.1:{port}")]);
    assert!(silent.bad().starts_with("error: Redis does not answer: "), "{}", silent.err());
    for args in [&["--seconds", "0"][..], &["--keys", "1"], &["--connections", "0"]] {
        folder.run(&[&["bench"], args].concat()).usage_error();
    }
}
