//! Keeps `docs/rules.md` and `docs/failure-modes.md` correct: their examples load, and the quoted findings equal the
//! printed ones.
//!
//! A fence marked `yaml` must load without a warning, and one marked `yaml,warned` with the warnings quoted by the next
//! fence. One marked `yaml,bad` must not load: the next fence contains what is printed. Other marks after `yaml,` are names
//! of files in one folder.

use tidegate_rules::{RuleSet, load, normalize};

use crate::rules::support::{charges, get, key, rule};

const GUIDE: &str = include_str!("../../../../docs/rules.md");
const FAILURE_MODES: &str = include_str!("../../../../docs/failure-modes.md");

/// The fences, each with its mark and the number of its first line.
fn fences(guide: &'static str) -> Vec<(usize, &'static str, String)> {
    let mut fences = Vec::new();
    let mut lines = guide.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(mark) = line.strip_prefix("```") else { continue };
        let text =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").map(|line| format!("{line}\n"));
        fences.push((number + 1, mark, text.collect()));
    }
    fences
}

#[test]
fn rules_in_the_guide_load() {
    let mut seen = 0;
    for (page, guide) in [("rules", GUIDE), ("failure-modes", FAILURE_MODES)] {
        for (line, _, text) in fences(guide).iter().filter(|(_, mark, _)| *mark == "yaml") {
            match RuleSet::parse("rules.yaml", text) {
                Ok(loaded) => assert!(loaded.warnings.0.is_empty(), "docs/{page}.md:{line}\n{}", loaded.warnings),
                Err(findings) => panic!("docs/{page}.md:{line}\n{findings}"),
            }
            seen += 1;
        }
    }
    assert!(seen > 15, "the guide has only {seen} examples");
}

#[test]
fn the_files_that_the_guide_shows_load_together() {
    let folder = tempfile::TempDir::new().unwrap();
    for (_, mark, text) in fences(GUIDE) {
        if let Some(name) = mark.strip_prefix("yaml,").filter(|name| name.ends_with(".yaml")) {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }
    let loaded = load(&[folder.path().join("main.yaml")]).unwrap_or_else(|findings| panic!("{findings}"));
    assert_eq!(loaded.files.len(), 2);
}

#[test]
fn errors_in_the_guide_are_those_that_are_printed() {
    let fences = fences(GUIDE);
    let mut seen = 0;
    for (number, (line, mark, text)) in fences.iter().enumerate() {
        let printed = match (*mark, RuleSet::parse("rules.yaml", text)) {
            ("yaml,bad", Ok(_)) => panic!("docs/rules.md:{line} loads"),
            ("yaml,bad", Err(findings)) => findings.to_string(),
            ("yaml,warned", Ok(loaded)) => loaded.warnings.to_string(),
            ("yaml,warned", Err(findings)) => panic!("docs/rules.md:{line}\n{findings}"),
            _ => continue,
        };
        let quoted = &fences[number + 1].2;
        assert_eq!(printed.trim_end(), quoted.trim_end(), "docs/rules.md:{line}\n{printed}");
        seen += 1;
    }
    assert!(seen >= 2, "the guide shows only {seen} mistakes");
}

/// The cells of the table under a heading, row by row.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let section = GUIDE.split(heading).nth(1).unwrap_or_else(|| panic!("the guide has no {heading}"));
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells =
        |row: &'static str| row.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect();
    rows.skip(2).map(cells).collect()
}

#[test]
fn the_table_of_paths_is_what_paths_become() {
    let rows = table("## Path normalisation");
    assert!(rows.len() > 8);
    for row in rows {
        assert_eq!(normalize(row[0]), row[1], "{row:?}");
    }
}

#[test]
fn the_short_and_the_long_form_of_a_limit_are_one() {
    let rows = table("## Limits: `limit` and `limits`");
    assert_eq!(rows.len(), 9);
    for row in rows {
        let of = |limit: &str| charges(&rule(&format!("limit: {limit}")), &get("/"));
        assert_eq!(of(row[1]), of(row[2]), "{row:?}");
    }
}

#[test]
fn presets_are_what_the_guide_says() {
    let request = get("/").user("alice").address("192.0.2.7".parse().unwrap());
    for row in table("## Presets") {
        let preset = rule(&format!("preset: {}", row[0]));
        let spelled_out = rule(&format!("limit: {}, key: {}, on_store_failure: {}", row[1], row[2], row[3]));
        assert_eq!(charges(&preset, &request), charges(&spelled_out, &request), "{row:?}");
        assert_eq!(key(&preset, &request), key(&spelled_out, &request), "{row:?}");
        assert_eq!(preset.rules()[0].on_store_failure(), spelled_out.rules()[0].on_store_failure(), "{row:?}");
    }
}

#[test]
fn every_way_to_say_a_cost_works() {
    for row in table("### Cost: `cost`") {
        for cost in row[0].split("`, `") {
            rule(&format!("limit: 100/s, cost: {}", cost.replace("header:X-Cost,", "'header:X-Cost',")));
        }
    }
}

#[test]
fn every_field_of_a_rule_is_in_the_table() {
    let rows = table("## Fields of a rule");
    let listed: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    let findings = RuleSet::parse("rules.yaml", "rules: [{ id: a, limit: 1/s, nonsense: 1 }]").unwrap_err();
    let help = findings.0[0].help.clone().unwrap();
    for field in help.split('`').skip(3).step_by(2) {
        assert!(listed.contains(&field), "`{field}` is not in the table");
    }
}
