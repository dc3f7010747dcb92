//! Malicious or damaged files: each is answered with little time and memory.

use tidegate_rules::{RuleSet, load};

use crate::rules::allocations::most_bytes;
use crate::rules::support::{get, governs, mistakes, rules};

/// The errors in these bytes.
fn of_bytes(bytes: &[u8]) -> Vec<String> {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, bytes).unwrap();
    let findings = load(&[path]).expect_err("something is wrong");
    findings.0.iter().map(crate::rules::support::line).collect()
}

#[test]
fn empty_files_are_told() {
    for text in ["", "\n\n", "# only a comment\n", "---\n", "---\n...\n", "~", "null", "\u{feff}", "   "] {
        let lines = mistakes(text);
        assert_eq!(lines.len(), 1, "{text:?}");
        assert!(lines[0].ends_with("the file is empty; write `rules:` and a list of rules below it"), "{lines:?}");
    }
}

#[test]
fn a_file_without_rules_below_is_a_file_of_no_rules() {
    for text in ["rules:", "rules: []", "rules: ~"] {
        assert!(rules(text).rules().is_empty(), "{text}");
    }
}

#[test]
fn bytes_that_are_not_text_are_told_with_their_place() {
    for (bytes, expected) in [
        (&b"rules:\n- id: \xff\n"[..], "2:7 [] byte 0xFF here is not UTF-8 text; save the file as UTF-8"),
        (b"rules:\r\n- id: a\xc3(\r\n", "2:8 [] byte 0xC3 here is not UTF-8 text; save the file as UTF-8"),
        (b"\xef\xbb\xbfid\xff", "1:3 [] byte 0xFF here is not UTF-8 text; save the file as UTF-8"),
        (b"\xff\xfer\0u\0l\0", "1:1 [] byte 0xFF here is not UTF-8 text; save the file as UTF-8"),
        (b"rules:\n- id: a\0b\n", "2:8 [] a NUL byte; remove it"),
    ] {
        assert_eq!(of_bytes(bytes), [expected]);
    }
}

#[test]
fn line_ends_and_byte_order_marks_change_nothing() {
    let text = "rules:\n  - id: a\n    match: { path: /a }\n    limit: 1/s\n";
    for variant in [text.replace('\n', "\r\n"), text.replace('\n', "\r"), format!("\u{feff}{text}")] {
        let rules = rules(&variant);
        assert!(governs(&rules, &get("/a")) && !governs(&rules, &get("/b")), "{variant:?}");
    }
    let wrong = "rules:\n  - id: a\n    limit: 1/x\n";
    for variant in
        [wrong.to_owned(), wrong.replace('\n', "\r\n"), wrong.replace('\n', "\r"), format!("\u{feff}{wrong}")]
    {
        assert!(mistakes(&variant)[0].starts_with("3:14 [x] `1/x` is not a limit"), "{variant:?}");
    }
}

#[test]
fn text_that_is_not_yaml_is_told_with_its_place() {
    for (text, expected) in [
        ("rules:\n\t- id: a", "2:1 [ ] YAML does not allow tabs as indentation; indent with spaces"),
        (
            "rules:\n- id: a\n  match: { host: *.a.com }",
            "3:18 [] this alias has no anchor; define it above with `&`, or quote the text if it begins with a literal `*`",
        ),
        (
            "rules: []\n---\nrules: []",
            "2:1 [---] a second YAML document begins here; put what follows into a file of its own, and remove the line `---`",
        ),
        ("rules: &a [*a]", "1:12 [*a] this alias refers to itself; write it out"),
        ("rules: !include x", "1:17 [x] the tag `!include` is not supported; remove it"),
        ("rules: [", "1:8 [] not YAML: a `[` is never closed; close it with `]`"),
        ("rules: []\nrules: []", "2:1 [rules] `rules` is set twice; keep one of them"),
        (
            "rules: []\n? [a]\n: b",
            "2:3 [[] expected a key, found a list; write a word and a colon; quote what is not a word",
        ),
    ] {
        let lines = mistakes(text);
        assert_eq!(lines[0], expected, "{lines:?}");
    }
    for text in ["rules: ]", "rules:\n  - id: a\n b: c", "rules: 'a", "rules: \"\\q\"", "a: b: c", "rules: @", "%"] {
        let lines = mistakes(text);
        assert!(lines.len() == 1 && lines[0].contains("not YAML: "), "{text}: {lines:?}");
    }
}

