//! Rendering of the screen. A pure function of the model.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as Words, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};
use tidegate_core::Micros;
use tidegate_rules::Mode;

use super::model::{LinkState, SecondRanking, Speed, TopModel};
use crate::cli::plain;
use crate::metrics::{OutgoingShare, OwnRegion, OwnShare, RuleView, TierView, TopKeys, View};

const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const GOOD: Style = Style::new().fg(Color::Green);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const DOUBTFUL: Style = Style::new().fg(Color::Yellow);

pub(super) fn draw(frame: &mut Frame<'_>, model: &TopModel) {
    let [head, numbers, curve, rules, keys, denials, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2 + u16::from(model.has_tier()) + u16::from(model.region().is_some())),
        Constraint::Length(3),
        Constraint::Min(5),
        Constraint::Fill(1),
        Constraint::Length(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, model);
    draw_numbers(frame, numbers, model);
    draw_curve(frame, curve, model);
    draw_rules(frame, rules, model);
    if let Some(view) = &model.view {
        let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(keys);
        draw_keys(frame, left, "top keys by traffic", &view.traffic);
        match (model.ranking, &view.store_keys) {
            (SecondRanking::StoreCalls, Some(top)) => draw_keys(frame, right, "top keys by calls to Redis", top),
            (SecondRanking::StoreCalls | SecondRanking::Denials, _) => {
                draw_keys(frame, right, "top keys by denials", &view.denied);
            }
        }
    }
    draw_denials(frame, denials, model);
    let order = model.order.name();
    let pause = if model.is_paused { "p resume" } else { "p pause" };
    let keys = match (model.has_tier(), model.ranking) {
        (false, _) => "",
        (true, SecondRanking::Denials) => "   k keys by calls to Redis",
        (true, SecondRanking::StoreCalls) => "   k keys by denials",
    };
    frame.render_widget(Words::styled(format!("q quit   {pause}   s sort rules (by {order}){keys}"), FAINT), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, model: &TopModel) {
    let state = match &model.link {
        LinkState::Connecting => Span::styled("connecting …", DOUBTFUL),
        LinkState::Live if model.is_paused => Span::styled("paused", DOUBTFUL),
        LinkState::Live => Span::styled("live", GOOD),
        LinkState::Lost(reason) => Span::styled(format!("NO CONNECTION, retrying: {}", plain(reason)), BAD),
    };
    let mut words = vec![Span::styled("tidegate top", STRONG), Span::raw(format!("  {}  ", model.url)), state];
    if let Some(all) = model.view.as_ref().and_then(|view| view.all) {
        words.push(Span::styled(format!("  all rules switched to {all}"), BAD));
    }
    frame.render_widget(Words::from(words), area);
}

fn draw_numbers(frame: &mut Frame<'_>, area: Rect, model: &TopModel) {
    let Some(view) = &model.view else {
        frame.render_widget(Words::styled("no data yet", FAINT), area);
        return;
    };
    let speed = model.speed();
    let requests = Words::from(vec![
        Span::styled(format!("{:>9}/s ", short(speed.all())), STRONG),
        Span::raw(format!("allowed {}/s  ", short(speed.allowed))),
        Span::styled(format!("denied {}/s", short(speed.denied)), if speed.denied > 0.0 { DOUBTFUL } else { FAINT }),
        Span::raw(format!("  refused {}/s  dropped {:.1} %", short(speed.refused), speed.drop_rate())),
    ]);
    let tier = model.tier().map(|tier| decided_by(view, &tier));
    let region = model.region().map(region);
    let lines: Vec<Words<'_>> = [requests, store(view)].into_iter().chain(tier).chain(region).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

/// Decisions by lease, memory and Redis, the efficiency of leases, and hot keys.
fn decided_by<'v>(view: &'v View, tier: &TierView) -> Words<'v> {
    let decisions = tier.decisions() as f64;
    let percent = |part: u64| if decisions > 0.0 { 100.0 * part as f64 / decisions } else { 0.0 };
    let mut words =
        vec![Span::raw(format!("leases {:.1} %  cache {:.1} %  ", percent(tier.by_lease), percent(tier.by_memory)))];
    if decisions > 0.0 {
        words.push(Span::raw(format!("{:.3} Redis calls a decision  ", tier.calls() as f64 / decisions)));
    }
    words.push(Span::raw(format!("{} held", short(tier.cost_held as f64))));
    let hot = view.store_keys.iter().flat_map(|top| &top.keys).filter(|key| key.hot).count();
    if hot > 0 {
        words.push(Span::styled(format!("  {hot} HOT"), DOUBTFUL));
    }
    Words::from(words)
}

