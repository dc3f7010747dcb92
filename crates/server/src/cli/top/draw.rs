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
    let state = match &model.line {
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

/// The shares of the region with their demand, and what is parked.
fn region(own: &OwnRegion) -> Words<'_> {
    let mut words = vec![Span::raw(format!("region {}  ", plain(&own.region)))];
    if !own.confirmed {
        words.push(Span::styled("UNCONFIRMED, at the floor  ", BAD));
    }
    for OwnShare { rule, share, demand, .. } in &own.shares {
        let rule = if rule.is_empty() { String::new() } else { format!("{} ", plain(rule)) };
        words.push(Span::raw(format!("{rule}{share} for {}/s  ", short(*demand as f64))));
    }
    for OutgoingShare { to, rule, share } in &own.outgoing {
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
    // On a narrow terminal the names of rules matter more than the last columns.
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

/// A cell of a table. Columns from `first` on are numbers, and aligned to the right.
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
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::cli::top::model::FeedEvent;
    use crate::metrics::{Denial, RateView, Requests, StoreView, TopKey};

    fn screen(width: u16, height: u16, model: &TopModel) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content().chunks(usize::from(width));
        rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>() + "\n").collect()
    }

    fn view(at_ms: u64, count: u64) -> View {
        let top = |key: &str| TopKeys {
            seconds: 60,
            total: 1_000,
            keys: vec![TopKey { rule: "login".to_owned(), key: vec![key.to_owned()], count: 600, ..TopKey::default() }],
        };
        View {
            at_ms,
            generation: 3,
            requests: Requests { allowed: 10_000 * count, denied: 2_500 * count, refused: 0 },
            rules: vec![RuleView {
                rule: "login".to_owned(),
                mode: Some(Mode::Enforce),
                allowed: 10_000 * count,
                denied: 2_500 * count,
                ..RuleView::default()
            }],
            rules_known: 1,
            store: StoreView {
                kind: "memory".to_owned(),
                healthy: true,
                keys: Some((12, 1 << 24)),
                ..StoreView::default()
            },
            traffic: top("203.0.113.7"),
            denied: top("203.0.113.8"),
            denials: vec![Denial {
                number: 1,
                at_ms: 3_723_000,
                rule: "login".to_owned(),
                mode: Mode::Enforce,
                key: vec!["203.0.113.9\u{1b}[31m".to_owned()],
                retry_after_ms: Some(1_500),
                without_store: false,
            }],
            ..View::default()
        }
    }

    fn live() -> TopModel {
        let mut model = TopModel::new("http://127.0.0.1:9600");
        model.learn(FeedEvent::View(Box::new(view(1_000, 1))));
        model.learn(FeedEvent::View(Box::new(view(2_000, 2))));
        model
    }

    #[test]
    fn all_there_is_to_see_fits_on_a_small_terminal() {
        let screen = screen(80, 24, &live());
        for text in [
            "http://127.0.0.1:9600  live",
            "12.5k/s allowed 10.0k/s  denied 2500/s",
            "dropped 20.0 %",
            "generation 3   store: memory healthy   keys 12 of 16.8M",
            "login",
            "enforce",
            "203.0.113.7",
            "203.0.113.8",
            "01:02:03 login denied 203.0.113.9",
            "again in 1.5s",
            "q quit   p pause   s sort rules (by denied)",
        ] {
            assert!(screen.contains(text), "{text} is not in\n{screen}");
        }
        assert!(!screen.contains('\u{1b}'));
    }

    #[test]
    fn stale_data_is_marked() {
        let mut model = live();
        model.learn(FeedEvent::Lost("connection refused".to_owned()));
        let screen = screen(100, 24, &model);
        assert!(screen.contains("NO CONNECTION, retrying: connection refused"), "{screen}");
        assert!(!screen.contains("live"));
        assert!(screen.contains("allowed 0/s"), "{screen}");
        assert!(screen.contains("203.0.113.7"));
    }

    #[test]
    fn a_narrow_terminal_keeps_the_names_of_rules() {
        let screen = screen(40, 24, &live());
        assert!(screen.contains("login") && screen.contains("denied/s"), "{screen}");
        assert!(!screen.contains("drop %"), "{screen}");
    }

    #[test]
    fn a_paused_screen_stays_as_it_is() {
        let mut model = live();
        model.pause(true);
        let paused = screen(80, 24, &model);
        assert!(paused.contains("paused") && paused.contains("p resume"), "{paused}");
        model.learn(FeedEvent::View(Box::new(view(3_000, 30))));
        assert_eq!(screen(80, 24, &model), paused);
        model.pause(false);
        model.learn(FeedEvent::View(Box::new(view(4_000, 31))));
        assert!(screen(80, 24, &model).contains("live"));
    }

    #[test]
    fn any_size_can_be_drawn() {
        for model in [TopModel::new("http://a"), live()] {
            for (width, height) in [(1, 1), (10, 3), (80, 8), (300, 100)] {
                screen(width, height, &model);
            }
        }
    }

    #[test]
    fn requests_that_share_a_limit_for_want_of_a_key_are_shown() {
        let mut model = live();
        let mut view = view(3_000, 3);
        view.rules[0].without_key = 12_345;
        model.learn(FeedEvent::View(Box::new(view)));
        assert!(screen(100, 24, &model).contains("login (12.3k without key)"));
    }

    #[test]
    fn leases_and_hot_keys_of_a_redis_store_are_shown() {
        let of_redis = |at_ms, count: u64| {
            let tier = TierView {
                by_redis: 10 * count,
                by_memory: 40 * count,
                by_lease: 950 * count,
                lease_calls: 2 * count,
                keys_held: 3,
                cost_held: 240,
            };
            let key = |name: &str, hot| TopKey {
                rule: "login".to_owned(),
                key: vec![name.to_owned()],
                count: 120,
                hot,
                ..TopKey::default()
            };
            let keys = vec![key("hot.test", true), key("b", false)];
            let store_keys = Some(TopKeys { seconds: 10, total: 1_000, keys });
            let store = StoreView { kind: "redis".to_owned(), healthy: true, tier: Some(tier), ..StoreView::default() };
            View { store, store_keys, ..view(at_ms, count) }
        };
        let mut model = TopModel::new("http://127.0.0.1:9600");
        model.learn(FeedEvent::View(Box::new(of_redis(1_000, 1))));
        model.learn(FeedEvent::View(Box::new(of_redis(2_000, 2))));
        let first = screen(100, 24, &model);
        let line = "leases 95.0 %  cache 4.0 %  0.012 Redis calls a decision  240 held  1 HOT";
        assert!(screen(80, 24, &model).contains(line), "{first}");
        assert!(first.contains("top keys by denials") && first.contains("k keys by calls to Redis"), "{first}");
        model.rank_by_next();
        let second = screen(100, 24, &model);
        assert!(second.contains("top keys by calls to Redis, last 10 s") && second.contains("hot.test"), "{second}");
        model.rank_by_next();
        assert_eq!(screen(100, 24, &model), first);
        // A store in memory is not called.
        let mut model = live();
        model.rank_by_next();
        assert!(screen(100, 24, &model).contains("top keys by denials"));
    }

    #[test]
    fn the_shares_of_a_region_are_shown() {
        let share = |rule: &str, share: &str, demand| OwnShare {
            rule: rule.to_owned(),
            share: share.to_owned(),
            demand,
            ..OwnShare::default()
        };
        let outgoing = OutgoingShare { to: "us".to_owned(), rule: "quota".to_owned(), share: "10%".to_owned() };
        let mut own = OwnRegion {
            region: "eu".to_owned(),
            confirmed: true,
            version: Some(3),
            shares: vec![share("", "60%", 1_500), share("quota", "80%", 0)],
            outgoing: vec![outgoing],
        };
        let mut model = live();
        model.learn(FeedEvent::View(Box::new(View { region: Some(own.clone()), ..view(3_000, 3) })));
        let shown = screen(100, 24, &model);
        assert!(shown.contains("region eu  60% for 1500/s  quota 80% for 0/s  10% of quota parked for us"), "{shown}");
        own.confirmed = false;
        model.learn(FeedEvent::View(Box::new(View { region: Some(own), ..view(4_000, 4) })));
        assert!(screen(100, 24, &model).contains("region eu  UNCONFIRMED, at the floor"));
    }

    #[test]
    fn a_rate_that_adapts_is_shown() {
        let mut model = live();
        let mut view = view(3_000, 3);
        let [present, lowest, highest] = ["550/s", "100/s", "1000/s"].map(str::to_owned);
        view.rules[0].rate = Some(RateView { present, lowest, highest });
        model.learn(FeedEvent::View(Box::new(view)));
        assert!(screen(100, 24, &model).contains("login at 550/s of 1000/s"));
    }

    #[test]
    fn a_kill_switch_is_hard_to_overlook() {
        let mut model = live();
        model.learn(FeedEvent::View(Box::new(View { all: Some(Mode::Off), ..view(3_000, 3) })));
        assert!(screen(100, 24, &model).contains("all rules switched to off"));
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.5, 7.0, 99.9, 1_234.0, 12_345.0, 4_000_000.0, 5e9].map(short);
        assert_eq!(shown, ["0", "0.5", "7", "99.9", "1234", "12.3k", "4.0M", "5.0G"]);
    }
}
