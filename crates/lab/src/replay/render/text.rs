//! Reports as text for a terminal.

use std::fmt::Write;

use super::format::{count, instant, number, plain, share, span, unkeyed_note};
use crate::replay::report::{AffectedKey, Comparison, DeniedKey, LimitReport, ReplayReport, RuleReport};
use crate::replay::suggest::{Headroom, LimitedKey, Suggestion};
use crate::replay::timeline::Bin;

const WIDEST_KEY: usize = 48;
const CHART: usize = 60;
/// The number of alternatives shown on either side of a suggestion.
const NEAR: usize = 3;

/// A report as text that fits a terminal.
#[must_use]
pub fn text(report: &ReplayReport) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = reading(&mut out, report);
    match &report.comparison {
        None if report.suggestions_only => {
            for unkeyed in &report.outcome.unkeyed {
                let _ = writeln!(out, "\n{}", unkeyed_note(unkeyed, true));
            }
        }
        None => {
            let _ = outcome(&mut out, &report.outcome);
        }
        Some(comparison) => {
            let _ = compared(&mut out, &report.outcome, comparison);
        }
    }
    for suggestion in &report.suggestions {
        let _ = suggested(&mut out, suggestion, report.suggestions_only);
    }
    out
}

fn reading(out: &mut String, report: &ReplayReport) -> std::fmt::Result {
    let reading = &report.reading;
    let logs: Vec<String> =
        reading.logs.iter().map(|(name, format)| format!("{} ({format})", plain(name, 80))).collect();
    writeln!(out, "{}: {}", logs.join(", "), count(reading.lines, "line"))?;
    if let (Some(from), Some(to)) = (report.outcome.from, report.outcome.to) {
        writeln!(out, "{} to {} UTC", instant(from), instant(to))?;
    }
    let many = reading.logs.len() > 1;
    if reading.malformed > 0 {
        let of_future = match reading.in_future {
            0 => String::new(),
            lines => format!(", {} of them with a time in the future", number(lines)),
        };
        writeln!(out, "\nleft out: {}{of_future}", count(reading.malformed, "unparsable line"))?;
        for malformed in &reading.shown {
            let log = if many { format!("{}, ", plain(&malformed.log, 80)) } else { String::new() };
            writeln!(out, "  {log}line {}: {}: {}", malformed.line, malformed.problem, plain(&malformed.text, 100))?;
        }
    }
    if reading.out_of_order > 0 {
        let (lines, back) = (count(reading.out_of_order, "line"), span(reading.furthest_back));
        writeln!(out, "out of order: {lines}, up to {back} late, taken as of the line before")?;
    }
    if reading.without_address > 0 {
        writeln!(out, "without a client's address: {}", count(reading.without_address, "request"))?;
    }
    Ok(())
}

fn outcome(out: &mut String, outcome: &RuleReport) -> std::fmt::Result {
    let of = outcome.requests;
    let wide = number(of).len();
    writeln!(out, "\nrequests  {:>wide$}", number(of))?;
    writeln!(out, "admitted  {:>wide$}  {}", number(outcome.admitted), share(outcome.admitted, of))?;
    writeln!(out, "denied    {:>wide$}  {}", number(outcome.denied), share(outcome.denied, of))?;
    notes(out, outcome)?;
    limits(out, &outcome.limits)?;
    keys(out, outcome)?;
    if let Some(streak) = &outcome.streak {
        let key = plain(&streak.key, WIDEST_KEY);
        writeln!(out, "\nlongest streak: {} in a row, `{key}` by {}", count(streak.denied, "denial"), streak.limit)?;
        writeln!(out, "  {} to {} ({})", instant(streak.from), instant(streak.to), span(streak.to - streak.from))?;
    }
    if let Some(waits) = &outcome.waits {
        writeln!(
            out,
            "\nretry-after: from {} to {}; half up to {}, 90 % up to {}, 99 % up to {}",
            span(waits.least),
            span(waits.most),
            span(waits.half),
            span(waits.nine_of_ten),
            span(waits.ninety_nine)
        )?;
    }
    chart(out, outcome)
}

fn notes(out: &mut String, outcome: &RuleReport) -> std::fmt::Result {
    if outcome.ungoverned > 0 {
        writeln!(
            out,
            "no rule matches {} ({})",
            count(outcome.ungoverned, "request"),
            share(outcome.ungoverned, outcome.requests)
        )?;
    }
    for (rule, refused) in &outcome.refused {
        writeln!(out, "{rule} refuses {} that lack its key", count(*refused, "request"))?;
    }
    for unkeyed in &outcome.unkeyed {
        writeln!(out, "{}", unkeyed_note(unkeyed, false))?;
    }
    if !outcome.idle_rules.is_empty() {
        writeln!(out, "rules that match no request: {}", outcome.idle_rules.join(", "))?;
    }
    if outcome.slots_without_duration > 0 {
        let requests = count(outcome.slots_without_duration, "request");
        writeln!(out, "concurrency is not judged for {requests}: the log has no durations of them")?;
    }
    if outcome.shared_keys > 0 {
        let times = count(outcome.shared_keys, "time");
        writeln!(out, "there was no room for a key {times}, and it shared its rule's bucket: raise --max-keys")?;
    }
    Ok(())
}

