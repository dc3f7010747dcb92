//! Fuzz targets: any input is processed quickly and without a panic.

use tidegate_core::Limit;
use tidegate_core::limit::Rate;
use tidegate_rules::envoy::RateUnit;
use tidegate_rules::{Request, RuleSet, normalize};
use tidegate_test_support::fuzz::{target, text};

/// A file that uses the whole language.
const VALID: &str = include_str!("valid.yaml");

/// Reads a file. If it is valid, evaluates a request; otherwise prints the findings.
fn read(text: &str) {
    match RuleSet::parse("fuzz.yaml", text) {
        Ok(loaded) => {
            let request = Request::new("POST", "/users/42/posts?n=3").user("alice").header("X-Tier", "paid");
            let matched = loaded.rules.matching(&request);
            assert!(matched.charges().count() <= 16 * loaded.rules.rules().len());
        }
        Err(findings) => {
            assert!(findings.errors() > 0);
            for finding in &findings.0 {
                assert!(finding.place.line >= 1 && finding.place.column >= 1);
                let (from, width) = finding.mark;
                assert!(from + width <= finding.excerpt.chars().count().max(from), "{finding:?}");
            }
            assert!(!findings.to_string().is_empty());
        }
    }
}

const RULE_WORDS: [&str; 40] = [
    "rules:\n",
    "- id: a\n",
    "  limit: ",
    "1/s",
    "\n",
    "  match: ",
    "{ ",
    " }",
    "[",
    "]",
    ", ",
    "path: /a/**",
    "not: ",
    "regex: 'a+'",
    "key: user",
    "limits:\n",
    "  - ",
    "name: x",
    "cost: ",
    "&a ",
    "*a",
    "<<: ",
    "overrides: ",
    "tiers: ",
    "'",
    "\"",
    "|\n",
    "# x\n",
    "mode: off",
    "\t",
    "body:max_tokens",
    "settle: ",
    "header:x-a",
    "presets: ",
    "use: ",
    "include: ",
    "otherwise: ",
    "times: ",
    "api_key",
    "on_store_failure: ",
];

#[test]
fn the_reader_of_rules_takes_any_bytes() {
    target!("rules").for_each(|bytes: &[u8]| read(&String::from_utf8_lossy(&text(bytes, &RULE_WORDS))));
}

/// The first bytes determine what is changed in a valid file: where, how much is removed, and what is inserted.
#[test]
fn the_reader_of_rules_takes_a_valid_file_with_parts_of_it_changed() {
    target!("rules-changed").for_each(|changes: &[u8]| {
        let mut file = VALID.as_bytes().to_vec();
        for change in changes.chunks(8).take(4) {
            let [high, low, cut, put @ ..] = change else { continue };
            let at = usize::from(u16::from_be_bytes([*high, *low])) % file.len();
            let end = (at + usize::from(*cut % 16)).min(file.len());
            file.splice(at..end, text(put, &RULE_WORDS));
            if file.is_empty() {
                return;
            }
        }
        read(&String::from_utf8_lossy(&file));
    });
}

#[test]
fn the_reader_of_envoys_files_takes_any_bytes() {
    const WORDS: [&str; 22] = [
        "domain: a\n",
        "descriptors:\n",
        "- key: k\n",
        "  - key: ",
        "  value: v*\n",
        "    rate_limit:\n",
        "      unit: ",
        "second",
        "month\n",
        "      requests_per_unit: ",
        "4294967295\n",
        "      unlimited: true\n",
        "shadow_mode: true\n",
        "detailed_metric: true\n",
        "value_to_metric: true\n",
        "share_threshold: true\n",
        "      replaces: [{ name: b }]\n",
        "      name: b\n",
        "    ",
        "  descriptors:\n",
        "\n",
        "{ key: k, rate_limit: { unit: hour, requests_per_unit: 1 } }",
    ];
    target!("envoy").for_each(|bytes: &[u8]| {
        let text = text(bytes, &WORDS);
        let text = String::from_utf8_lossy(&text);
        read(&text);
        if let Ok(loaded) = RuleSet::parse("fuzz.yaml", &text) {
            for domain in loaded.rules.domains() {
                for entries in [&[("k", "v")][..], &[("k", "vw"), ("k", "")], &[]] {
                    assert!(domain.find(entries).is_none() || !entries.is_empty(), "{text}");
                }
            }
        }
        let _ = RateUnit::named(&text);
    });
}

#[test]
fn any_path_becomes_a_normal_one_and_is_matched_before_long() {
    const WORDS: [&str; 16] =
        ["/", "a", "users", "%2e", "..", "%2F", "//", "edit", "*", "{id}", "%5c", "%00", "%25", "?", "#", ";"];
    let rules = crate::rules::support::rules(VALID);
    target!("path").for_each(|bytes: &[u8]| {
        let path = text(bytes, &WORDS);
        let path = String::from_utf8_lossy(&path);
        let normal = normalize(&path);
        assert!(normal.starts_with('/') && !normal.contains("//"), "{path} {normal}");
        assert!(normal.split('/').all(|segment| segment != "." && segment != ".."), "{path} {normal}");
        assert!(normal.bytes().all(|byte| byte.is_ascii_graphic()), "{path} {normal}");
        assert_eq!(normalize(&normal), normal);
        let request = Request::new("GET", &path);
        let matched = rules.matching(&request);
        assert!(matched.rules.len() <= rules.rules().len());
    });
}

#[test]
fn any_text_is_a_limit_or_is_told_where_it_is_not() {
    const WORDS: [&str; 24] = [
        "1",
        "0",
        "20",
        "/",
        "s",
        "min",
        "day",
        "month",
        " ",
        "burst",
        "queue",
        "parts",
        "ttl",
        "calendar",
        "gcra",
        "fixed",
        "sliding",
        "log",
        "concurrent",
        "shaper",
        "_",
        "µs",
        "18446744073709551615",
        "x",
    ];
    target!("limit").for_each(|bytes: &[u8]| {
        let text = text(bytes, &WORDS);
        let text = String::from_utf8_lossy(&text);
        match text.parse::<Limit>() {
            Ok(limit) => assert_eq!(limit.to_string().parse(), Ok(limit), "{text}"),
            Err(error) => {
                assert!(error.column() >= 1 && !error.problem().is_empty());
                assert!(error.pointer().contains(error.culprit()));
            }
        }
        if let Ok(rate) = text.parse::<Rate>() {
            assert_eq!(rate.to_string().parse(), Ok(rate), "{text}");
        }
    });
}
