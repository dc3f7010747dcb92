//! Rules with expected outcomes, and differences between rules.

use serde_json::Value;

use crate::cli::Folder;

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
        "has a retry wait of 12s; expected: 10s"
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
    let one = "tests: [{ name: one, steps: [{ request: GET /, expect: allowed }] }]";
    assert!(told(&format!("rules: none.yaml\n{one}\n")).contains("none.yaml"));
    assert!(told(&format!("rules: []\n{one}\n")).contains("`rules` names no file"));
    for (tests, place, wanted) in [
        ("rules: rules.yaml\ntests: []\n", "t.yaml:2:8", "write a test: `- { name: …, steps: [{ request: GET /,"),
        (
            "rules: rules.yaml\ntests: [{ name: one, steps: [] }]\n",
            "t.yaml:2:29",
            "`- { request: GET /, expect: allowed }`",
        ),
    ] {
        let said = told(tests);
        assert!(said.contains("so nothing is tested") && said.contains(wanted) && said.contains(place), "{said}");
    }
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
