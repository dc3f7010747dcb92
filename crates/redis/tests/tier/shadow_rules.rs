//! Rules in shadow mode cause no calls of their own, as counted by the real server.

use tidegate_core::Micros;
use tidegate_redis::tier::Tier;
use tidegate_redis::{RedisStore, Settings};
use tidegate_rules::{DecidedBy, Limiter, Mode, Request, RuleSet, Ruling};
use tidegate_test_support::redis::Server;

use crate::tier::denied_client::calls;

const RULES: &str = "
rules:
  - { id: counts, key: user, limit: fixed 3/day, on_store_failure: deny }
  - { id: dark, key: user, limit: log 1/day, mode: shadow, on_store_failure: deny }
  - { id: darker, limit: 100/day, mode: shadow, on_store_failure: deny }
";

fn of_shadows(ruling: &Ruling<'_>) -> Vec<(bool, u64)> {
    assert!(ruling.ruled.iter().all(|ruled| ruled.by == DecidedBy::Store), "{ruling:?}");
    let shadows = ruling.ruled.iter().filter(|ruled| ruled.mode == Mode::Shadow);
    shadows.map(|ruled| (ruled.decision.is_allowed(), ruled.decision.remaining)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_question_whatever_is_in_the_shadow() {
    let server = Server::start();
    let mut settings = Settings::standalone(&server.url()).unwrap();
    settings.deadline = std::time::Duration::from_secs(10);
    let store = Tier::new(RedisStore::open(settings).unwrap());
    let limiter = Limiter::new(RuleSet::parse("rules.yaml", RULES).unwrap().rules, store);
    let alice = Request::new("GET", "/").user("alice");

    // The first call may have to load the script.
    let ruling = limiter.check(&alice).await;
    assert_eq!(of_shadows(&ruling), [(true, 0), (true, 99)]);

    let before = calls(&server);
    let ruling = limiter.check(&alice).await;
    assert!(ruling.is_allowed());
    assert_eq!(of_shadows(&ruling), [(false, 0), (true, 98)]);
    assert_eq!(calls(&server) - before, 1, "checked");

    assert_eq!(of_shadows(&limiter.peek(&alice).await), [(false, 0), (true, 98)]);
    assert_eq!(calls(&server) - before, 2, "peeked");

    let ruling = limiter.reserve(&alice, Micros::from_secs(60)).await;
    assert!(ruling.is_allowed());
    assert_eq!((of_shadows(&ruling), ruling.receipts.len()), (vec![(false, 0), (true, 97)], 2));
    assert_eq!(calls(&server) - before, 3, "reserved");

    // A peek, so it shows what would be left.
    let ruling = limiter.check(&alice).await;
    assert!(!ruling.is_allowed());
    assert_eq!(of_shadows(&ruling)[0], (false, 0));
    assert_eq!(calls(&server) - before, 4, "denied");
    assert_eq!(of_shadows(&limiter.peek(&alice).await), [(false, 0), (true, 97)]);
}
