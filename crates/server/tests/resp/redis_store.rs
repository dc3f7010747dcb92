//! State in a real Redis: commands of one pipeline are sent together, and are decided and answered in order.

use tidegate::resp::Settings;
use tidegate_redis::RedisStore;
use tidegate_rules::OnStoreFailure;
use tidegate_test_support::redis::Server as Redis;

use crate::resp::support::{Server, TIMEOUT, run};

/// A server with its state in this Redis, and a long deadline.
fn server(redis: &Redis, on_store_failure: OnStoreFailure) -> Server {
    let mut store = tidegate_redis::Settings::standalone(&redis.url()).unwrap();
    store.deadline = TIMEOUT;
    let settings = Settings { on_store_failure, ..Settings::default() };
    Server::start_with(settings, || RedisStore::open(store).unwrap().into())
}

#[test]
fn a_pipeline_on_one_key_is_decided_in_order() {
    let redis = Redis::start();
    let server = server(&redis, OnStoreFailure::Deny);
    let mut client = server.client();
    let mut pipeline = redis::pipe();
    let mut expected = Vec::new();
    for number in 0..300i64 {
        pipeline.cmd("CL.THROTTLE").arg("k").arg(99).arg(1).arg(86_400);
        pipeline.cmd("ECHO").arg(number);
        pipeline.cmd("CL.THROTTLE").arg(format!("other{number}")).arg(9).arg(1).arg(86_400).arg(3);
        expected.push((i64::from(number > 99), (99 - number).max(0), number));
    }
    let answers: Vec<redis::Value> = pipeline.query(&mut client).unwrap();
    let mut told = Vec::new();
    for answers in answers.chunks(3) {
        let integers = |index: usize| redis::from_redis_value::<Vec<i64>>(answers[index].clone()).unwrap();
        told.push((integers(0)[0], integers(0)[2], redis::from_redis_value(answers[1].clone()).unwrap()));
        assert_eq!(integers(2)[..4], [0, 10, 7, -1]);
    }
    assert_eq!(told, expected);
}

#[test]
fn commands_of_several_steps_hold_back_what_follows() {
    let redis = Redis::start();
    let server = server(&redis, OnStoreFailure::Deny);
    let mut client = server.client();
    let mut pipeline = redis::pipe();
    for _ in 0..20 {
        for _ in 0..4 {
            pipeline.cmd("TG.CHECK").arg(&["path", "/api/x", "user", "alice"]);
        }
        pipeline.cmd("TG.RESET").arg(&["RULE", "api", "alice"]);
    }
    let answers: Vec<redis::Value> = pipeline.query(&mut client).unwrap();
    for round in answers.chunks(5) {
        let allowed = |answer: &redis::Value| {
            let map: std::collections::HashMap<String, redis::Value> = redis::from_redis_value(answer.clone()).unwrap();
            redis::from_redis_value::<bool>(map["allowed"].clone()).unwrap()
        };
        assert_eq!(round[..4].iter().map(allowed).collect::<Vec<_>>(), [true, true, true, false]);
        assert_eq!(redis::from_redis_value::<i64>(round[4].clone()).unwrap(), 1);
    }
}

#[test]
fn receipts_and_peeks_work_across_nodes() {
    let redis = Redis::start();
    let (one, two) = (server(&redis, OnStoreFailure::Deny), server(&redis, OnStoreFailure::Deny));
    type Map = std::collections::HashMap<String, redis::Value>;
    let map: Map = run(&mut one.client(), "TG.CHECK path /chat user alice cost 800").unwrap();
    let receipt: String = redis::from_redis_value(map["receipt"].clone()).unwrap();
    let settled: Map = run(&mut two.client(), &format!("TG.SETTLE {receipt} 100")).unwrap();
    assert_eq!(redis::from_redis_value::<i64>(settled["given_back"].clone()).unwrap(), 700);
    let peeked: Map = run(&mut one.client(), "TG.PEEK path /chat user alice").unwrap();
    assert_eq!(redis::from_redis_value::<i64>(peeked["remaining"].clone()).unwrap(), 900);
}

#[test]
fn without_the_store_the_configured_failure_policy_decides() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("unix://{}", folder.path().join("nothing").display());
    for (policy, answer) in [(OnStoreFailure::default(), [0, 10, 10, -1, 0]), (OnStoreFailure::Deny, [1, 10, 0, 1, 1])]
    {
        let settings = Settings { on_store_failure: policy, ..Settings::default() };
        let store = tidegate_redis::Settings::standalone(&nowhere).unwrap();
        let server = Server::start_with(settings, || RedisStore::open(store).unwrap().into());
        let told: Vec<i64> = run(&mut server.client(), "CL.THROTTLE k 9 1 86400").unwrap();
        assert_eq!(told, answer);
    }
}