fn limits(out: &mut String, limits: &[LimitReport]) -> std::fmt::Result {
    if limits.is_empty() {
        return Ok(());
    }
    let head = ["by limit", "mode", "admitted", "denied", ""].map(String::from);
    let row = |limit: &LimitReport| {
        let never = if limit.too_large > 0 {
            format!(", {} too large ever to pass", number(limit.too_large))
        } else {
            String::new()
        };
        let notation = limit.limit.as_deref().unwrap_or("several, by tier or key");
        [
            limit.id.clone(),
            limit.mode.clone(),
            number(limit.admitted),
            number(limit.denied),
            format!("{notation}{never}"),
        ]
    };
    table(out, std::iter::once(head).chain(limits.iter().map(row)), [false, false, true, true, false])
}

fn keys(out: &mut String, outcome: &RuleReport) -> std::fmt::Result {
    let about = if outcome.keys_short_by > 0 { "about " } else { "" };
    for (what, total, list) in [
        ("keys that would have been limited", outcome.denied_keys, &outcome.keys),
        ("keys that limits in shadow mode would have limited", outcome.shadow_keys, &outcome.keys_in_shadow),
    ] {
        if !list.is_empty() {
            writeln!(out, "\n{what}: {about}{}", number(total))?;
            denied_keys(out, list)?;
        }
    }
    if outcome.keys_short_by > 0 {
        writeln!(out, "\n(so many keys that counts may be up to {} too low)", number(outcome.keys_short_by))?;
    }
    Ok(())
}

fn denied_keys(out: &mut String, keys: &[DeniedKey]) -> std::fmt::Result {
    let head = ["most", "by", "denied", "in a row", "first", "last"].map(String::from);
    let row = |key: &DeniedKey| {
        [
            plain(&key.key, WIDEST_KEY),
            key.limit.clone(),
            number(key.denied),
            number(key.longest_streak),
            instant(key.first),
            instant(key.last),
        ]
    };
    table(out, std::iter::once(head).chain(keys.iter().map(row)), [false, false, true, true, false, false])
}

fn compared(out: &mut String, old: &RuleReport, comparison: &Comparison) -> std::fmt::Result {
    let Comparison { new, newly_denied, newly_admitted, .. } = comparison;
    let row = |what: &str, old: u64, new: u64| [what.to_owned(), number(old), number(new)];
    let rows = [
        ["", "old", "new"].map(String::from),
        row("requests", old.requests, new.requests),
        row("admitted", old.admitted, new.admitted),
        row("denied", old.denied, new.denied),
        row("keys limited", old.denied_keys, new.denied_keys),
    ];
    table(out, rows.into_iter(), [false, true, true])?;
    let of = old.requests;
    writeln!(out, "\ndenied by the new rules only  {}  {}", number(*newly_denied), share(*newly_denied, of))?;
    writeln!(out, "denied by the old rules only  {}  {}", number(*newly_admitted), share(*newly_admitted, of))?;
    changed(out, "who loses", comparison.losing_keys, &comparison.losers)?;
    changed(out, "who gains", comparison.gaining_keys, &comparison.gainers)?;
    for (which, outcome) in [("old", old), ("new", new)] {
        writeln!(out, "\n{which} rules")?;
        notes(out, outcome)?;
        limits(out, &by_id(&outcome.limits))?;
    }
    if old.limits.iter().chain(&new.limits).any(|limit| limit.mode == "shadow") {
        writeln!(
            out,
            "\nA limit in shadow mode counts the requests that are admitted. Its numbers differ when other limits"
        )?;
        writeln!(out, "admit other requests, even if the limit itself is the same.")?;
    }
    writeln!(out, "\nthe new rules over time")?;
    chart(out, new)
}

/// Limits in the same order for both sets of rules.
fn by_id(limits: &[LimitReport]) -> Vec<LimitReport> {
    let mut limits = limits.to_vec();
    limits.sort_by(|one, other| one.id.cmp(&other.id));
    limits
}

fn changed(out: &mut String, what: &str, keys: u64, list: &[AffectedKey]) -> std::fmt::Result {
    if list.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{what}: {}", count(keys, "key"))?;
    let head = ["most", "by", "requests", "first", "last"].map(String::from);
    let row = |key: &AffectedKey| {
        [plain(&key.key, WIDEST_KEY), key.limit.clone(), number(key.requests), instant(key.first), instant(key.last)]
    };
    table(out, std::iter::once(head).chain(list.iter().map(row)), [false, false, true, false, false])
}

