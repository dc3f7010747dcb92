//! Whatever comes in: no panic, and an answer before long.
//!
//! These are bolero targets. Under `cargo test` each runs for a moment on random input; `cargo bolero test` runs one for
//! as long as wanted under a coverage-guided fuzzer.

use std::time::Duration;

use bolero::check;
use tidegate_core::rules::{RuleSet, normalize};
use tidegate_core::{Limit, Rate, Request};

use crate::support::times;

/// How long a target runs.
fn moment() -> Duration {
    Duration::from_secs(2) * times(1)
}

/// How many inputs a target is tried on at most.
const MOST: usize = 10_000_000;

/// A file that uses all that the language has.
const VALID: &str = include_str!("valid.yaml");

/// Reads a file, and if it can be read, holds it against a request; otherwise prints what is wrong with it.
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

#[test]
fn the_reader_takes_any_bytes() {
    check!().with_test_time(moment()).with_iterations(MOST).for_each(|bytes: &[u8]| {
        read(&String::from_utf8_lossy(bytes));
    });
}

#[test]
fn the_reader_takes_a_valid_file_with_parts_of_it_changed() {
    check!().with_type::<Vec<(u16, u8, Vec<u8>)>>().with_test_time(moment()).with_iterations(MOST).for_each(
        |changes| {
            let mut bytes = VALID.as_bytes().to_vec();
            for (at, cut, put) in changes.iter().take(4) {
                let at = usize::from(*at) % bytes.len();
                let end = (at + usize::from(*cut % 16)).min(bytes.len());
                bytes.splice(at..end, put.iter().copied().take(8));
                if bytes.is_empty() {
                    return;
                }
            }
            read(&String::from_utf8_lossy(&bytes));
        },
    );
}

#[test]
fn the_reader_takes_a_valid_file_with_its_pieces_moved() {
    const PIECES: [&str; 30] = [
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
    ];
    check!().with_type::<Vec<u8>>().with_test_time(moment()).with_iterations(MOST).for_each(|picks| {
        let text: String = picks.iter().map(|pick| PIECES[usize::from(*pick) % PIECES.len()]).collect();
        read(&text);
    });
}

#[test]
fn any_path_becomes_a_normal_one() {
    check!().with_test_time(moment()).with_iterations(MOST).for_each(|bytes: &[u8]| {
        let path = String::from_utf8_lossy(bytes);
        let normal = normalize(&path);
        assert!(normal.starts_with('/') && !normal.contains("//"), "{path} {normal}");
        assert!(normal.split('/').all(|segment| segment != "." && segment != ".."), "{path} {normal}");
        assert!(normal.bytes().all(|byte| byte.is_ascii_graphic()), "{path} {normal}");
        assert_eq!(normalize(&normal), normal);
    });
}

#[test]
fn any_path_is_matched_before_long() {
    let rules = crate::support::rules(VALID);
    check!().with_type::<(String, Vec<u8>)>().with_test_time(moment()).with_iterations(MOST).for_each(
        |(path, picks)| {
            const PIECES: [&str; 10] = ["/", "a", "users", "%2e", "..", "%2F", "//", "edit", "*", "{id}"];
            let target: String = picks.iter().map(|pick| PIECES[usize::from(*pick) % PIECES.len()]).collect();
            for target in [path, &target] {
                let request = Request::new("GET", target);
                let matched = rules.matching(&request);
                assert!(matched.rules.len() <= rules.rules().len());
            }
        },
    );
}

#[test]
fn any_text_is_a_limit_or_is_told_where_it_is_not() {
    const PIECES: [&str; 24] = [
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
    check!().with_type::<(String, Vec<u8>)>().with_test_time(moment()).with_iterations(MOST).for_each(
        |(text, picks)| {
            let pieced: String = picks.iter().map(|pick| PIECES[usize::from(*pick) % PIECES.len()]).collect();
            for text in [text, &pieced] {
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
            }
        },
    );
}
