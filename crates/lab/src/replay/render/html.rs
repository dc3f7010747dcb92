//! Reports as a self-contained HTML page.

use std::fmt::Write;

use super::format::{count, instant, number, share, span, unkeyed_note};
use crate::replay::report::{AffectedKey, DeniedKey, ReplayReport, RuleReport};
use crate::replay::suggest::{Headroom, Suggestion};
use crate::replay::timeline::Bin;

const STYLE: &str = include_str!("report.css");

/// A report as one HTML file without external resources, which contains the report's data. Follows the system's light
/// or dark mode.
#[must_use]
pub fn html(report: &ReplayReport) -> String {
    let mut page = String::with_capacity(32_768);
    // Writing to a `String` cannot fail.
    let _ = write(&mut page, report);
    page
}

fn write(page: &mut String, report: &ReplayReport) -> std::fmt::Result {
    let names: Vec<&str> = report.reading.logs.iter().map(|(name, _)| name.as_str()).collect();
    let title = escaped(&format!("Replay of {}", names.join(", ")));
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    )?;
    let outcome = &report.outcome;
    if let (Some(from), Some(to)) = (outcome.from, outcome.to) {
        writeln!(page, "<p class=\"when\">{} to {} UTC</p>", instant(from), instant(to))?;
    }
    match &report.comparison {
        None if report.suggestions_only => {}
        None => set(page, "", outcome)?,
        Some(comparison) => {
            tiles(
                page,
                &[
                    ("requests", number(outcome.requests), String::new()),
                    ("denied by the old rules", number(outcome.denied), share(outcome.denied, outcome.requests)),
                    (
                        "denied by the new rules",
                        number(comparison.new.denied),
                        share(comparison.new.denied, outcome.requests),
                    ),
                    ("denied by the new only", number(comparison.newly_denied), count(comparison.losing_keys, "key")),
                    (
                        "denied by the old only",
                        number(comparison.newly_admitted),
                        count(comparison.gaining_keys, "key"),
                    ),
                ],
            )?;
            changed(page, "Who loses", &comparison.losers)?;
            changed(page, "Who gains", &comparison.gainers)?;
            set(page, "The old rules: ", outcome)?;
            set(page, "The new rules: ", &comparison.new)?;
        }
    }
    if report.suggestions_only {
        unkeyed(page, &report.outcome, true)?;
    }
    for suggestion in &report.suggestions {
        suggested(page, suggestion, report.suggestions_only)?;
    }
    read(page, report)?;
    let data = serde_json::to_string(report).unwrap_or_default();
    // The data must not contain the end tag of its script element.
    let data = data.replace('<', "\\u003c");
    write!(
        page,
        "<script type=\"application/json\" id=\"tidegate-replay\">{data}</script>\n</main>\n</body>\n</html>\n"
    )
}

fn set(page: &mut String, which: &str, outcome: &RuleReport) -> std::fmt::Result {
    tiles(
        page,
        &[
            ("requests", number(outcome.requests), String::new()),
            ("admitted", number(outcome.admitted), share(outcome.admitted, outcome.requests)),
            ("denied", number(outcome.denied), share(outcome.denied, outcome.requests)),
            ("keys limited", number(outcome.denied_keys), String::new()),
        ],
    )?;
    writeln!(page, "<h2>{which}over time</h2>")?;
    chart(page, outcome)?;
    writeln!(page, "<h2>{which}by limit</h2>")?;
    let rows = outcome.limits.iter().map(|limit| {
        let notation = limit.limit.as_deref().unwrap_or("several").to_owned();
        vec![limit.id.clone(), notation, limit.mode.clone(), number(limit.admitted), number(limit.denied)]
    });
    let head = [
        ColumnHead::Text("limit"),
        ColumnHead::Text("notation"),
        ColumnHead::Text("mode"),
        ColumnHead::Number("admitted"),
        ColumnHead::Number("denied"),
    ];
    table(page, &head, rows.collect())?;
    unkeyed(page, outcome, false)?;
    keys(page, &format!("{which}keys that would have been limited most"), &outcome.keys)?;
    keys(page, &format!("{which}keys that limits in shadow mode would have limited most"), &outcome.keys_in_shadow)?;
    if let Some(streak) = &outcome.streak {
        writeln!(
            page,
            "<p>Longest streak: {} in a row, <code>{}</code> by {}, {} to {}.</p>",
            count(streak.denied, "denial"),
            escaped(&streak.key),
            escaped(&streak.limit),
            instant(streak.from),
            instant(streak.to)
        )?;
    }
    if let Some(waits) = &outcome.waits {
        let rows = [
            ("shortest", waits.least),
            ("half up to", waits.half),
            ("90 % up to", waits.nine_of_ten),
            ("99 % up to", waits.ninety_nine),
            ("longest", waits.most),
        ];
        writeln!(page, "<h2>{which}retry-after</h2>")?;
        table(
            page,
            &[ColumnHead::Text("share of denials"), ColumnHead::Number("wait")],
            rows.map(|(what, wait)| vec![what.to_owned(), span(wait)]).into(),
        )?;
    }
    Ok(())
}

