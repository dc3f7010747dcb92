//! Decisions on requests that consist of descriptors.

use tidegate_core::store::now_or_never;
use tidegate_core::{ManualClock, MemoryStore, Micros, Timestamp};
use tidegate_rules::envoy::{PerUnit, RateUnit};
use tidegate_rules::{
    Charging, DescriptorRequest, DescriptorsRuling, DomainTerms, Generation, Hits, Limiter, Mode, RuleSet,
};

use super::entries;

const EDGE: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 5, name: each_user } }
  - { key: tenant, rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: dark, rate_limit: { unit: hour, requests_per_unit: 1 }, shadow_mode: true }
  - { key: quota, rate_limit: { unit: hour, requests_per_unit: 1 }, quota_mode: true }
  - { key: free }
  - { key: open, rate_limit: { unlimited: true } }
  - { key: none, rate_limit: { unit: second, requests_per_unit: 0 } }
  - { key: vip, rate_limit: { unit: minute, requests_per_unit: 2, replaces: [{ name: each_user }] } }
  - { key: bucket, rate_limit: { unit: second, requests_per_unit: 1, algorithm: token-bucket, burst: 4 } }
";

struct Stage {
    limiter: Limiter<MemoryStore<ManualClock>>,
    clock: ManualClock,
    terms: DomainTerms,
}

fn finish<A: IntoFuture>(answer: A) -> A::Output {
    now_or_never(answer).expect("a store in memory never waits")
}

impl Stage {
    fn new(charging: Charging) -> Stage {
        Stage::of(EDGE, charging)
    }

    fn of(text: &str, charging: Charging) -> Stage {
        let rules = RuleSet::parse("limits.yaml", text).unwrap_or_else(|findings| panic!("{findings}")).rules;
        // Ten seconds into a minute, which is ten minutes and ten seconds into an hour.
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_400 + 10));
        let limiter = Limiter::new(rules, MemoryStore::with_clock(clock.clone()));
        Stage { limiter, clock, terms: DomainTerms { charging, ..DomainTerms::default() } }
    }

    /// Decides descriptors such as `user=alice`, and displays the result in one line.
    fn ask(&self, descriptors: &[&str]) -> String {
        let hits: Vec<_> = descriptors.iter().map(|asked| (*asked, Hits::ONE)).collect();
        self.ask_hits(&hits)
    }

    fn ask_hits(&self, descriptors: &[(&str, Hits)]) -> String {
        self.ask_all(descriptors.iter().map(|(asked, hits)| (*asked, *hits, None)).collect())
    }

    fn ask_all(&self, descriptors: Vec<(&str, Hits, Option<PerUnit>)>) -> String {
        let parsed: Vec<_> = descriptors.iter().map(|(asked, _, _)| entries(asked)).collect();
        let asked = parsed.iter().zip(&descriptors);
        let asked: Vec<_> = asked
            .map(|(entries, (_, hits, limit))| DescriptorRequest { entries, hits: *hits, limit: *limit })
            .collect();
        let generation: std::sync::Arc<Generation> = self.limiter.rules();
        let domain = generation.rules.domain("d").unwrap();
        told(&finish(self.limiter.check_descriptors(&generation, domain, &asked, &self.terms)))
    }
}

/// `yes` or `no`, and for each descriptor `ok` or `over`, with the remaining quota and the limit.
fn told(decided: &DescriptorsRuling<'_, '_>) -> String {
    let mut text = if decided.ruling.is_allowed() { "yes" } else { "no" }.to_owned();
    for descriptor in &decided.descriptors {
        text.push_str(if descriptor.is_over { ", over" } else { ", ok" });
        if let Some(ruled) = decided.binding(descriptor) {
            text.push_str(&format!(" {}/{}", ruled.decision.remaining, ruled.decision.limit));
        }
    }
    text
}

#[test]
fn every_descriptor_has_its_answer_in_order() {
    let stage = Stage::new(Charging::Together);
    assert_eq!(
        stage.ask(&["nothing=1", "user=alice", "free=1", "open=1", "tenant=a", "user=alice more=1"]),
        "yes, ok, ok 4/5, ok, ok, ok 2/3, ok"
    );
}