/// Shares and demand of the region, and shares in transfer.
fn region(own: &OwnRegion) -> Words<'_> {
    let mut words = vec![Span::raw(format!("region {}  ", plain(&own.region)))];
    if !own.confirmed {
        words.push(Span::styled("UNCONFIRMED, at the floor  ", BAD));
    }
    for OwnShare { rule, share, demand, .. } in &own.shares {
        let rule = if rule.is_empty() { String::new() } else { format!("{} ", plain(rule)) };
        words.push(Span::raw(format!("{rule}{share} for {}/s  ", short(*demand as f64))));
    }
    for OutgoingShare { to, rule, share, .. } in &own.outgoing {
        let rule = if rule.is_empty() { String::new() } else { format!(" of {}", plain(rule)) };
        words.push(Span::styled(format!("{share}{rule} parked for {}  ", plain(to)), DOUBTFUL));
    }
    Words::from(words)
}

fn store(view: &View) -> Words<'_> {
    let store = &view.store;
    let mut words = vec![Span::raw(format!("rules: generation {}   store: {} ", view.generation, plain(&store.kind)))];
    words.push(if store.healthy { Span::styled("healthy", GOOD) } else { Span::styled("FAILING", BAD) });
    if let Some(trouble) = &store.trouble {
        words.push(Span::styled(format!(" {}", plain(trouble)), DOUBTFUL));
    }
    if let Some((keys, most)) = store.keys {
        words.push(Span::raw(format!("   keys {} of {}", short(keys as f64), short(most as f64))));
    }
    if store.overflowed > 0 {
        words.push(Span::styled(format!("   {} without room", short(store.overflowed as f64)), BAD));
    }
    if store.without > 0 {
        words.push(Span::styled(format!("   {} decided without it", short(store.without as f64)), DOUBTFUL));
    }
    Words::from(words)
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, model: &TopModel) {
    let block = Block::new().borders(Borders::TOP).border_style(FAINT).title(Span::styled("requests a second", FAINT));
    let width = usize::from(area.width);
    let newest: Vec<u64> = model.history.iter().rev().take(width).rev().copied().collect();
    frame.render_widget(Sparkline::default().block(block).data(newest).style(GOOD), area);
}

fn draw_rules(frame: &mut Frame<'_>, area: Rect, model: &TopModel) {
    let known = model.view.as_ref().map_or(0, |view| view.rules_known);
    let rules = model.rules();
    let title = if known > rules.len() { format!("rules ({} of {known})", rules.len()) } else { "rules".to_owned() };
    let rows = rules.into_iter().map(|(rule, speed)| rule_row(rule, speed));
    // On a narrow terminal, rule names take precedence over the last columns.
    let columns = [("rule", 16), ("denied/s", 10), ("allowed/s", 11), ("mode", 8), ("drop %", 8), ("denied", 10)];
    let fitting = columns.iter().scan(0, |used, (_, width)| {
        *used += width + 1;
        (*used <= area.width + 1).then_some(())
    });
    let shown = fitting.count().max(2);
    let widths = columns.iter().take(shown).enumerate().map(|(column, (_, width))| match column {
        0 => Constraint::Fill(1),
        _ => Constraint::Length(*width),
    });
    let header =
        columns.iter().take(shown).enumerate().map(|(column, (name, _))| number_from(column, 1, (*name).to_owned()));
    let rows = rows.map(|cells| Row::new(cells.0.into_iter().take(shown)).style(cells.1));
    let header = Row::new(header).style(FAINT);
    frame.render_widget(Table::new(rows, widths).header(header).block(titled(title)), area);
}