fn suggested(out: &mut String, suggestion: &Suggestion, is_alone: bool) -> std::fmt::Result {
    let percent = format!("{:.6}", suggestion.share * 100.0);
    let percent = percent.trim_end_matches('0').trim_end_matches('.');
    let of = if is_alone { String::new() } else { format!(" for {}", suggestion.limit) };
    writeln!(out, "\nsuggested limit{of}: {}", suggestion.proposal)?;
    let sample = if suggestion.one_in > 1 {
        format!(", a sample of one in {}", number(suggestion.one_in))
    } else {
        String::new()
    };
    let (limited, keys) = (number(suggestion.limited), count(suggestion.keys, "key"));
    writeln!(out, "  would have limited {limited} of {keys}{sample}; the aim was to leave {percent} % alone")?;
    for LimitedKey { key, requests, burst } in &suggestion.limited_keys {
        let (key, requests) = (plain(key, WIDEST_KEY), count(*requests, "request"));
        writeln!(out, "    {key}: {requests}, would need a burst of {}", number(*burst))?;
    }
    let left_out = suggestion.limited - suggestion.limited_keys.len() as u64;
    if left_out > 0 {
        writeln!(out, "    and {} more", number(left_out))?;
    }
    let Headroom { half, nine_of_ten, for_twice } = &suggestion.headroom;
    let (half, nine_of_ten) = (half * 100.0, nine_of_ten * 100.0);
    writeln!(out, "  headroom: half of the keys used up to {half:.0} % of it, 90 % up to {nine_of_ten:.0} %")?;
    writeln!(out, "  with room for twice as many requests of each key: {for_twice}")?;
    writeln!(out, "  as few with:")?;
    let all = &suggestion.alternatives;
    let proposed = all.iter().position(|alternative| alternative.limit == suggestion.proposal).unwrap_or(0);
    let near = all.iter().skip(proposed.saturating_sub(NEAR)).take(2 * NEAR + 1);
    near.filter(|other| other.limit != suggestion.proposal)
        .try_for_each(|other| writeln!(out, "    {}", other.limit))?;
    let into = if is_alone { String::new() } else { format!(", in place of the limit of {}", suggestion.limit) };
    writeln!(out, "  to try it in shadow mode{into}:")?;
    suggestion.rule.lines().try_for_each(|line| writeln!(out, "    {line}"))
}

/// A bar line for all requests and one for denied ones.
fn chart(out: &mut String, outcome: &RuleReport) -> std::fmt::Result {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bins: &[Bin] = &outcome.timeline;
    let together = bins.len().div_ceil(CHART).max(1);
    let folded: Vec<(u64, u64)> = bins
        .chunks(together)
        .map(|chunk| {
            (chunk.iter().map(|bin| bin.admitted + bin.denied).sum(), chunk.iter().map(|bin| bin.denied).sum())
        })
        .collect();
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else { return Ok(()) };
    let seconds = first.seconds * together as u64;
    let line = |of: &dyn Fn(&(u64, u64)) -> u64| {
        let most = folded.iter().map(of).max().unwrap_or(0);
        let block = |bin: &(u64, u64)| {
            // A non-zero count is always visible.
            let height = (u128::from(of(bin)) * 8).div_ceil(u128::from(most.max(1)));
            usize::try_from(height).ok().and_then(|height| BLOCKS.get(height)).copied().unwrap_or('█')
        };
        (folded.iter().map(block).collect::<String>(), most)
    };
    let (all, most) = line(&|bin| bin.0);
    let (denied, most_denied) = line(&|bin| bin.1);
    let per = span(seconds * 1_000_000);
    writeln!(out, "\nrequests  │{all}│ at most {} in {per}", number(most))?;
    writeln!(out, "denied    │{denied}│ at most {} in {per}", number(most_denied))?;
    // The last bin may extend past the last request.
    let end = (last.from + last.seconds) * 1_000_000;
    let (from, to) = (instant(first.from * 1_000_000), instant(outcome.to.map_or(end, |to| to.min(end))));
    let gap = folded.len().saturating_sub(from.len() + to.len()).max(2);
    writeln!(out, "           {from}{:gap$}{to}", "")
}

/// Columns as wide as their widest cell, two spaces apart.
fn table<const N: usize>(
    out: &mut String,
    rows: impl Iterator<Item = [String; N]>,
    right: [bool; N],
) -> std::fmt::Result {
    let rows: Vec<[String; N]> = rows.collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    writeln!(out)?;
    for row in &rows {
        let mut line = String::new();
        for ((cell, width), right) in row.iter().zip(widths).zip(right) {
            let _ = if right { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
