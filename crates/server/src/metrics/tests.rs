use std::net::{IpAddr, Ipv4Addr};

use tidegate_core::{ManualClock, MemoryStore, Micros};
use tidegate_rules::{Limiter, Request, RuleSet};

use super::*;
use crate::engine::Engine;

fn rules(text: &str) -> RuleSet {
    RuleSet::parse("test", text).unwrap_or_else(|findings| panic!("{findings}")).rules
}

fn engine(text: &str) -> (Arc<Engine>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let limiter = Limiter::new(rules(text), MemoryStore::new().into());
    (Arc::new(Engine::with_metrics(limiter, Metrics::with_clock(Arc::new(clock.clone())))), clock)
}

fn from(number: u32) -> Request {
    Request::new("GET", "/").address(IpAddr::V4(Ipv4Addr::from_bits(number)))
}

fn value(engine: &Arc<Engine>, series: &str) -> Option<u64> {
    let text = exposition(engine.metrics(), engine.limiter(), Format::Text);
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

const TWO: &str = "
rules:
- { id: per-address, key: address, limit: 2/day }
- { id: dark, key: address, limit: 1/day, mode: shadow }
";

#[test]
fn every_decision_is_counted_by_rule_mode_and_outcome() {
    let (engine, _) = engine(TWO);
    for _ in 0..5 {
        engine.check(&from(1)).now().unwrap();
    }
    for (series, count) in [
        (r#"tidegate_requests_total{outcome="allowed"}"#, 2),
        (r#"tidegate_requests_total{outcome="denied"}"#, 3),
        (r#"tidegate_decisions_total{rule="per-address",mode="enforce",outcome="allowed"}"#, 2),
        (r#"tidegate_decisions_total{rule="per-address",mode="enforce",outcome="denied"}"#, 3),
        (r#"tidegate_decisions_total{rule="dark",mode="shadow",outcome="allowed"}"#, 1),
        (r#"tidegate_decisions_total{rule="dark",mode="shadow",outcome="denied"}"#, 4),
        ("tidegate_decide_duration_seconds_count", 5),
        ("tidegate_memory_keys", 2),
        ("tidegate_rules_generation", 1),
        ("tidegate_store_up", 1),
    ] {
        assert_eq!(
            value(&engine, series),
            Some(count),
            "{series}\n{}",
            exposition(engine.metrics(), engine.limiter(), Format::Text)
        );
    }
}

#[test]
fn costs_of_admitted_requests_are_counted_by_limit() {
    let (engine, _) = engine(
        "rules:
- { id: tokens, key: address, limit: fixed 100/day, cost: hits }
- { id: calls, key: address, limit: 9/day }
- { id: dark, key: address, limit: fixed 50/day, cost: hits, mode: shadow }",
    );
    let refused = "tidegate_decisions_total{rule=\"tokens\",mode=\"enforce\",outcome=\"too_large\"}";
    // The third request does not fit, and the last one exceeds the limit by itself.
    for hits in [40, 30, 40, 30, 101] {
        engine.check(&from(1).hits(hits)).now().unwrap();
    }
    assert_eq!(value(&engine, refused), Some(1));
    for (rule, cost) in [("tokens", 100), ("calls", 3), ("dark", 40)] {
        assert_eq!(value(&engine, &format!("tidegate_cost_admitted_total{{rule=\"{rule}\"}}")), Some(cost), "{rule}");
    }
}

#[tokio::test]
async fn costs_that_a_receipt_settles_are_counted_under_limits_that_exist() {
    let (engine, _) = engine(
        "rules: [{ id: tokens, limit: fixed 100/day, cost: hits }, { id: slots, limit: concurrent 5 ttl 1min }]",
    );
    let mut ruling = engine.reserve(&from(1).hits(40), Micros::from_secs(60)).await;
    let mut receipt = ruling.receipts.pop().unwrap();
    let mut forged = receipt.unaliased().find(|held| held.rule.as_str() == "tokens").unwrap().clone();
    forged.rule = RuleId::new("made-up");
    receipt.held.push(forged);
    engine.settle(&receipt, &[25, 25, 25]).await.unwrap();
    // A second settlement of the same receipt has no effect.
    engine.settle(&receipt, &[25, 25, 25]).await.unwrap();
    for (name, cost) in [("admitted", 40), ("reserved", 40), ("settled", 25), ("refunded", 15), ("unsettled", 0)] {
        assert_eq!(value(&engine, &format!("tidegate_cost_{name}_total{{rule=\"tokens\"}}")), Some(cost), "{name}");
    }
    let text = exposition(engine.metrics(), engine.limiter(), Format::Text);
    assert!(!text.contains("made-up") && !text.contains("tidegate_cost_settled_total{rule=\"slots\"}"), "{text}");
}

#[test]
fn a_flood_of_keys_adds_no_series_and_the_heavy_ones_are_still_found() {
    let (engine, _) = engine(TWO);
    let series = || exposition(engine.metrics(), engine.limiter(), Format::Text).lines().count();
    engine.check(&from(0)).now().unwrap();
    for _ in 0..5 {
        engine.check(&from(0)).now().unwrap();
    }
    let before = series();
    for number in 1..=100_000 {
        engine.check(&from(number)).now().unwrap();
        // Every tenth request comes from one client.
        if number % 10 == 0 {
            engine.check(&from(7)).now().unwrap();
        }
    }
    assert_eq!(series(), before);
    let traffic = engine.metrics().top_keys(Ranking::Traffic, 1_000);
    assert!(traffic.keys.len() <= 512, "{}", traffic.keys.len());
    assert!(traffic.keys[..2].iter().all(|top| top.key == ["0.0.0.7"]), "{:?}", &traffic.keys[..4]);
    let denials = engine.metrics().top_keys(Ranking::Denials, 2);
    assert!(denials.keys.iter().all(|top| top.key == ["0.0.0.7"]), "{denials:?}");
}

#[test]
fn series_of_rules_that_are_gone_go_too() {
    let (engine, _) = engine(TWO);
    engine.check(&from(1)).now().unwrap();
    engine.metrics().tick(&engine.limiter().rules());
    let dark = r#"tidegate_decisions_total{rule="dark",mode="shadow",outcome="allowed"}"#;
    assert_eq!(value(&engine, dark), Some(1));
    engine.limiter().replace(rules("rules: [{ id: per-address, key: address, limit: 2/day }]"));
    engine.metrics().tick(&engine.limiter().rules());
    assert_eq!(value(&engine, dark), None);
    let kept = r#"tidegate_decisions_total{rule="per-address",mode="enforce",outcome="allowed"}"#;
    assert_eq!(value(&engine, kept), Some(1));
}

#[test]
fn names_from_clients_cannot_break_out_of_their_quotes() {
    let (engine, _) = engine(TWO);
    engine.metrics().count_descriptor("d.a_\"} 1\nforged_total 7\\", true, DescriptorOutcome::Over, 1);
    let text = exposition(engine.metrics(), engine.limiter(), Format::Text);
    assert!(
        text.contains(r#"tidegate_descriptors_total{descriptor="d.a_\"} 1\nforged_total 7\\",outcome="over"} 1"#),
        "{text}"
    );
    assert!(!text.lines().any(|line| line.starts_with("forged_total")));
}

#[test]
fn secrets_do_not_reach_top_keys_or_denials() {
    let (engine, _) = engine("rules: [{ id: keyed, key: api_key, limit: 1/day }]");
    for _ in 0..3 {
        engine.check(&Request::new("GET", "/").api_key("hunter2-hunter2")).now().unwrap();
    }
    let top = engine.metrics().top_keys(Ranking::Denials, 5);
    let denials = engine.metrics().denials_after(0);
    assert_eq!((top.keys[0].count, denials.len()), (2, 1));
    assert!(top.keys[0].key[0].starts_with('#') && top.keys[0].key == denials[0].key);
    assert!(!format!("{top:?} {denials:?}").contains("hunter2"));
}

#[test]
fn the_first_denial_of_each_epoch_is_inspected() {
    let (engine, clock) = engine("rules: [{ id: api, key: address, limit: 1/day }]");
    clock.advance(Micros::from_secs(90));
    for number in [1, 1, 1, 2, 2, 2] {
        engine.check(&from(number)).now().unwrap();
    }
    engine.metrics().tick(&engine.limiter().rules());
    engine.check(&from(2)).now().unwrap();
    let denials = engine.metrics().denials_after(0);
    let told: Vec<_> = denials.iter().map(|denial| (denial.number, denial.at_ms, denial.key[0].as_str())).collect();
    assert_eq!(told, [(1, 90_000, "0.0.0.1"), (2, 90_000, "0.0.0.2")]);
    assert_eq!(engine.metrics().denials_after(1).len(), 1);
}

#[test]
fn keys_that_no_longer_come_are_forgotten() {
    let (engine, clock) = engine(TWO);
    engine.check(&from(1)).now().unwrap();
    for _ in 0..2 {
        assert_eq!(engine.metrics().top_keys(Ranking::Traffic, 9).keys.len(), 2);
        clock.advance(Micros::from_secs(61));
        engine.metrics().tick(&engine.limiter().rules());
    }
    assert_eq!(engine.metrics().top_keys(Ranking::Traffic, 9).keys, []);
}

#[test]
fn connections_count_while_they_are_open() {
    let (engine, _) = engine(TWO);
    let one = engine.metrics().connection(ListenerKind::Resp);
    let other = engine.metrics().connection(ListenerKind::Resp);
    drop(one);
    assert_eq!(value(&engine, r#"tidegate_connections{listener="resp"}"#), Some(1));
    assert_eq!(value(&engine, r#"tidegate_connections_accepted_total{listener="resp"}"#), Some(2));
    drop(other);
    assert_eq!(value(&engine, r#"tidegate_connections{listener="resp"}"#), Some(0));
}

#[test]
fn reloads_are_counted_by_result() {
    let (engine, clock) = engine(TWO);
    clock.advance(Micros::from_secs(5));
    engine.metrics().reloaded(None);
    engine.metrics().reloaded(Some("`5/parsec` is not a limit".to_owned()));
    assert_eq!(value(&engine, r#"tidegate_rules_reloads_total{result="failure"}"#), Some(1));
    assert_eq!(value(&engine, "tidegate_rules_last_reload_successful"), Some(0));
    assert_eq!(value(&engine, "tidegate_rules_last_reload_timestamp_seconds"), Some(5));
}