/// A table cell. Columns from `first` on are numbers and aligned to the right.
fn number_from(column: usize, first: usize, text: String) -> Cell<'static> {
    let line = Words::raw(text);
    Cell::new(if column >= first { line.right_aligned() } else { line })
}

fn rule_row(rule: &RuleView, speed: Speed) -> ([Cell<'static>; 6], Style) {
    let mode = rule.mode.map_or_else(|| "-".to_owned(), |mode| mode.to_string());
    let style = match rule.mode {
        Some(Mode::Shadow | Mode::Off) => FAINT,
        Some(Mode::Enforce) | None if speed.denied > 0.0 => DOUBTFUL,
        Some(Mode::Enforce) | None => Style::new(),
    };
    // Requests without a key share one limit.
    let mut name = match rule.without_key {
        0 => plain(&rule.rule),
        lacking => format!("{} ({} without key)", plain(&rule.rule), short(lacking as f64)),
    };
    if let Some(rate) = &rule.rate {
        name.push_str(&format!(" at {} of {}", plain(&rate.present), plain(&rate.highest)));
    }
    let denied = short((rule.denied + rule.shadow_denied) as f64);
    let cells = [name, rate(speed.denied), rate(speed.allowed), mode, format!("{:.1}", speed.drop_rate()), denied];
    let mut column = 0;
    let cells = cells.map(|text| {
        column += 1;
        number_from(column - 1, 1, text)
    });
    (cells, style)
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, title: &str, top: &TopKeys) {
    let rows = top.keys.iter().map(|key| {
        let name = if key.key.is_empty() { "(shared by all)".to_owned() } else { key.key.join(" ") };
        let part = 100.0 * key.count as f64 / (top.total as f64).max(1.0);
        Row::new([
            Cell::new(plain(&name)),
            Cell::new(plain(&key.rule)).style(FAINT),
            number_from(2, 2, rate(key.count as f64 / top.seconds as f64)),
            number_from(3, 2, format!("{part:.1}")),
        ])
        .style(if key.hot { DOUBTFUL } else { Style::new() })
    });
    let widths = [Constraint::Fill(3), Constraint::Fill(2), Constraint::Length(7), Constraint::Length(6)];
    let header = ["key", "rule", "per s", "%"].map(str::to_owned).into_iter().enumerate();
    let header = Row::new(header.map(|(column, name)| number_from(column, 2, name))).style(FAINT);
    let title = format!("{title}, last {} s", top.seconds);
    frame.render_widget(Table::new(rows, widths).header(header).block(titled(title)), area);
}

fn draw_denials(frame: &mut Frame<'_>, area: Rect, model: &TopModel) {
    let lines = model.denials.iter().rev().take(usize::from(area.height)).map(|denial| {
        let wait =
            denial.retry_after_ms.map_or_else(|| "never".to_owned(), |ms| format!("in {}", Micros::from_millis(ms)));
        let key = if denial.key.is_empty() { "(shared by all)".to_owned() } else { denial.key.join(" ") };
        let would = if denial.mode == Mode::Shadow { "would be denied" } else { "denied" };
        Words::from(vec![
            Span::styled(format!("{} ", clock(denial.at_ms)), FAINT),
            Span::raw(format!("{} {would} {}, again {wait}", plain(&denial.rule), plain(&key))),
        ])
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).block(titled("some denials".to_owned())), area);
}

fn titled(title: String) -> Block<'static> {
    Block::new().borders(Borders::TOP).border_style(FAINT).title(Span::styled(title, FAINT))
}

/// The time of day, in UTC.
fn clock(at_ms: u64) -> String {
    let seconds = at_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// A number per second, always with one decimal below 100, so that columns line up: `7.0`, `12.5`, `126`.
fn rate(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { short(number) }
}

/// `7`, `1.5`, `12.3k`, `4.0M`.
fn short(number: f64) -> String {
    match number {
        number if number >= 1e9 => format!("{:.1}G", number / 1e9),
        number if number >= 1e6 => format!("{:.1}M", number / 1e6),
        number if number >= 1e4 => format!("{:.1}k", number / 1e3),
        number if number >= 100.0 || number.fract() < 0.05 => format!("{number:.0}"),
        number => format!("{number:.1}"),
    }
}

#[cfg(test)]
mod tests;