#[test]
fn a_denied_request_charges_no_other_descriptor() {
    let stage = Stage::new(Charging::Together);
    for left in (0..3).rev() {
        assert_eq!(stage.ask(&["tenant=a"]), format!("yes, ok {left}/3"));
    }
    for _ in 0..10 {
        assert_eq!(stage.ask(&["user=alice", "tenant=a", "dark=1", "quota=1"]), "no, ok 5/5, over 0/3, ok 0/1, ok 0/1");
    }
    assert_eq!(stage.ask(&["user=alice", "dark=1", "quota=1"]), "yes, ok 4/5, ok 0/1, ok 0/1");
}

#[test]
fn as_the_original_charges_every_descriptor_pays_whatever_becomes_of_the_others() {
    let stage = Stage::new(Charging::Always);
    for left in (0..3).rev() {
        assert_eq!(stage.ask(&["tenant=a"]), format!("yes, ok {left}/3"));
    }
    for left in (0..5).rev() {
        assert_eq!(stage.ask(&["user=alice", "tenant=a"]), format!("no, ok {left}/5, over 0/3"));
    }
    assert_eq!(stage.ask(&["user=alice", "tenant=b"]), "no, over 0/5, ok 2/3");
}

#[test]
fn as_the_original_charges_what_is_denied_counts_too() {
    let five = Hits::of(5, false);
    let two = Hits::of(2, false);
    let together = Stage::new(Charging::Together);
    assert_eq!(together.ask_hits(&[("tenant=a", two)]), "yes, ok 1/3");
    assert_eq!(together.ask_hits(&[("tenant=a", two)]), "no, over 1/3");
    assert_eq!(together.ask_hits(&[("tenant=a", five)]), "no, over 1/3");
    assert_eq!(together.ask(&["tenant=a"]), "yes, ok 0/3");

    let always = Stage::new(Charging::Always);
    assert_eq!(always.ask_hits(&[("tenant=a", two)]), "yes, ok 1/3");
    assert_eq!(always.ask_hits(&[("tenant=a", two)]), "no, over 0/3", "what is left after it was charged");
    assert_eq!(always.ask(&["tenant=a"]), "no, over 0/3");
}

#[test]
fn a_denial_that_is_charged_tells_when_the_debt_is_paid() {
    let stage = Stage::new(Charging::Always);
    let ask = || {
        let entries = entries("bucket=1");
        let asked = [DescriptorRequest { entries: &entries, hits: Hits::of(3, false), limit: None }];
        let generation = stage.limiter.rules();
        let domain = generation.rules.domain("d").unwrap();
        let decided = finish(stage.limiter.check_descriptors(&generation, domain, &asked, &stage.terms));
        let decision = decided.ruling.ruled[0].decision;
        (decision.remaining, decision.retry_after().map(Micros::as_secs_ceil), decision.reset_after.as_secs_ceil())
    };
    assert_eq!(ask(), (1, None, 3));
    // Two are missing. Three more are charged, so five must recover.
    assert_eq!(ask(), (0, Some(5), 6));
    stage.clock.advance(Micros::from_secs(5));
    assert_eq!(ask(), (0, None, 4));
}

#[test]
fn everything_in_shadow_mode_denies_nobody_and_still_tells_who_is_over() {
    for charging in [Charging::Together, Charging::Always] {
        let stage = Stage::new(charging);
        stage.limiter.switch(|switches| switches.switch_all(Some(Mode::Shadow)));
        assert_eq!(stage.ask_hits(&[("tenant=a", Hits::of(3, false))]), "yes, ok 0/3");
        assert_eq!(stage.ask(&["tenant=a", "user=alice"]), "yes, over 0/3, ok 4/5");
        // A limit with shadow mode in its file reports as little as before.
        assert_eq!(stage.ask(&["dark=1"]), "yes, ok 0/1");
        assert_eq!(stage.ask(&["dark=1"]), "yes, ok 0/1");
        // A single switched descriptor behaves as if the file had that mode.
        stage.limiter.switch(|switches| {
            switches.switch_all(None);
            switches.switch("@d|tenant", Some(Mode::Shadow));
        });
        assert_eq!(stage.ask(&["tenant=a"]), "yes, ok 0/3");
    }
}

