//! One request, put to every listener and to the tools: all of them come to the same verdict.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

#[path = "../support/mod.rs"]
mod support;

mod ask;
mod requests;

use std::collections::BTreeMap;

use ask::{Asker, Listeners};
use requests::{ROWS, Row, Verdict};

/// A rule for each row: the first request of a key is allowed and the second is denied. Each listener has keys of its own.
fn rules() -> String {
    let rule = |(number, row): (usize, &Row)| {
        let Row { condition, key, .. } = row;
        format!(
            "  - {{ id: row{number}, match: {{ header: {{ X-Row: '{number}' }}{condition} }}, \
             key: ['header:X-Listener'{key}], on_missing_key: skip, limit: log 1/h }}\n"
        )
    };
    let rules: String = ROWS.iter().enumerate().map(rule).collect();
    format!("rules:\n{rules}")
}

/// The verdicts on the second request of every row, after the first.
fn verdicts(asker: Asker, listeners: &Listeners) -> Vec<Verdict> {
    let rows = ROWS.iter().enumerate();
    rows.map(|(number, row)| {
        let first = listeners.ask(asker, number, &row.plain);
        assert_eq!(first, Verdict::Allow, "{asker:?}: the plain request of row {number}: {:?}", row.plain);
        listeners.ask(asker, number, &row.awkward)
    })
    .collect()
}

#[test]
fn every_listener_and_tool_comes_to_the_same_verdict() {
    let listeners = Listeners::start(&rules());
    let mut differing = BTreeMap::new();
    let mut hold = |asker: Asker, found: &[Verdict]| {
        for (number, (row, found)) in ROWS.iter().zip(found).enumerate() {
            if *found != asker.sees(row.verdict) && !row.unknown_to.contains(&asker) {
                let what = format!("row {number}: {:?}", row.awkward);
                differing.entry(what).or_insert_with(Vec::new).push((asker, *found, row.verdict));
            }
        }
    };
    for asker in Asker::LISTENERS {
        hold(asker, &verdicts(asker, &listeners));
    }
    hold(Asker::Explain, &listeners.explained());
    hold(Asker::Replay, &listeners.replayed());
    assert!(differing.is_empty(), "found and wanted: {differing:#?}");
}