#[test]
fn repeated_keys_are_told_everywhere_and_at_once() {
    let text = "rules:\n- id: a\n  limit: 1/s\n  limit: 2/s\n  match: { path: /a, path: /b }\n  id: b\n";
    let lines = mistakes(text);
    let places: Vec<&str> = lines.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(places, ["4:3", "5:22", "6:3"], "{lines:?}");
}

#[test]
fn a_map_may_be_merged_into_another() {
    let text = "rules:\n- &base { id: a, key: user, limit: 1/s }\n- { <<: *base, id: b, limit: 2/s }\n";
    let rules = rules(text);
    let request = get("/").user("alice");
    let matched = rules.matching(&request);
    let charges: Vec<String> =
        matched.charges().map(|charge| format!("{} {:?} {}", charge.rule, charge.key, charge.limit)).collect();
    assert_eq!(charges, [r#"a Key["alice"] 1/s"#, r#"b Key["alice"] 2/s"#]);
    assert_eq!(
        mistakes("rules: [{ <<: 5, id: a, limit: 1/s }]"),
        [
            "1:11 [<<] a rule has no `<<`; a rule has `id`, `preset`, `match`, `key`, `on_missing_key`, `on_repeated_key`, `limit`, `limits`, `adapt`, `shed`, `tiers`, `overrides`, `cost`, `mode`, `on_store_failure`, `store_deadline`, `lease`, `write_behind`, `split`, `regions`, `priority`, `replaces`, `stop`, `show`, `problem` and `status`"
        ]
    );
}

#[test]
fn nesting_has_an_end() {
    let deep = "are nested more than 24 deep";
    for text in [
        "[".repeat(1_000_000),
        "[{a: ".repeat(100_000),
        "- ".repeat(100_000),
        (0..2_000).map(|level| format!("{}a:\n", " ".repeat(level))).collect(),
        format!("rules: [{{ id: a, limit: 1/s, match: {{ user: {}x{} }} }}]", "{ not: ".repeat(40), " }".repeat(40)),
    ] {
        let lines = mistakes(&text);
        assert!(lines.len() == 1 && lines[0].contains(deep), "{lines:?}");
    }
}

/// Each level contains ten of the previous one: a billion values when expanded.
fn alias_bomb() -> String {
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..9 {
        let before = level - 1;
        bomb += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(","));
    }
    bomb
}

#[test]
fn aliases_cannot_make_much_of_little() {
    let lines = mistakes(&alias_bomb());
    assert!(lines[0].contains("more than 2000000 values"), "{lines:?}");
    // Each level is one deeper than the previous one.
    let mut chain = "a0: &a0 [x]\n".to_owned();
    for level in 1..50 {
        chain += &format!("a{level}: &a{level} [*a{}]\n", level - 1);
    }
    assert!(mistakes(&chain)[0].contains("more than 24 deep"));
    // A long text, repeated many times.
    let long = format!("a: &a '{}'\nb: [{}]\n", "x".repeat(16_000), vec!["*a"; 100_000].join(","));
    assert!(mistakes(&long)[0].contains("too much text"));
}

#[test]
fn no_file_takes_more_memory_than_it_should() {
    let megabytes = 1 << 20;
    for (text, most) in [
        (alias_bomb(), 300),
        ("[".repeat(10 * megabytes), 50),
        ("x".repeat(10 * megabytes), 100),
        (format!("rules: [{}", "0,".repeat(4 * megabytes)), 300),
        (format!("rules:\n{}", "- { id: a b, limit: 1/x, nonsense: 1 }\n".repeat(50_000)), 300),
        (format!("rules: []\n{}", "rules: []\n".repeat(200_000)), 100),
    ] {
        let bytes = most_bytes(|| assert!(RuleSet::parse("x", &text).is_err()));
        assert!(bytes < most * megabytes, "{} MB for {}…", bytes / megabytes, &text[..40]);
    }
}

#[test]
fn scalars_and_files_have_a_longest() {
    let long = "x".repeat(1 << 20);
    for text in [
        format!("rules: [{{ id: {long}, limit: 1/s }}]"),
        format!("rules: [{{ id: '{long}', limit: 1/s }}]"),
        format!("rules:\n- id: |\n    {long}\n"),
        format!("? {long}\n: 1\n"),
    ] {
        let lines = mistakes(&text);
        assert!(lines.len() == 1 && lines[0].contains("a value of more than 16384 bytes"), "{lines:?}");
    }
    let text = format!("# {}\nrules: []\n", "x".repeat(17 << 20));
    assert_eq!(
        mistakes(&text),
        ["1:1 [] the file is larger than the 16777216 bytes that are read; split it into several files in one folder"]
    );
}

#[test]
fn a_hundred_mistakes_are_enough() {
    for text in [
        format!("rules:\n{}", "- { id: a b, limit: 1/x, key: nobody, nonsense: 1 }\n".repeat(20_000)),
        format!("rules: []\n{}", (0..100_000).map(|number| format!("k{number}: 1\n")).collect::<String>()),
        format!("rules: []\n{}", "rules: []\n".repeat(100_000)),
        format!("rules:\n{}", "- { id: a, limit: 1/s, replaces: nobody }\n".repeat(50_000)),
    ] {
        let found = mistakes(&text);
        assert!((100..=210).contains(&found.len()), "{}", found.len());
    }
}

#[test]
fn many_rules_load() {
    let rule =
        |number: u32| format!("- {{ id: r{number}, match: {{ path: /p{number}/** }}, stop: true, limit: 1/s }}\n");
    let text = format!("rules:\n{}", (0..20_000).map(rule).collect::<String>());
    let rules = rules(&text);
    assert!(governs(&rules, &get("/p19999/x")) && !governs(&rules, &get("/p20000/x")));
}

#[test]
fn one_rule_with_many_of_everything_loads() {
    let paths: Vec<String> = (0..20_000).map(|number| format!("/p{number}")).collect();
    let overrides: Vec<String> = (0..20_000).map(|number| format!("u{number}: 2/s")).collect();
    let text = format!(
        "rules: [{{ id: r, key: user, limit: 1/s, match: {{ path: [{}] }}, overrides: {{ {} }} }}]",
        paths.join(", "),
        overrides.join(", ")
    );
    assert!(governs(&rules(&text), &get("/p19999")));
}

#[test]
fn regular_expressions_have_a_most() {
    let text =
        format!("rules: [{{ id: r, limit: 1/s, match: {{ user: {{ regex: [{}] }} }} }}]", vec!["a"; 1_001].join(", "));
    let lines = mistakes(&text);
    assert!(lines[0].contains("more than 1000 regular expressions"), "{lines:?}");
}

#[test]
fn a_regular_expression_is_neither_deep_nor_large() {
    for regex in [
        format!("{}a{}", "(".repeat(8_000), ")".repeat(8_000)),
        "(?:".repeat(5_000),
        "[".repeat(16_000),
        "a{1000}{1000}".to_owned(),
        "(a{1,100}){1,100}{1,100}".to_owned(),
    ] {
        let lines = mistakes(&format!("rules: [{{ id: r, limit: 1/s, match: {{ user: {{ regex: '{regex}' }} }} }}]"));
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
}

#[test]
fn descriptors_of_envoy_are_not_deep() {
    let levels = 1_000;
    let nested = "{ key: a, descriptors: [".repeat(levels) + &"] }".repeat(levels);
    let lines = mistakes(&format!("domain: d\ndescriptors: [{nested}]\n"));
    assert!(lines.len() == 1 && lines[0].contains("more than 24 deep"), "{lines:?}");
}

#[test]
fn a_path_pattern_has_an_end() {
    let pattern =
        |segments: usize| format!("rules: [{{ id: r, limit: 1/s, match: {{ path: '{}' }} }}]", "/*".repeat(segments));
    assert!(governs(&rules(&pattern(64)), &get(&"/a".repeat(64))));
    assert!(mistakes(&pattern(65))[0].contains("more than 64 segments"));
    assert!(mistakes(&pattern(8_000))[0].contains("more than 64 segments"));
}

#[test]
fn nothing_that_is_written_is_a_panic() {
    for text in [
        "? ",
        "- ",
        "[]",
        "{a}",
        "a: !!int x",
        "rules: !!null x",
        "&a *a",
        "*a",
        "!",
        "!!",
        "|",
        ">",
        "--- |",
        "\u{85}",
    ] {
        let _ = RuleSet::parse("x", text);
    }
}
