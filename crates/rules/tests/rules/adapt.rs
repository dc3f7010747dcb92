//! `adapt`: adaptive rates.

use std::sync::Arc;

use tidegate_core::adaptive::ServiceOutcome;
use tidegate_core::store::now_or_never;
use tidegate_core::{Clock, ManualClock, MemoryStore, Micros, Timestamp};
use tidegate_rules::{AdaptiveRate, Limiter, Mode, RuleSet, Ruling};

use crate::rules::support::{charges, get, mistakes, rules};

const RULES: &str = "
rules:
  - id: api
    limit: 1000/s burst 100
    adapt: { between: 100/s..1000/s, by: aimd, on: [latency > 200ms, errors > 5%] }
";

/// A limiter, and the rates of other nodes that use its store.
struct Fleet {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>, ManualClock>,
    others: Vec<RuleSet>,
}

impl Fleet {
    fn new(nodes: usize, text: &str) -> Fleet {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let store = MemoryStore::with_clock(clock.clone());
        let limiter = Limiter::with_clock(rules(text), store, clock.clone());
        let fleet = Fleet { clock, limiter, others: (1..nodes).map(|_| rules(text)).collect() };
        fleet.adapt();
        fleet
    }

    /// The rate at each node.
    fn nodes(&self) -> Vec<Arc<AdaptiveRate>> {
        let own = self.limiter.rules().rules.clone();
        let rate = |rules: &RuleSet| Arc::clone(rules.adaptive_rates().next().unwrap());
        std::iter::once(&own).chain(&self.others).map(rate).collect()
    }

    fn adapt(&self) {
        for rate in self.nodes() {
            if let Some(health) = rate.window().close(self.clock.now()) {
                now_or_never(self.limiter.move_rate(&rate, health)).unwrap();
            }
        }
    }

    /// Completes 20 requests of this duration at one node.
    fn serve(&self, node: usize, millis: u64, outcome: ServiceOutcome) {
        let rate = &self.nodes()[node];
        for _ in 0..20 {
            rate.window().begin();
            rate.window().end(Micros::from_millis(millis), outcome);
        }
    }

    /// Does the same, then advances by a second, after which every node adapts.
    fn second(&self, node: usize, millis: u64, outcome: ServiceOutcome) {
        self.serve(node, millis, outcome);
        self.clock.advance(Micros::from_secs(1));
        self.adapt();
    }

    fn rates(&self) -> Vec<u64> {
        self.nodes().iter().map(|rate| rate.tokens()).collect()
    }

    fn check(&self) -> Ruling<'static> {
        self.limiter.check(&get("/")).now().unwrap()
    }
}

#[test]
fn requests_are_held_to_the_present_rate_and_keep_their_spending() {
    let fleet = Fleet::new(1, RULES);
    for _ in 0..80 {
        assert!(fleet.check().is_allowed());
    }
    fleet.second(0, 500, ServiceOutcome::Answered);
    let ruling = fleet.check();
    assert_eq!((ruling.ruled[0].decision.limit, ruling.is_allowed()), (64, true), "640/s burst 64");
    fleet.clock.advance(Micros::from_millis(999));
    while fleet.check().is_allowed() {}
    // The spending of 64 remains under the lower limit, which is 415/s burst 41.
    fleet.serve(0, 500, ServiceOutcome::Answered);
    fleet.clock.advance(Micros::from_millis(1));
    fleet.adapt();
    assert_eq!(fleet.rates(), [415]);
    fleet.clock.advance(Micros::from_millis(20));
    assert!(!fleet.check().is_allowed(), "13 of 64 have come back, and 41 may be owed");
    fleet.clock.advance(Micros::from_millis(40));
    assert!(fleet.check().is_allowed());
    let explained = serde_json::to_string(&fleet.limiter.rules().rules.explain(&get("/"))).unwrap();
    assert!(explained.contains("415/s burst 41"), "{explained}");
    assert!(explained.contains("100/s..1000/s by aimd, down 30% on latency > 200ms or errors > 5%"), "{explained}");
}

#[test]
fn a_fleet_has_one_rate_which_falls_once_in_an_interval() {
    let fleet = Fleet::new(3, RULES);
    fleet.second(1, 500, ServiceOutcome::Answered);
    // The first node had adapted before the second one reported the overload.
    assert_eq!(fleet.rates(), [1_000, 640, 640]);
    // All nodes observe the overload, but the rate falls only once.
    fleet.serve(0, 500, ServiceOutcome::Answered);
    fleet.serve(2, 500, ServiceOutcome::Answered);
    fleet.second(1, 500, ServiceOutcome::Answered);
    assert_eq!(fleet.rates(), [415, 415, 415]);
    fleet.second(0, 10, ServiceOutcome::Answered);
    fleet.second(0, 10, ServiceOutcome::Answered);
    assert_eq!(fleet.rates(), [505, 505, 505]);
}

#[test]
fn a_reload_keeps_the_rate() {
    let fleet = Fleet::new(1, RULES);
    let limiter = &fleet.limiter;
    fleet.second(0, 500, ServiceOutcome::Answered);
    limiter.replace(rules(&RULES.replace("limit: 1000/s burst 100", "limit: 1000/s burst 10")));
    assert_eq!(fleet.rates()[0], 640);
    assert_eq!(charges(&limiter.rules().rules, &get("/")), ["api: 1 of 640/s burst 6"]);
    limiter.replace(rules(&RULES.replace("1000/s", "500/s")));
    assert_eq!(fleet.rates()[0], 500, "not above the new upper bound");
    limiter.switch(|switches| switches.switch("api", Some(Mode::Shadow)));
    assert_eq!(fleet.rates()[0], 500);
}