fn unkeyed(page: &mut String, outcome: &RuleReport, is_alone: bool) -> std::fmt::Result {
    outcome
        .unkeyed
        .iter()
        .try_for_each(|unkeyed| writeln!(page, "<p>{}.</p>", escaped(&unkeyed_note(unkeyed, is_alone))))
}

fn changed(page: &mut String, what: &str, list: &[AffectedKey]) -> std::fmt::Result {
    if list.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>{what}</h2>")?;
    let rows = list.iter().map(|key| {
        vec![key.key.clone(), key.limit.clone(), number(key.requests), instant(key.first), instant(key.last)]
    });
    let head = ["key", "limit"].map(ColumnHead::Text).into_iter().chain([ColumnHead::Number("requests")]);
    table(page, &head.chain(["first", "last"].map(ColumnHead::Text)).collect::<Vec<_>>(), rows.collect())
}

fn keys(page: &mut String, what: &str, list: &[DeniedKey]) -> std::fmt::Result {
    if list.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>{what}</h2>")?;
    let rows = list.iter().map(|key| {
        let (first, last) = (instant(key.first), instant(key.last));
        vec![key.key.clone(), key.limit.clone(), number(key.denied), number(key.longest_streak), first, last]
    });
    let head = ["key", "limit"].map(ColumnHead::Text).into_iter().chain(["denied", "in a row"].map(ColumnHead::Number));
    table(page, &head.chain(["first", "last"].map(ColumnHead::Text)).collect::<Vec<_>>(), rows.collect())
}

fn read(page: &mut String, report: &ReplayReport) -> std::fmt::Result {
    let reading = &report.reading;
    let of_future = match reading.in_future {
        0 => String::new(),
        lines => format!(", {} with a time in the future", number(lines)),
    };
    writeln!(
        page,
        "<h2>What was read</h2>\n<p>{}, {} of them unparsable{of_future}.</p>",
        count(reading.lines, "line"),
        number(reading.malformed)
    )?;
    if !reading.shown.is_empty() {
        let rows = reading
            .shown
            .iter()
            .map(|line| vec![format!("{}:{}", line.log, line.line), line.problem.clone(), line.text.clone()]);
        table(page, &["line", "problem", "text"].map(ColumnHead::Text), rows.collect())?;
    }
    if reading.out_of_order > 0 {
        let (lines, back) = (count(reading.out_of_order, "line"), span(reading.furthest_back));
        writeln!(page, "<p>{lines} out of order, up to {back} late.</p>")?;
    }
    Ok(())
}

fn tiles(page: &mut String, tiles: &[(&str, String, String)]) -> std::fmt::Result {
    page.push_str("<dl class=\"tiles\">\n");
    for (what, figure, more) in tiles {
        writeln!(page, "<div><dt>{what}</dt><dd>{figure} <small>{more}</small></dd></div>")?;
    }
    page.push_str("</dl>\n");
    Ok(())
}

