//! Files, folders and includes.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidegate_rules::{Diagnostics, Loaded, load};

use crate::rules::support::{get, ids};

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn one(id: &str) -> String {
    format!("rules:\n  - id: {id}\n    limit: 1/s\n")
}

fn loaded(path: impl Into<PathBuf>) -> Loaded {
    load(&[path.into()]).unwrap_or_else(|findings| panic!("{findings}"))
}

fn found(loaded: &Loaded) -> Vec<&str> {
    loaded.rules.rules().iter().map(tidegate_rules::Rule::id).collect()
}

/// The errors, without the folder's name.
fn wrong(folder: &Path, result: Result<Loaded, Diagnostics>) -> Vec<String> {
    let findings = result.expect_err("something is wrong");
    let short = |text: &str| text.replace(&format!("{}/", folder.display()), "");
    let line = |finding: &tidegate_rules::Diagnostic| {
        let help = finding.help.as_deref().map_or(String::new(), |help| format!("; {help}"));
        short(&format!("{}: {}{help}", finding.place, finding.problem))
    };
    findings.0.iter().map(line).collect()
}

#[test]
fn a_folder_is_its_yaml_files_in_the_order_of_their_names() {
    let folder = folder(&[
        ("b.yaml", &one("b")),
        ("a.yml", &one("a")),
        ("c.txt", "not rules"),
        (".hidden.yaml", "not rules"),
        ("sub/d.yaml", &one("d")),
    ]);
    let loaded = loaded(folder.path());
    assert_eq!(found(&loaded), ["a", "b"]);
    assert_eq!(loaded.files.len(), 2);
}

#[test]
fn a_file_includes_others_relative_to_itself() {
    let folder = folder(&[
        ("main.yaml", &format!("include: [sub/a.yaml, b.yaml]\n{}", one("main"))),
        ("sub/a.yaml", &format!("include: more/c.yaml\n{}", one("a"))),
        ("sub/more/c.yaml", &one("c")),
        ("b.yaml", &one("b")),
    ]);
    let loaded = loaded(folder.path().join("main.yaml"));
    assert_eq!(found(&loaded), ["c", "a", "b", "main"], "what is included comes first");
    assert_eq!(ids(&loaded.rules.matching(&get("/"))), ["c", "a", "b", "main"]);
    assert_eq!(loaded.files.len(), 4);
}

#[test]
fn a_file_that_is_named_twice_is_read_once() {
    let folder = folder(&[
        ("a.yaml", &format!("include: [b.yaml, ./b.yaml, ../{{}}]\n{}", one("a")).replace("../{}", "a.yaml")),
        ("b.yaml", &format!("include: a.yaml\n{}", one("b"))),
    ]);
    assert_eq!(found(&loaded(folder.path())), ["b", "a"]);
}

#[test]
fn the_same_id_in_two_files_names_both_places() {
    let folder = folder(&[("a.yaml", &one("x")), ("b.yaml", &format!("# a comment\n{}", one("x")))]);
    let help = "the first is at a.yaml:2:9; what was counted belongs to the id, so each rule needs its own";
    let expected = format!("b.yaml:3:9: a second rule with the id `x`; {help}");
    assert_eq!(wrong(folder.path(), load(&[folder.path().into()])), [expected]);
}

#[test]
fn tiers_are_said_once() {
    let folder = folder(&[("a.yaml", "tiers: { default: a }\n"), ("b.yaml", "tiers:\n  default: b\n")]);
    let expected = "b.yaml:2:3: `tiers` is set a second time; the first is at a.yaml:1:8; keep one";
    assert_eq!(wrong(folder.path(), load(&[folder.path().into()])), [expected]);
}

#[test]
fn a_rule_may_replace_one_of_another_file() {
    let folder = folder(&[("a.yaml", "rules: [{ id: a, limit: 1/s, replaces: b }]"), ("b.yaml", &one("b"))]);
    assert_eq!(ids(&loaded(folder.path()).rules.matching(&get("/"))), ["a"]);
}

