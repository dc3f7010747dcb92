//! Rust snippets of the guides that name values of the reader's program. Guides whose snippets are complete are documentation tests.
//!
//! `crates/server/tests/docs` looks for each block of such a guide here, line by line.

use std::error::Error;
use std::sync::Arc;

use tidegate_redis::RedisStore;
use tidegate_redis::fleet::{FleetControl, Following, NodeIdentity};

#[rustfmt::skip]
#[expect(unused_variables, reason = "the reader fills in what to do")]
#[test]
fn a_gate_decides_as_in_the_readme() -> Result<(), Box<dyn Error>> {
    use tidegate_core::{Gate, Outcome};

    let gate = Gate::new("20/s burst 50".parse()?);
    match gate.check("alice").outcome {
        Outcome::Allow { .. } => { /* serve */ }
        Outcome::Deny { retry_after } => { /* 429, Retry-After: retry_after.as_secs_ceil() */ }
        Outcome::TooLarge { max } => { /* can never succeed */ }
    }
    assert_eq!(gate.peek("alice").remaining, 49);
    Ok(())
}

/// Decides by rules in a file, with the state in a Redis, as in the README.
async fn one_limit_for_the_fleet() -> Result<bool, Box<dyn Error>> {
    use tidegate_redis::{RedisStore, Settings, tier::Tier};
    use tidegate_rules::{Limiter, Request};

    let store = RedisStore::open(Settings::standalone("redis://127.0.0.1:6379")?)?;
    let rules = tidegate_rules::load(&["rules.yaml".into()])?.rules;
    let limiter = Limiter::new(rules, Tier::new(store));
    let ruling = limiter.check(&Request::new("POST", "/login")).await;
    Ok(ruling.is_allowed())
}

#[tokio::test]
async fn a_fleet_needs_rules() {
    let missing = one_limit_for_the_fleet().await.expect_err("there is no file");
    assert!(missing.to_string().contains("`rules.yaml` cannot be read"), "{missing}");
}

/// A node in one's own program, as in the guide to fleets.
fn follow(limiter: Arc<tidegate_rules::Limiter<RedisStore>>) -> Result<Following, Box<dyn Error>> {
    use tidegate_redis::Settings;

    let fleet = FleetControl::new(&Settings::standalone("redis://cache.internal")?)?;
    let following = fleet.follow(limiter, NodeIdentity::here(), |event| println!("{event:?}"))?;
    Ok(following)
}

#[test]
fn a_node_needs_a_runtime() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = {
        let _inside = runtime.enter();
        RedisStore::open(tidegate_redis::Settings::standalone("redis://127.0.0.1:9")?)?
    };
    let rules = tidegate_rules::RuleSet::parse("rules.yaml", "rules: [{ id: all, limit: 10/s }]")?.rules;
    let limiter = Arc::new(tidegate_rules::Limiter::new(rules, store));
    assert!(follow(Arc::clone(&limiter)).is_err(), "there is no runtime");
    runtime.block_on(async { follow(limiter).map(drop) })
}
