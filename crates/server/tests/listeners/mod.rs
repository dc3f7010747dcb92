//! Tests that all listeners and tools decide the same request alike.

mod ask;
mod protocols;
mod requests;

use std::collections::BTreeMap;

use ask::{Asker, Listeners};
use requests::{ROWS, Row, Verdict};

/// A rule for each row: the first request of a key is allowed and the second is denied. Each listener has keys of its own. The row is
/// told by `User-Agent` and the listener by `Referer`, which every log has.
fn rules() -> String {
    let rule = |(number, row): (usize, &Row)| {
        let Row { condition, key, .. } = row;
        format!(
            "  - {{ id: row{number}, match: {{ header: {{ User-Agent: '{number}' }}{condition} }}, \
             key: ['header:Referer'{key}], on_missing_key: skip, limit: log 1/h }}\n"
        )
    };
    let rules: String = ROWS.iter().enumerate().map(rule).collect();
    format!("rules:\n{rules}")
}

/// The verdicts on the second request of every case.
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
            let is_logged = asker != Asker::ReplayCombined || row.is_in_combined_logs();
            if is_logged && *found != asker.sees(row.verdict) && !row.unknown_to.contains(&asker) {
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
    hold(Asker::ReplayCombined, &listeners.replayed_from_combined());
    assert!(differing.is_empty(), "found and wanted: {differing:#?}");
}
