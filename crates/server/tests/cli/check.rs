//! Tests of `tidegate check`.

use std::process::Command;

use serde_json::Value;

use crate::cli::{BROKEN, DOUBTFUL, Folder, GOOD};
use crate::support::ran::Ran;

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
fn standard_input_that_cannot_be_read_is_told_as_such() {
    let folder = Folder::with(&[]);
    let file = folder.0.path().join("latin1.yaml");
    std::fs::write(&file, b"rules: [{ id: caf\xe9, limit: 5/s }]\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let ran = Ran(command.args(["check", "-"]).stdin(std::fs::File::open(file).unwrap()).output().unwrap());
    assert!(ran.bad().starts_with("error: standard input cannot be read: "), "{}", ran.err());
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