#[test]
fn a_check_takes_nothing_and_says_when_nothing_is_left() {
    for charging in [Charging::Together, Charging::Always] {
        let stage = Stage::new(charging);
        for _ in 0..10 {
            assert_eq!(stage.ask_hits(&[("tenant=a", Hits::Check)]), "yes, ok 3/3");
        }
        for left in (0..3).rev() {
            assert_eq!(stage.ask(&["tenant=a"]), format!("yes, ok {left}/3"));
        }
        assert_eq!(stage.ask_hits(&[("tenant=a", Hits::Check)]), "no, over 0/3");
    }
    let stage = Stage::new(Charging::Together);
    assert_eq!(stage.ask_hits(&[("tenant=a", Hits::of(3, false))]), "yes, ok 0/3");
    assert_eq!(stage.ask_hits(&[("user=alice", Hits::ONE), ("tenant=a", Hits::Check)]), "no, ok 5/5, over 0/3");
    assert_eq!(stage.ask_hits(&[("tenant=b", Hits::Check), ("user=alice", Hits::ONE)]), "yes, ok 3/3, ok 4/5");
}

#[test]
fn charges_can_be_refunded() {
    let stage = Stage::new(Charging::Together);
    assert_eq!(stage.ask_hits(&[("tenant=a", Hits::of(3, false))]), "yes, ok 0/3");
    assert_eq!(stage.ask_hits(&[("tenant=a", Hits::of(2, true))]), "yes, ok 2/3");
    assert_eq!(stage.ask_hits(&[("tenant=a", Hits::of(100, true))]), "yes, ok 3/3");
    assert_eq!(stage.ask_hits(&[("tenant=a", Hits::of(3, false))]), "yes, ok 0/3");
    // A denied request refunds nothing either.
    assert_eq!(stage.ask_hits(&[("none=1", Hits::ONE), ("tenant=a", Hits::of(1, true))]), "no, over 0/0, ok 0/3");
    assert_eq!(stage.ask(&["tenant=a"]), "no, over 0/3");
}

#[test]
fn shadows_and_quotas_never_deny_and_quotas_say_so() {
    let stage = Stage::new(Charging::Together);
    assert_eq!(stage.ask(&["dark=1", "quota=1"]), "yes, ok 0/1, ok 0/1");
    assert_eq!(stage.ask(&["dark=1", "quota=1"]), "yes, ok 0/1, over 0/1");
    assert_eq!(stage.ask(&["dark=1", "quota=1", "user=alice"]), "yes, ok 0/1, over 0/1, ok 4/5");
}

#[test]
fn a_replaced_limit_is_neither_charged_nor_denies() {
    let stage = Stage::new(Charging::Together);
    assert_eq!(stage.ask(&["user=alice", "vip=1"]), "yes, ok, ok 1/2");
    assert_eq!(stage.ask(&["vip=1", "user=alice"]), "yes, ok 0/2, ok");
    assert_eq!(stage.ask(&["vip=1", "user=alice"]), "no, over 0/2, ok");
    assert_eq!(stage.ask(&["user=alice"]), "yes, ok 4/5");
}

#[test]
fn a_limit_that_comes_with_the_request_counts_apart() {
    let stage = Stage::new(Charging::Together);
    let two = Some(PerUnit { requests: 2, unit: RateUnit::Hour });
    assert_eq!(stage.ask_all(vec![("user=alice", Hits::ONE, two)]), "yes, ok 1/2");
    assert_eq!(stage.ask_all(vec![("what=ever", Hits::ONE, two)]), "yes, ok 1/2");
    assert_eq!(stage.ask_all(vec![("user=alice", Hits::ONE, two)]), "yes, ok 0/2");
    assert_eq!(stage.ask_all(vec![("user=alice", Hits::ONE, two)]), "no, over 0/2");
    assert_eq!(stage.ask(&["user=alice"]), "yes, ok 4/5");
}

#[test]
fn one_bucket_named_twice_is_charged_twice() {
    let stage = Stage::new(Charging::Together);
    assert_eq!(stage.ask(&["tenant=a", "tenant=a"]), "yes, ok 2/3, ok 1/3");
    assert_eq!(stage.ask(&["tenant=a", "tenant=a"]), "no, ok 1/3, over 1/3");
    assert_eq!(stage.ask(&["tenant=a"]), "yes, ok 0/3");
}

