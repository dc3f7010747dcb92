//! The cost of counting: a decision by the engine, which counts it, compared with the same decision by the limiter
//! alone.
//!
//! One thread, state in memory, a thousand keys in turn. Every decision is allowed; with `denied`, every one but the
//! first of each key is denied. Metrics tick as often as on a server that decides a million requests a second.

use std::hint::black_box;
use std::time::Instant;

use tidegate::engine::Engine;
use tidegate_core::{Key, MemoryStore, RuleId};
use tidegate_rules::{InlineLimit, Limiter, OnStoreFailure, Request, RuleSet};

const DECISIONS: usize = 1_000_000;
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:<28}{:>12}{:>12}{:>12}", "ns a decision", "alone", "counted", "counting");
    for (name, text) in [("by a rule, allowed", "1000000/s"), ("by a rule, denied", "1/year")] {
        let rules = format!("rules: [{{ id: api, key: user, limit: {text} }}]");
        let rules = RuleSet::parse("rules.yaml", &rules).map_err(|findings| findings.to_string())?.rules;
        let engine = Engine::new(Limiter::new(rules, MemoryStore::new().into()));
        let requests: Vec<Request> =
            (0..1_000).map(|number| Request::new("GET", "/").user(&format!("user-{number}"))).collect();
        compare(
            name,
            &engine,
            |number| engine.limiter().check(&requests[number % 1_000]).now().is_some_and(|ruling| ruling.is_allowed()),
            |number| engine.check(&requests[number % 1_000]).now().is_some_and(|ruling| ruling.is_allowed()),
        );
    }
    for (name, text) in [("brought along, allowed", "gcra 1000000/s"), ("brought along, denied", "gcra 1/year")] {
        let limit = InlineLimit::new(RuleId::new("throttle"), text.parse()?, OnStoreFailure::default());
        let engine = Engine::new(Limiter::new(RuleSet::default(), MemoryStore::new().into()));
        let keys: Vec<String> = (0..1_000).map(|number| format!("user-{number}")).collect();
        let key = |number: usize| Key::from(&keys[number % 1_000]);
        compare(
            name,
            &engine,
            |number| {
                engine
                    .limiter()
                    .charge(&limit, &key(number), 1)
                    .now()
                    .is_some_and(|(decision, _)| decision.is_allowed())
            },
            |number| engine.charge(&limit, &key(number), 1).now().is_some_and(|(decision, _)| decision.is_allowed()),
        );
    }
    Ok(())
}

/// The best of several rounds of each, in turn.
fn compare(name: &str, engine: &Engine, alone: impl Fn(usize) -> bool, counted: impl Fn(usize) -> bool) {
    let (mut of_alone, mut of_counted) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        of_alone = of_alone.min(nanos(&alone));
        engine.metrics().tick(&engine.limiter().rules());
        of_counted = of_counted.min(nanos(&counted));
    }
    println!("{name:<28}{of_alone:>12.1}{of_counted:>12.1}{:>12.1}", of_counted - of_alone);
}

fn nanos(decide: &impl Fn(usize) -> bool) -> f64 {
    let begun = Instant::now();
    let allowed = (0..DECISIONS).filter(|&number| black_box(decide(number))).count();
    let took = begun.elapsed();
    assert!(
        allowed == DECISIONS || allowed <= 1_000,
        "{allowed} of {DECISIONS} are neither all nor the first of each key"
    );
    took.as_nanos() as f64 / DECISIONS as f64
}