#[test]
fn in_shadow_mode_the_rate_moves_and_nothing_is_denied() {
    let fleet = Fleet::new(1, &RULES.replace("limit:", "mode: shadow\n    limit:"));
    for _ in 0..10 {
        fleet.second(0, 500, ServiceOutcome::Answered);
    }
    assert_eq!(fleet.rates(), [100]);
    let rulings: Vec<_> = (0..50).map(|_| fleet.check()).collect();
    assert!(rulings.iter().all(Ruling::is_allowed));
    assert!(rulings.iter().any(|ruling| !ruling.ruled[0].decision.is_allowed()), "it would have denied some");
}

#[test]
fn every_limit_with_a_rate_can_adapt() {
    for (limit, lowest) in [
        ("", "api: 1 of 10/min"),
        ("limit: 100/min burst 20,", "api: 1 of 10/min burst 2"),
        ("limit: gcra 100/min,", "api: 1 of gcra 10/min"),
        ("limit: shaper 100/min queue 50,", "api: 1 of shaper 10/min queue 5"),
        ("limit: sliding 100/min,", "api: 1 of sliding 10/min"),
        ("limit: log 100/min,", "api: 1 of log 10/min"),
        ("limit: fixed 100/min,", "api: 1 of fixed 10/min"),
    ] {
        let text = format!("rules: [{{ id: api, {limit} adapt: {{ between: 10/min..100/min, on: errors > 5% }} }}]");
        let fleet = Fleet::new(1, &text);
        for _ in 0..20 {
            fleet.second(0, 1, ServiceOutcome::Failed);
        }
        assert_eq!(charges(&fleet.limiter.rules().rules, &get("/")), [lowest]);
    }
}

#[test]
fn the_rate_rises_by_exactly_the_increase_that_the_rule_says() {
    // For a range of 900: 270, 540, 810, and the rest.
    let fleet = Fleet::new(1, &RULES.replace("by: aimd", "increase: 30%, decrease: 90%"));
    fleet.second(0, 500, ServiceOutcome::Answered);
    let rates: Vec<u64> = (0..6).map(|_| (fleet.rates()[0], fleet.second(0, 10, ServiceOutcome::Answered)).0).collect();
    // A decrease also takes the step that the next second adds.
    assert_eq!(rates, [100, 100, 370, 640, 910, 1_000]);
    let shown = serde_json::to_string(&fleet.limiter.rules().rules.explain(&get("/"))).unwrap();
    assert!(shown.contains("up 30% of the range every 1s"), "{shown}");
}

#[test]
fn rules_show_the_present_limit() {
    let fleet = Fleet::new(1, RULES);
    fleet.second(0, 500, ServiceOutcome::Answered);
    let rules: RuleSet = fleet.limiter.rules().rules.clone();
    let shown = serde_json::to_value(rules.shown().next().unwrap()).unwrap();
    assert_eq!(shown["limits"].as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(shown["limits"][0]["limit"], "640/s burst 64");
    assert_eq!(shown["adaptive"]["present"], "640/s");
    assert_eq!(shown["adaptive"]["highest"], "1000/s");
}

#[test]
fn mistakes_are_told_with_what_to_write() {
    for (rule, told) in [
        ("adapt: { on: errors > 5% }", "`adapt` without `between`"),
        ("adapt: { between: 1/s..5/s }", "`adapt` without `on`"),
        ("adapt: { between: 5/s, on: errors > 5% }", "which is not a range of two rates"),
        ("adapt: { between: 1/s burst 5..5/s, on: errors > 5% }", "which is not a range of two rates"),
        ("adapt: { between: fixed 1/s..5/s, on: errors > 5% }", "which is not a range of two rates"),
        (
            "adapt: { between: 5/s..5/s, on: errors > 5% }",
            "which is not a lower and a higher rate with the same period",
        ),
        (
            "adapt: { between: 1/s..5/min, on: errors > 5% }",
            "which is not a lower and a higher rate with the same period",
        ),
        ("adapt: { between: 0/s..5/s, on: errors > 5% }", "between"),
        ("adapt: { between: 1/s..5/s, on: [] }", "`on` has 0 signals"),
        ("adapt: { between: 1/s..5/s, on: latency > 5% }", "`latency > 5%` is not a signal of overload"),
        ("adapt: { between: 1/s..5/s, on: load > 5 }", "write `latency > 200ms`"),
        ("adapt: { between: 1/s..5/s, on: errors > 5%, by: vegas }", "`by`"),
        ("adapt: { between: 1/s..5/s, on: errors > 5%, every: 1ms }", "`every` cannot be"),
        ("adapt: { between: 1/s..5/s, on: errors > 5%, increase: 1% }", "write a share from `2%` to `100%`"),
        ("adapt: { between: 1/s..5/s, on: errors > 5%, decrease: 95% }", "write a share from `1%` to `90%`"),
        ("limit: 7/s, adapt: { between: 1/s..5/s, on: errors > 5% }", "`adapt` ends at another rate"),
        ("limit: concurrent 5 ttl 1s, adapt: { between: 1/s..5/s, on: errors > 5% }", "which has no rate"),
        ("limit: unlimited, adapt: { between: 1/s..5/s, on: errors > 5% }", "requires exactly one limit"),
        ("limits: [5/s, 9/min], adapt: { between: 1/s..5/s, on: errors > 5% }", "`adapt` and `limits` in one rule"),
        ("tiers: { a: 5/s }, adapt: { between: 1/s..5/s, on: errors > 5% }", "`adapt` and `tiers` in one rule"),
        ("cost: 3, adapt: { between: 1/s..5/s, on: errors > 5% }", "3"),
    ] {
        let said = mistakes(&format!("rules: [{{ id: r, {rule} }}]"));
        assert!(format!("{said:?}").contains(told), "{rule}: {said:?}");
    }
}
