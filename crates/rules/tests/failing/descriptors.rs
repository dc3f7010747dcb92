//! Descriptors that the store cannot decide.

use tidegate_core::contract::faulty::Fault;
use tidegate_rules::{Charging, DecidedBy, DescriptorRequest, DomainTerms, Hits, OnStoreFailure};

use super::support::{OUTAGES, Stage, finish};

const DOMAIN: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: dark, rate_limit: { unit: hour, requests_per_unit: 1 }, shadow_mode: true }
";

fn ask(stage: &Stage, terms: &DomainTerms, asked: &[(&str, Hits)]) -> (bool, Vec<DecidedBy>) {
    let entries: Vec<_> = asked.iter().map(|(key, _)| [(*key, "x")]).collect();
    let asked: Vec<_> = entries
        .iter()
        .zip(asked)
        .map(|(entries, (_, hits))| DescriptorRequest { entries, hits: *hits, limit: None })
        .collect();
    let generation = stage.limiter.rules();
    let domain = generation.rules.domain("d").unwrap();
    let decided = finish(stage.limiter.check_descriptors(&generation, domain, &asked, terms));
    (decided.ruling.is_allowed(), decided.ruling.ruled.iter().map(|ruled| ruled.by).collect())
}

fn terms(on_store_failure: OnStoreFailure, charging: Charging) -> DomainTerms {
    DomainTerms { charging, on_store_failure, store_deadline: None }
}

#[test]
fn a_domain_does_what_its_policy_says() {
    for fault in OUTAGES {
        for charging in [Charging::Together, Charging::Always] {
            let stage = Stage::new(DOMAIN);
            stage.fail(fault.clone());
            let asked = [("user", Hits::ONE), ("dark", Hits::ONE), ("nothing", Hits::ONE)];
            let allow = terms(OnStoreFailure::default(), charging);
            assert_eq!(ask(&stage, &allow, &asked), (true, vec![DecidedBy::Allow, DecidedBy::Allow]), "{fault:?}");
            let deny = terms(OnStoreFailure::Deny, charging);
            assert_eq!(ask(&stage, &deny, &asked), (false, vec![DecidedBy::Deny, DecidedBy::Deny]), "{fault:?}");
            assert_eq!(ask(&stage, &deny, &[("dark", Hits::ONE)]), (true, vec![DecidedBy::Deny]), "{fault:?}");
            assert_eq!(ask(&stage, &deny, &[("nothing", Hits::ONE)]), (true, vec![]), "{fault:?}");
        }
    }
}

#[test]
fn a_share_of_the_limit_is_decided_alone() {
    let stage = Stage::new(DOMAIN);
    let local = terms(OnStoreFailure::Local { percent: 30 }, Charging::Together);
    stage.fail(Fault::Unreachable);
    let passed = (0..10).take_while(|_| ask(&stage, &local, &[("user", Hits::ONE)]).0).count();
    assert_eq!(passed, 3);
    assert!(!ask(&stage, &local, &[("user", Hits::Check)]).0);
    stage.fail(None);
    stage.wait(2_000);
    stage.report();
    let passed = (0..20).take_while(|_| ask(&stage, &local, &[("user", Hits::ONE)]).0).count();
    assert_eq!(passed, 7, "what was admitted alone was told to the store");
}

#[test]
fn refunds_while_the_store_is_unavailable_deny_nobody() {
    let stage = Stage::new(DOMAIN);
    stage.fail(Fault::Failed);
    let deny = terms(OnStoreFailure::Deny, Charging::Together);
    assert_eq!(ask(&stage, &deny, &[("user", Hits::of(3, true))]), (true, vec![DecidedBy::Allow]));
}