#[test]
fn mistakes_in_all_files_come_at_once() {
    let folder = folder(&[
        ("a.yaml", "rules: [{ id: a, limit: 1/x }]"),
        ("b.yaml", "rules: [{ id: a, limmit: 1/s, limit: 1/s }]"),
        ("c.yaml", "include: [missing.yaml, [x], .]\nrules: ["),
        ("d.yaml", "include: [missing.yaml, [x], .]\nrules: []"),
    ]);
    let units = "no such unit of time: write ms, s, min, h, day, week, month or year";
    let relative = "paths are taken from the folder of the file that includes";
    assert_eq!(
        wrong(folder.path(), load(&[folder.path().into()])),
        [
            format!("a.yaml:1:27: `1/x` is not a limit; {units}"),
            "b.yaml:1:15: a second rule with the id `a`; the first is at a.yaml:1:15; what was counted belongs to the id, so each rule needs its own".to_owned(),
            "b.yaml:1:18: a rule has no `limmit`; did you mean `limit`?".to_owned(),
            "c.yaml:2:8: not YAML: a `[` is never closed; close it with `]`".to_owned(),
            format!("d.yaml:1:11: `missing.yaml` cannot be read: No such file or directory (os error 2); {relative}"),
            "d.yaml:1:25: `include` must name files, found a list; write one such as `more/rules.yaml`, or a list of them".to_owned(),
            format!("d.yaml:1:30: `.` cannot be read: it is not a file; {relative}"),
        ]
    );
}

#[test]
fn missing_and_endless_includes_are_named() {
    let folder = folder(&[]);
    let missing = folder.path().join("missing.yaml");
    assert_eq!(
        wrong(folder.path(), load(&[missing])),
        ["missing.yaml:1:1: `missing.yaml` cannot be read: No such file or directory (os error 2)"]
    );
    let empty = format!("{}:1:1: the folder has no YAML file; name rules files `*.yaml`", folder.path().display());
    assert_eq!(wrong(folder.path(), load(&[folder.path().into()])), [empty]);
    if Path::new("/dev/zero").exists() {
        let expected = "/dev/zero:1:1: `/dev/zero` cannot be read: it is not a file";
        assert_eq!(wrong(folder.path(), load(&["/dev/zero".into()])), [expected]);
    }
}

#[test]
fn text_without_a_file_includes_nothing() {
    let expected = "1:10 [a.yaml] rules that are published, or read from standard input, cannot include files; \
                    write the rules of those files into this one: nodes that read it do not have the files";
    assert_eq!(crate::rules::support::mistakes("include: a.yaml\nrules: []"), [expected]);
}

/// Files that form a chain of includes.
fn chain(files: usize) -> TempDir {
    let folder = TempDir::new().unwrap();
    for number in 1..=files {
        let include = if number < files { format!("include: {}.yaml\n", number + 1) } else { String::new() };
        let text = format!("{include}{}", one(&format!("r{number}")));
        std::fs::write(folder.path().join(format!("{number}.yaml")), text).unwrap();
    }
    folder
}

#[test]
fn a_chain_of_includes_has_an_end() {
    let longest = chain(33);
    let loaded = loaded(longest.path().join("1.yaml"));
    assert_eq!((loaded.files.len(), found(&loaded)[0]), (33, "r33"));
    for files in [34, 5_000] {
        let folder = chain(files);
        let expected = "33.yaml:1:10: `34.yaml` is included at the end of a chain of more than 32 files; include it \
                        further up, or put the files into one folder";
        assert_eq!(wrong(folder.path(), load(&[folder.path().join("1.yaml")])), [expected]);
    }
}

#[test]
fn files_that_are_given_may_include_each_other_however_many_they_are() {
    let folder = chain(100);
    // In alphabetical order 10 precedes 2. A file that is already read is no longer part of a chain.
    let mut paths: Vec<PathBuf> = (1..=100).rev().map(|number| folder.path().join(format!("{number}.yaml"))).collect();
    assert_eq!(load(&paths).unwrap().files.len(), 100);
    paths.reverse();
    assert!(wrong(folder.path(), load(&paths))[0].contains("chain of more than 32 files"));
}

#[test]
fn there_are_so_many_files_and_no_more() {
    let folder = TempDir::new().unwrap();
    for number in 0..1_025 {
        std::fs::write(folder.path().join(format!("{number:04}.yaml")), one(&format!("r{number}"))).unwrap();
    }
    let expected = "1024.yaml:1:1: this is file 1025, and 1024 are read; put several rules into one file";
    assert_eq!(wrong(folder.path(), load(&[folder.path().into()])), [expected]);
    std::fs::remove_file(folder.path().join("0000.yaml")).unwrap();
    assert_eq!(loaded(folder.path()).files.len(), 1_024);
    // A few large files.
    let comment = format!("# {}\n", "x".repeat(15 << 20));
    for number in 0..5 {
        std::fs::write(folder.path().join(format!("{number:04}.yaml")), format!("{comment}rules: []\n")).unwrap();
    }
    let lines = wrong(folder.path(), load(&[folder.path().into()]));
    assert!(lines[0].starts_with("0004.yaml:1:1: the files have more than 67108864 bytes in total"), "{lines:?}");
}
