//! Reports as CSV, for spreadsheets.

use std::fmt::Write;

use super::format::instant;
use crate::replay::report::ReplayReport;

/// A report as one table, with a row for each limit and for each of its most denied keys.
///
/// With a comparison, keys with changed outcomes have rows too. Cells that a spreadsheet could take for a formula
/// begin with an apostrophe.
#[must_use]
pub fn csv(report: &ReplayReport) -> String {
    let mut out = String::from("what,limit,key,admitted,denied,longest_streak,first,last\n");
    let mut row = |what: &str, cells: [&str; 7]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "{what},{}", cells.join(","));
    };
    let sets = [("", Some(&report.outcome)), ("new ", report.comparison.as_ref().map(|comparison| &comparison.new))];
    for (which, outcome) in sets {
        for limit in outcome.iter().flat_map(|outcome| &outcome.limits) {
            let (admitted, denied) = (limit.admitted.to_string(), limit.denied.to_string());
            row(&format!("{which}limit"), [&limit.id, "", &admitted, &denied, "", "", ""]);
        }
        let enforced = outcome.iter().flat_map(|outcome| &outcome.keys).map(|key| ("key", key));
        let shadow = outcome.iter().flat_map(|outcome| &outcome.keys_in_shadow).map(|key| ("key in shadow mode", key));
        for (kind, key) in enforced.chain(shadow) {
            let (denied, streak) = (key.denied.to_string(), key.longest_streak.to_string());
            let cells = [&key.limit, &key.key, "", &denied, &streak, &instant(key.first), &instant(key.last)];
            row(&format!("{which}{kind}"), cells);
        }
    }
    if let Some(comparison) = &report.comparison {
        for key in &comparison.losers {
            let requests = key.requests.to_string();
            row("loses", [&key.limit, &key.key, "", &requests, "", &instant(key.first), &instant(key.last)]);
        }
        for key in &comparison.gainers {
            let requests = key.requests.to_string();
            row("gains", [&key.limit, &key.key, &requests, "", "", &instant(key.first), &instant(key.last)]);
        }
    }
    for suggestion in &report.suggestions {
        let (spared, limited) = ((suggestion.keys - suggestion.limited).to_string(), suggestion.limited.to_string());
        row("suggestion", [&suggestion.limit, &suggestion.proposal, &spared, &limited, "", "", ""]);
        for key in &suggestion.limited_keys {
            row("limited by suggestion", [&suggestion.limit, &key.key, "", "", "", "", ""]);
        }
    }
    out
}

fn escaped(cell: &str) -> String {
    let formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let cell = if formula { format!("'{cell}") } else { cell.to_owned() };
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_break_out() {
        assert_eq!(escaped("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(escaped("=1+1"), "'=1+1");
    }
}
