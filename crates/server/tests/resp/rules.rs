//! `TG.*` commands, which apply the rules.

use std::collections::HashMap;

use redis::{Connection, Value, from_redis_value};

use crate::resp::support::{Server, error, run};

type Map = HashMap<String, Value>;

fn get<T: redis::FromRedisValue>(map: &Map, name: &str) -> T {
    let value = map.get(name).unwrap_or_else(|| panic!("no {name} in {map:?}"));
    from_redis_value(value.clone()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn allowed(client: &mut Connection, words: &str) -> bool {
    get(&run::<Map>(client, words).unwrap(), "allowed")
}

#[test]
fn a_request_is_decided_by_its_rules_in_both_versions() {
    for version in ["", "?protocol=resp3"] {
        let server = Server::start();
        let mut client = server.client_at(version);
        let check = "TG.CHECK method GET path /api/items user alice";
        for left in [2, 1, 0] {
            let map: Map = run(&mut client, check).unwrap();
            assert!(get::<bool>(&map, "allowed"));
            assert_eq!((get::<u64>(&map, "limit"), get::<u64>(&map, "remaining")), (3, left));
            assert_eq!(get::<Option<u64>>(&map, "retry_after_ms"), None);
            let rules: Vec<Map> = get(&map, "limits");
            assert_eq!((rules.len(), get::<String>(&rules[0], "id")), (1, "api".to_owned()));
            assert_eq!(
                (get::<String>(&rules[0], "mode"), get::<String>(&rules[0], "by")),
                ("enforce".to_owned(), "store".to_owned())
            );
        }
        let map: Map = run(&mut client, check).unwrap();
        assert!(!get::<bool>(&map, "allowed"));
        let (wait, reset): (u64, u64) = (get(&map, "retry_after_ms"), get(&map, "reset_after_ms"));
        assert!(wait > 0 && wait <= 86_400_000 && reset <= 86_400_000);
        assert!(allowed(&mut client, "TG.CHECK path /api/items user bob"));
        // No rule matches this request.
        let map: Map = run(&mut client, "TG.CHECK path /elsewhere user alice").unwrap();
        assert!(get::<bool>(&map, "allowed") && get::<Vec<Map>>(&map, "limits").is_empty());
        assert_eq!(get::<Option<u64>>(&map, "limit"), None);
    }
}

#[test]
fn resp3_has_types_for_it() {
    let server = Server::start();
    let mut client = server.client_at("?protocol=resp3");
    let value: Value = run(&mut client, "TG.CHECK path /api/items user alice").unwrap();
    let Value::Map(pairs) = value else { panic!("{value:?}") };
    assert_eq!(pairs[0].1, Value::Boolean(true));
    assert!(pairs.iter().any(|(_, value)| *value == Value::Nil));
}

#[test]
fn a_request_states_its_cost_and_rules_in_shadow_mode_do_not_deny() {
    let server = Server::start();
    let mut client = server.client();
    let map: Map = run(&mut client, "TG.CHECK path /search user alice cost 60").unwrap();
    assert_eq!(get::<u64>(&map, "remaining"), 40);
    assert_eq!(get::<Vec<Map>>(&map, "limits").len(), 2);
    assert!(!allowed(&mut client, "TG.CHECK path /search user alice cost 41"));
    assert!(allowed(&mut client, "TG.CHECK path /search user alice cost 40"));
    let map: Map = run(&mut client, "TG.CHECK path /search user bob").unwrap();
    let rules: Vec<Map> = get(&map, "limits");
    assert_eq!((get::<String>(&rules[1], "mode"), get::<bool>(&rules[1], "allowed")), ("shadow".to_owned(), false));
    assert!(get::<bool>(&map, "allowed"));
    // More than the limit can ever admit.
    let map: Map = run(&mut client, "TG.CHECK path /search user carol cost 101").unwrap();
    assert_eq!((get::<bool>(&map, "allowed"), get::<Option<u64>>(&map, "retry_after_ms")), (false, None));
}

#[test]
fn a_peek_takes_nothing() {
    let server = Server::start();
    let mut client = server.client();
    for _ in 0..5 {
        let map: Map = run(&mut client, "TG.PEEK path /api/items user alice").unwrap();
        assert_eq!((get::<bool>(&map, "allowed"), get::<u64>(&map, "remaining")), (true, 3));
    }
    assert!(allowed(&mut client, "TG.CHECK path /api/items user alice"));
    let map: Map = run(&mut client, "TG.PEEK RULE api alice").unwrap();
    assert_eq!(get::<u64>(&map, "remaining"), 2);
    assert!(error(&mut client, "TG.PEEK RULE apj alice").contains("did you mean `api`"));
}

#[test]
fn a_reset_forgets() {
    let server = Server::start();
    let mut client = server.client();
    let check = "TG.CHECK path /api/items user alice";
    for reset in ["TG.RESET RULE api alice", "TG.RESET path /api/items user alice"] {
        while allowed(&mut client, check) {}
        assert_eq!(run::<i64>(&mut client, reset).unwrap(), 1);
        assert_eq!(run::<i64>(&mut client, reset).unwrap(), 0);
        assert!(allowed(&mut client, check));
    }
}

#[test]
fn a_receipt_is_settled_once_at_what_it_cost() {
    let server = Server::start();
    let mut client = server.client();
    let map: Map = run(&mut client, "TG.CHECK path /chat user alice cost 800").unwrap();
    let receipt: String = get(&map, "receipt");
    assert!(!allowed(&mut client, "TG.CHECK path /chat user alice cost 300"));
    let settled: Map = run(&mut client, &format!("TG.SETTLE {receipt} 150")).unwrap();
    assert_eq!((get::<bool>(&settled, "settled"), get::<u64>(&settled, "given_back")), (true, 650));
    let again: Map = run(&mut client, &format!("TG.SETTLE {receipt} 150")).unwrap();
    assert!(!get::<bool>(&again, "settled"));
    let map: Map = run(&mut client, "TG.CHECK path /chat user alice cost 300").unwrap();
    assert_eq!(get::<u64>(&map, "remaining"), 550);
}

#[test]
fn slots_come_back_when_they_are_settled() {
    let server = Server::start();
    let mut client = server.client();
    let take = "TG.CHECK path /slots user alice";
    let map: Map = run(&mut client, take).unwrap();
    assert!(allowed(&mut client, take) && !allowed(&mut client, take));
    let receipt: String = get(&map, "receipt");
    // From another connection, as programs may do.
    let settled: Map = run(&mut server.client(), &format!("TG.SETTLE {receipt} 0")).unwrap();
    assert!(get::<bool>(&settled, "settled"));
    assert!(allowed(&mut client, take) && !allowed(&mut client, take));
}

#[test]
fn a_rule_may_refuse_what_lacks_its_key() {
    let server = Server::start();
    let map: Map = run(&mut server.client(), "TG.CHECK path /keyed").unwrap();
    assert_eq!((get::<bool>(&map, "allowed"), get::<String>(&map, "refused_by")), (false, "keyed".to_owned()));
}

#[test]
fn mistakes_come_with_what_to_write() {
    let server = Server::start();
    let mut client = server.client();
    for (words, text) in [
        ("TG.CHECK", "wrong number of arguments for 'tg.check' command"),
        ("TG.CHECK usr alice", "Did you mean user?"),
        ("TG.CHECK user alice header x-tier", "'header' needs a name and a value"),
        ("TG.CHECK ip localhost", "write one such as 203.0.113.7"),
        ("TG.PEEK usr alice", "Did you mean user?"),
        ("TG.RESET usr alice", "Did you mean user?"),
        ("TG.RESET RULE nope alice", "there is no rule `nope`"),
        ("TG.SETTLE abc 1", "this is not a receipt"),
        ("TG.SETTLE abc", "wrong number of arguments for 'tg.settle' command"),
        ("TG.CHEK user alice", "Did you mean TG.CHECK?"),
        ("PNIG", "Did you mean PING?"),
    ] {
        let error = error(&mut client, words);
        assert!(error.contains(text), "{words}: {error}");
    }
    let map: Map = run(&mut client, "TG.CHECK path /chat user alice cost 8").unwrap();
    let receipt: String = get(&map, "receipt");
    assert!(error(&mut client, &format!("TG.SETTLE {receipt} 1 2")).contains("covers 1 charges, but 2 costs"));
    assert!(error(&mut client, &format!("TG.SETTLE {receipt} -1")).contains("'-1' is not a cost"));
}