#[test]
fn resets_are_exact() {
    let stage = Stage::new(Charging::Together);
    let reset = |asked: &str| {
        let entries = entries(asked);
        let asked = [DescriptorRequest { entries: &entries, hits: Hits::ONE, limit: None }];
        let generation = stage.limiter.rules();
        let domain = generation.rules.domain("d").unwrap();
        let decided = finish(stage.limiter.check_descriptors(&generation, domain, &asked, &stage.terms));
        let decision = decided.binding(&decided.descriptors[0]).unwrap().decision;
        (decision.reset_after.get(), decision.retry_after().map(Micros::get))
    };
    stage.clock.advance(Micros::new(250_001));
    assert_eq!(reset("user=alice"), (49_749_999, None));
    for _ in 0..3 {
        assert_eq!(reset("tenant=a").0, (3_600 - 10) * 1_000_000 - 250_001 - 1_200_000_000);
    }
    let (reset_after, retry_after) = reset("tenant=a");
    assert_eq!(retry_after, Some(reset_after));
    for _ in 0..4 {
        reset("bucket=1");
    }
    assert_eq!(reset("bucket=1"), (4_000_000, Some(1_000_000)));
}

#[test]
fn our_own_rules_see_entries_as_facts() {
    let text = "
rules:
  - { id: posts, match: { method: POST, path: /login }, key: address, limit: fixed 2/h }
  - { id: everyone, limit: fixed 4/h }
  - { id: weighed, match: { path: /llm }, key: user, limit: fixed 10/h, cost: hits }
  - { id: dark, match: { path: /llm }, limit: fixed 1/h, mode: shadow }
  - { id: keyed, match: { path: /keyed }, key: api_key, limit: 1/h, on_missing_key: refuse }
";
    let stage = Stage::of(text, Charging::Together);
    let ask = |descriptors: &[(&str, Hits)]| {
        let parsed: Vec<_> = descriptors.iter().map(|(asked, hits)| (entries(asked), *hits)).collect();
        let asked: Vec<_> =
            parsed.iter().map(|(entries, hits)| DescriptorRequest { entries, hits: *hits, limit: None }).collect();
        let generation = stage.limiter.rules();
        told(&finish(stage.limiter.check_entries(&generation, &asked, Charging::Together)))
    };
    let login = "method=POST path=/login remote_address=192.0.2.1";
    assert_eq!(ask(&[(login, Hits::ONE)]), "yes, ok 1/2");
    assert_eq!(ask(&[(login, Hits::Check)]), "yes, ok 1/2");
    assert_eq!(ask(&[(login, Hits::ONE), ("path=/other", Hits::ONE)]), "yes, ok 0/2, ok 1/4");
    assert_eq!(ask(&[("path=/other", Hits::ONE), (login, Hits::ONE)]), "no, ok 1/4, over 0/2");
    assert_eq!(ask(&[("path=/keyed", Hits::ONE)]), "no, over 1/4");
    assert_eq!(ask(&[("path=/llm user=a", Hits::of(7, false))]), "yes, ok 0/4");
    assert_eq!(ask(&[("path=/llm user=a", Hits::of(7, true))]), "yes, ok 1/4");
    assert_eq!(ask(&[("path=/llm user=a", Hits::of(10, false))]), "yes, ok 0/4");
}

#[test]
fn limits_off_or_in_shadow_do_not_deny() {
    let stage = Stage::new(Charging::Together);
    assert_eq!(stage.ask_hits(&[("quota=1", Hits::ONE), ("tenant=a", Hits::of(3, false))]), "yes, ok 0/1, ok 0/3");
    assert_eq!(stage.ask(&["quota=1", "tenant=a"]), "no, over 0/1, over 0/3");
    for id in ["@d|tenant", "@d|quota"] {
        stage.limiter.switch(|switches| switches.switch(id, Some(Mode::Shadow)));
    }
    assert_eq!(stage.ask(&["quota=1", "tenant=a"]), "yes, ok 0/1, ok 0/3");
    stage.limiter.switch(|switches| switches.switch("@d|tenant", Some(Mode::Off)));
    assert_eq!(stage.ask(&["tenant=a"]), "yes, ok");
    stage.limiter.switch(|switches| switches.switch("@d|tenant", None));
    assert_eq!(stage.ask(&["tenant=a"]), "no, over 0/3");
}
