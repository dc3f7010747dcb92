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
    // A store in memory has no ranking by calls.
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
    let outgoing = OutgoingShare { number: 1, to: "us".to_owned(), rule: "quota".to_owned(), share: "10%".to_owned() };
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
