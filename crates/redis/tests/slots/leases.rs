//! Leases of keys in several slots: the failure of one slot does not affect the others.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::lease::{LeaseRequest, Renewal};
use tidegate_core::store::Answer;
use tidegate_core::{Charge, Key, Limit, ManualClock, Micros, RuleId, Store, StoreError, Timestamp};
use tidegate_redis::tier::{self, LeaseSettings, Tier};
use tidegate_redis::{RedisStore, Settings};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Cluster;
use tokio::time::interval;

use crate::slots::shared;

type Node = Tier<RedisStore, ManualClock>;

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_794_700_800))
}

/// A node of a fleet, in virtual time.
fn node(prefix: &str, clock: &ManualClock) -> Node {
    let store = shared::store(prefix, clock.clone());
    Tier::with_clock(store, tier::Settings::default(), clock.clone()).with_leases_by_hand(LeaseSettings::default())
}

/// Decides a request, and sends the renewals for which it waits.
async fn decide(node: &Node, charge: Charge<'_>) -> Result<Answer, StoreError> {
    let charges = [charge];
    let mut deciding = pin!(node.decide(&charges));
    loop {
        if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(deciding.as_mut().poll(cx))).await {
            return answer;
        }
        node.renew_leases().await;
        tokio::task::yield_now().await;
    }
}

/// Replaces the state of a key by foreign data.
fn intrude(prefix: &str, key: &Key<'_>, rule: &str) {
    let key = String::from_utf8_lossy(key.parts().next().unwrap());
    let name = format!("{prefix}:{{{key}}}:{rule}");
    let server = &shared::cluster().nodes[Cluster::first_owner(tidegate_redis::slot_of(name.as_bytes()))];
    assert_eq!(server.run::<i64>(&["DEL", &name]), 1, "the state of a key is elsewhere");
    server.run::<()>(&["SADD", &name, "somebody else's"]);
}

#[test]
fn a_key_with_foreign_data_in_one_slot_does_not_let_others_be_spent_twice() {
    const BURST: u64 = 3_000;
    let (prefix, clock, keys) = (shared::prefix(), clock(), shared::clients(&[0, 1, 2]));
    let node = node(&prefix, &clock);
    let (rule, limit): (_, Limit) = (RuleId::new("api"), format!("1/h burst {BURST}").parse().unwrap());
    let charge = |key: usize| Charge::new(&rule, &keys[key], &limit);
    shared::runtime().block_on(async {
        let mut admitted = [0; 3];
        for _ in 0..300 {
            clock.advance(Micros::from_millis(1));
            for (key, admitted) in admitted.iter_mut().enumerate() {
                *admitted += u64::from(decide(&node, charge(key)).await.unwrap().is_allowed());
            }
        }
        assert_eq!(node.stats().leases.unwrap().leased, 3, "{:?}", node.stats());
        intrude(&prefix, &keys[2], "api");
        // All keys are idle, and are returned together.
        node.renew_leases().await;
        clock.advance(Micros::from_millis(300));
        node.renew_leases().await;
        let leases = node.stats().leases.unwrap();
        assert!(leases.failed == 1 && leases.leased == 1, "{leases:?}");
        for (key, admitted) in admitted.iter_mut().enumerate().take(2) {
            assert_eq!(shared::spent(node.behind(), charge(key)).await, *admitted, "key {key}");
            while decide(&node, charge(key)).await.unwrap().is_allowed() {
                *admitted += 1;
            }
            assert_eq!(*admitted, BURST, "key {key}");
        }
    });
}

/// A caller that renews keys of several slots at once gets only one error. It must not treat renewals that ran as not run.
#[test]
fn renewals_of_which_some_ran_may_have_run() {
    let (prefix, clock, keys) = (shared::prefix(), clock(), shared::clients(&[0, 1]));
    let store = shared::store(&prefix, clock);
    let (rule, limit): (_, Limit) = (RuleId::new("api"), "1000/s burst 1000".parse().unwrap());
    let renewal = Renewal { wanted: 10, least: 10, ..Renewal::default() };
    let requests = [0, 1].map(|key| LeaseRequest { rule: &rule, key: &keys[key], limit: &limit, renewal });
    let ask = shared::runtime();
    assert_eq!(ask.block_on(store.lease(&requests)).unwrap().len(), 2);
    intrude(&prefix, &keys[1], "api");
    let error = ask.block_on(store.lease(&requests)).unwrap_err();
    assert!(matches!(error, StoreError::AnswerLost { .. }), "{error}");
    assert_eq!(ask.block_on(shared::spent(&store, Charge::new(&rule, &keys[0], &limit))), 20);
    // None of the renewals ran.
    let error = ask.block_on(store.lease(&requests[1..])).unwrap_err();
    assert!(matches!(&error, StoreError::UnusableKey { charges, .. } if charges[..] == [0]), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_stands_still_does_not_stop_the_leases_of_others() {
    let cluster = Cluster::steady();
    let mut settings = Settings::cluster(cluster.urls()).unwrap();
    settings.deadline = Duration::from_secs(1);
    let node = Arc::new(Tier::new(RedisStore::open(settings).unwrap()));
    let (rule, limit): (_, Limit) = (RuleId::new("api"), "100000/s burst 100000".parse().unwrap());
    let keys = shared::clients(&[0, 1, 2]);
    eventually("answers of all slots", async || {
        for key in &keys {
            node.decide(&[Charge::new(&rule, key, &limit)]).await.ok()?;
        }
        Some(())
    })
    .await;
    // The number of failed requests for each key, with one request per millisecond.
    let load = async |millis: usize| {
        let mut tasks = tokio::task::JoinSet::new();
        for (number, key) in keys.iter().cloned().enumerate() {
            let (node, rule) = (Arc::clone(&node), rule.clone());
            tasks.spawn(async move {
                let mut ticks = interval(Duration::from_millis(1));
                let mut failed = 0;
                for _ in 0..millis {
                    ticks.tick().await;
                    let answer = node.decide(&[Charge::new(&rule, &key, &limit)]).await;
                    failed += u64::from(!answer.is_ok_and(|answer| answer.is_allowed()));
                }
                (number, failed)
            });
        }
        let mut failed = [0; 3];
        for (number, count) in tasks.join_all().await {
            failed[number] = count;
        }
        failed
    };
    eventually("leases of all keys", async || {
        load(500).await;
        (node.stats().leases?.leased == 3).then_some(())
    })
    .await;
    cluster.nodes[0].freeze();
    let before = node.stats().leases.unwrap();
    let failed = load(2_000).await;
    let after = node.stats().leases.unwrap();
    cluster.nodes[0].thaw();
    println!("{failed:?} of 2000 failed, {before:?}, {after:?}");
    assert!(failed[0] > 0 && after.failed > before.failed, "the fault is felt: {failed:?}");
    assert_eq!(failed[1..], [0, 0]);
    assert!(after.admitted - before.admitted > 3_000, "{before:?}, {after:?}");
}