/// The alignment of a column and of its header.
#[derive(Clone, Copy)]
enum ColumnHead {
    Text(&'static str),
    Number(&'static str),
}

impl ColumnHead {
    const fn class(self) -> &'static str {
        match self {
            ColumnHead::Text(_) => "",
            ColumnHead::Number(_) => " class=\"n\"",
        }
    }
}

/// A suggested limit, with the keys that it would limit and the text to paste.
fn suggested(page: &mut String, suggestion: &Suggestion, is_alone: bool) -> std::fmt::Result {
    writeln!(
        page,
        "<h2>Suggested limit for {}</h2>\n<p><code>{}</code> would have limited {} of {}.</p>",
        escaped(if is_alone { "this key" } else { &suggestion.limit }),
        escaped(&suggestion.proposal),
        number(suggestion.limited),
        count(suggestion.keys, "key")
    )?;
    let limited = suggestion.limited_keys.iter();
    let rows: Vec<_> = limited.map(|key| vec![key.key.clone(), number(key.requests), number(key.burst)]).collect();
    if !rows.is_empty() {
        table(
            page,
            &[ColumnHead::Text("key"), ColumnHead::Number("requests"), ColumnHead::Number("burst needed")],
            rows,
        )?;
    }
    let Headroom { half, nine_of_ten, for_twice } = &suggestion.headroom;
    writeln!(
        page,
        "<p>Headroom: half of the keys used up to {:.0} % of it, 90 % up to {:.0} %. With room for twice as many requests \
         of each key: <code>{}</code>.</p>\n<pre>{}</pre>",
        half * 100.0,
        nine_of_ten * 100.0,
        escaped(for_twice),
        escaped(&suggestion.rule)
    )?;
    let rows = suggestion.alternatives.iter().map(|other| vec![other.limit.clone(), number(other.limited)]);
    table(page, &[ColumnHead::Text("as few with"), ColumnHead::Number("keys limited")], rows.collect())
}

fn table(page: &mut String, head: &[ColumnHead], rows: Vec<Vec<String>>) -> std::fmt::Result {
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for column in head {
        let (ColumnHead::Text(name) | ColumnHead::Number(name)) = column;
        write!(page, "<th scope=\"col\"{}>{name}</th>", column.class())?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for (cell, column) in row.iter().zip(head) {
            write!(page, "<td{}>{}</td>", column.class(), escaped(cell))?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}

/// Stacked bars: admitted requests below, denied ones above.
fn chart(page: &mut String, outcome: &RuleReport) -> std::fmt::Result {
    const HEIGHT: f64 = 160.0;
    let bins: &[Bin] = &outcome.timeline;
    let most = bins.iter().map(|bin| bin.admitted + bin.denied).max().unwrap_or(0).max(1) as f64;
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else { return Ok(()) };
    let width = 8 * bins.len();
    writeln!(
        page,
        "<figure><svg viewBox=\"0 0 {width} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Requests over time, at most {most} in {}\">",
        span(first.seconds * 1_000_000)
    )?;
    for (bin, number) in bins.iter().zip(0..) {
        let (admitted, denied) = (HEIGHT * bin.admitted as f64 / most, HEIGHT * bin.denied as f64 / most);
        let (x, base) = (8 * number, HEIGHT - admitted);
        let when = instant(bin.from * 1_000_000);
        writeln!(
            page,
            "<g><title>{when}: {} admitted, {} denied</title>\
             <rect class=\"admitted\" x=\"{x}\" y=\"{base:.2}\" width=\"7\" height=\"{admitted:.2}\"/>\
             <rect class=\"denied\" x=\"{x}\" y=\"{:.2}\" width=\"7\" height=\"{denied:.2}\"/></g>",
            bin.admitted,
            bin.denied,
            base - denied
        )?;
    }
    // The last bin may extend past the last request.
    let end = (last.from + last.seconds) * 1_000_000;
    let (from, to) = (instant(first.from * 1_000_000), instant(outcome.to.map_or(end, |to| to.min(end))));
    writeln!(
        page,
        "</svg>\n<figcaption><span>{from}</span><span><i class=\"admitted\"></i> admitted <i class=\"denied\"></i> denied</span>\
         <span>{to}</span></figcaption></figure>"
    )
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_logs_is_only_text() {
        assert_eq!(escaped("<script>'\"&\u{7}"), "&lt;script&gt;&#39;&quot;&amp;\u{fffd}");
    }
}
