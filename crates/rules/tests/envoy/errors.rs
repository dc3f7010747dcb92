//! Errors in a file contain their place, the wrong text, and how to correct it.

use tidegate_rules::Severity;

use super::findings;

/// An expected finding: `line:column`, the problem, and a part of the help.
type Expected<'a> = (&'a str, &'a str, &'a str);

fn check(severity: Severity, text: &str, expected: &[Expected<'_>]) {
    let findings = findings(text);
    let places: Vec<String> =
        findings.0.iter().map(|finding| format!("{}:{}", finding.place.line, finding.place.column)).collect();
    assert_eq!(places, expected.iter().map(|(place, ..)| *place).collect::<Vec<_>>(), "{text}\n{findings}");
    for (finding, (place, problem, help)) in findings.0.iter().zip(expected) {
        assert_eq!(finding.severity, severity, "{finding}");
        assert_eq!(&*finding.place.file, "limits.yaml");
        assert_eq!(finding.problem, *problem, "{place} of {text}");
        assert!(finding.help.as_ref().is_some_and(|said| said.contains(help)), "{help:?} in {finding}");
    }
}

fn refused(text: &str, expected: &[Expected<'_>]) {
    check(Severity::Error, text, expected);
}

/// A descriptor `a` with these additional lines.
fn with(lines: &str) -> String {
    format!("domain: d\ndescriptors:\n  - key: a\n    {}\n", lines.replace('\n', "\n    "))
}

#[test]
fn domains() {
    refused("descriptors: []\n", &[("1:1", "descriptors without a `domain`", "domain: edge")]);
    refused("domain: ''\n", &[("1:9", "an empty `domain`", "name it")]);
    refused("domain:\n", &[("1:1", "an empty `domain`", "name it")]);
    refused("domain: [a]\n", &[("1:9", "`domain` must be text, found a list", "write")]);
    refused(
        "domain: d\nrules: []\n",
        &[("2:1", "an Envoy rate-limit file has no `rules`", "`domain` and `descriptors`")],
    );
    refused(
        "domain: d\ndescriptor: []\n",
        &[("2:1", "an Envoy rate-limit file has no `descriptor`", "`descriptors`?")],
    );
    refused(
        "domain: d\ndescriptors: { key: a }\n",
        &[("2:14", "`descriptors` must be a list, found a map", "- key: …")],
    );
}

#[test]
fn keys() {
    refused("domain: d\ndescriptors:\n  - a\n", &[("3:5", "a descriptor must be a map, found text", "`key: …`")]);
    refused(
        "domain: d\ndescriptors:\n  - value: x\n",
        &[("3:5", "a descriptor without a `key`", "key: remote_address")],
    );
    refused("domain: d\ndescriptors:\n  - key: ''\n", &[("3:10", "an empty `key`", "key: remote_address")]);
    refused(
        "domain: d\ndescriptors:\n  - key: 1.10\n",
        &[("3:10", "`key` must be text, found the number 1.10", "\"1.10\"")],
    );
    refused(&with("value: 1e3"), &[("4:12", "`value` must be text, found the number 1e3", "\"1e3\"")]);
    refused(&with("value: {}"), &[("4:12", "`value` must be text, found a map", "write")]);
}

#[test]
fn unknown_fields() {
    refused(&with("vale: x"), &[("4:5", "a descriptor has no `vale`", "did you mean `value`?")]);
    refused(
        &with("ratelimit:\n  unit: day"),
        &[("4:5", "a descriptor has no `ratelimit`", "did you mean `rate_limit`?")],
    );
    refused(
        &with("rate_limit:\n  unit: day\n  requests_per_units: 5"),
        &[("6:7", "`rate_limit` has no `requests_per_units`", "did you mean `requests_per_unit`?")],
    );
    refused(
        &with("rate_limit: { unlimited: true, replaces: [{ nam: x, name: y }] }"),
        &[("4:49", "an entry of `replaces` has no `nam`", "did you mean `name`?")],
    );
    // Tidegate's own fields are unknown to envoyproxy/ratelimit, so they are never ignored in other places.
    refused(&with("burst: 5"), &[("4:5", "a descriptor has no `burst`", "")]);
}

#[test]
fn duplicates() {
    let text = "
domain: d
descriptors:
  - key: a
    value: b
  - key: a
  - key: a_b
  - key: c
    descriptors:
      - key: a
      - key: a
";
    refused(
        text,
        &[
            ("7:10", "a second descriptor `d.a_b`", "limits.yaml:5:12"),
            ("11:14", "a second descriptor `d.c.a`", "limits.yaml:10:14"),
        ],
    );
}

#[test]
fn units() {
    let known = "`second`, `minute`, `hour`, `day`, `week`, `month` or `year`";
    refused(
        &with("rate_limit: { unit: fortnight, requests_per_unit: 1 }"),
        &[("4:25", "`fortnight` is not a unit", known)],
    );
    refused(
        &with("rate_limit: { unit: minutes, requests_per_unit: 1 }"),
        &[("4:25", "`minutes` is not a unit", "`minute`?")],
    );
    refused(
        &with("rate_limit: { unit: unknown, requests_per_unit: 1 }"),
        &[("4:25", "`unknown` is not a unit", known)],
    );
    refused(&with("rate_limit: { requests_per_unit: 1 }"), &[("4:17", "a `rate_limit` without a `unit`", known)]);
    refused(
        &with("rate_limit: { unlimited: true, unit: Day }"),
        &[("4:42", "the unit `Day` of something unlimited", "remove `unit`, or `unlimited`")],
    );
}

#[test]
fn numbers_and_flags() {
    let numbers = "a whole number from 0 to 4294967295, without quotes";
    for (wrong, shown) in [
        ("-1", "-1"),
        ("1.5", "1.5"),
        ("4294967296", "4294967296"),
        ("'5'", "\"5\""),
        ("five", "five"),
        ("[5]", "a list"),
    ] {
        let problem = format!("`requests_per_unit` cannot be `{shown}`");
        let text = with(&format!("rate_limit:\n  unit: day\n  requests_per_unit: {wrong}"));
        refused(&text, &[("6:26", &problem, numbers)]);
    }
    for name in ["shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"] {
        let column = 5 + name.len() + 2;
        for (wrong, shown) in [("maybe", "`maybe`"), ("'true'", "`true`"), ("1", "`1`"), ("[]", "a list")] {
            let problem = format!("`{name}` is {shown}");
            refused(&with(&format!("{name}: {wrong}")), &[(&format!("4:{column}"), &problem, "`true` or `false`")]);
        }
    }
    assert_eq!(findings(&with("shadow_mode: yes\nquota_mode: Off\ndetailed_metric: N\nvalue_to_metric: ~")).0, []);
    refused(&with("metadata: 5"), &[("4:15", "`metadata` must be a map, found a number", "names and values")]);
}

#[test]
fn sharing() {
    refused(
        &with("value: x\nshare_threshold: true"),
        &[("5:22", "`share_threshold` of `a_x`, which matches one value only", "a `value` with a `*`")],
    );
    assert_eq!(findings(&with("value: x\nshare_threshold: false")).0, []);
}

#[test]
fn replacing() {
    refused(
        &with("rate_limit: { unlimited: true, name: me, replaces: [{ name: you }, { name: me }] }"),
        &[("4:80", "the limit `me` replaces itself", "remove it")],
    );
    refused(
        &with("rate_limit: { unlimited: true, replaces: [{ name: '' }, {}, you] }"),
        &[
            ("4:55", "an empty `name` in `replaces`", "name the limit"),
            ("4:61", "an entry of `replaces` without a `name`", "name the limit"),
            ("4:65", "an entry of `replaces` must be a map, found text", "`name: …`"),
        ],
    );
    refused(
        &with("rate_limit: { unlimited: true, replaces: you }"),
        &[("4:46", "`replaces` must be a list, found text", "[{ name: … }]")],
    );
}

#[test]
fn our_fields() {
    let limit = |fields: &str| with(&format!("rate_limit:\n  unit: day\n  requests_per_unit: 5\n  {fields}"));
    refused(&limit("algorithm: gcar"), &[("7:18", "`algorithm` cannot be `gcar`", "`gcra`?")]);
    refused(&limit("algorithm: shaper"), &[("7:18", "`algorithm` cannot be `shaper`", "`fixed`")]);
    refused(&limit("burst: 10"), &[("7:14", "`burst` of a window, which has none", "algorithm: token-bucket")]);
    refused(&limit("unit_multiplier: 0"), &[("7:24", "`unit_multiplier` of 0", "at least 1")]);
    refused(&limit("unit_multiplier: 367"), &[("7:24", "this limit cannot be kept exactly", "longer than 366day")]);
    refused(
        &with("rate_limit: { unit: week, requests_per_unit: 1000000, algorithm: sliding }"),
        &[("4:50", "this limit cannot be kept exactly", "`fixed` or `token-bucket`")],
    );
    refused(
        &limit("algorithm: token-bucket\n  burst: 4294967295"),
        &[("8:14", "this limit cannot be kept exactly", "a capacity of 4294967295 cannot be counted exactly")],
    );
    refused(
        &with("rate_limit: { unlimited: true, burst: 5 }"),
        &[("4:43", "`burst` of something unlimited", "remove `burst`, or `unlimited`")],
    );
}

#[test]
fn entries_that_the_original_ignores_are_warnings() {
    let warned = |text: &str, expected: &[Expected<'_>]| check(Severity::Warning, text, expected);
    warned(
        &with("rate_limit: { unit: day, requests_per_unit: 5, shadow_mode: true }"),
        &[("4:52", "`shadow_mode` has no meaning in `rate_limit`", "it belongs in a descriptor")],
    );
    warned(&with("unit: day"), &[("4:5", "`unit` has no meaning in a descriptor", "it belongs in `rate_limit`")]);
    warned(&with("domain: e"), &[("4:5", "`domain` has no meaning in a descriptor", "the top of the file")]);
    warned(
        &with("rate_limit: { unit: day }"),
        &[("4:17", "a `rate_limit` without `requests_per_unit` denies everything", "requests_per_unit: 0")],
    );
    warned(&with("rate_limit:"), &[("4:5", "an empty `rate_limit` limits nothing", "or remove it")]);
    warned(
        &with("rate_limit: { unlimited: true, unit: fortnight }"),
        &[("4:42", "`fortnight` is not a unit; it is ignored", "remove `unit`")],
    );
}

#[test]
fn every_mistake_is_reported_at_once() {
    let text = "
descriptors:
  - key: a
    shadow: true
    rate_limit: { unit: dya, requests_per_unit: x }
    descriptors:
      - kye: b
";
    refused(
        text,
        &[
            ("2:1", "descriptors without a `domain`", "domain:"),
            ("4:5", "a descriptor has no `shadow`", "descriptor has"),
            ("5:25", "`dya` is not a unit", "`day`?"),
            ("5:49", "`requests_per_unit` cannot be `x`", "a whole number"),
            ("7:9", "a descriptor has no `kye`", "`key`?"),
        ],
    );
}

#[test]
fn places_are_right_with_carriage_returns() {
    refused(
        "domain: d\r\ndescriptors:\r\n  - key: é\r\n    vale: x\r\n",
        &[("4:5", "a descriptor has no `vale`", "`value`?")],
    );
}

#[test]
fn a_finding_shows_the_line_and_points_at_the_fault() {
    let text = findings(&with("rate_limit: { unit: fortnight, requests_per_unit: 1 }")).to_string();
    let expected = "\
error: `fortnight` is not a unit
 --> limits.yaml:4:25
  |
4 |     rate_limit: { unit: fortnight, requests_per_unit: 1 }
  |                         ^^^^^^^^^
  = write `second`, `minute`, `hour`, `day`, `week`, `month` or `year`
";
    assert!(text.starts_with(expected), "{text}");
}
