//! `key`, `on_missing_key` and `on_repeated_key`: the key that a rule charges.

use std::net::IpAddr;

use tidegate_rules::{KeyFault, Request, RuleSet, Secret};

use crate::rules::support::{charges, get, governs, key, rule, rules, when};

fn by(part: &str) -> String {
    format!("limit: 1/s, key: {part}")
}

fn from(address: &str) -> Request {
    get("/").address(address.parse::<IpAddr>().unwrap())
}

#[test]
fn each_part_is_what_it_says() {
    let request = Request::new("post", "/users/42/posts?page=2")
        .host("API.example.com")
        .user("alice")
        .tier("paid")
        .header("X-Tenant", "acme")
        .claim("org", "acme")
        .descriptor("client", "c1")
        .address("192.0.2.7".parse().unwrap());
    for (part, expected) in [
        ("user", "alice"),
        ("tier", "paid"),
        ("method", "POST"),
        ("host", "api.example.com"),
        ("address", "192.0.2.7"),
        ("header:X-Tenant", "acme"),
        ("header:x-tenant", "acme"),
        ("query:page", "2"),
        ("claim:org", "acme"),
        ("descriptor:client", "c1"),
        ("route", "/**"),
    ] {
        assert_eq!(key(&rule(&by(part)), &request), Some(vec![expected.to_owned()]), "{part}");
    }
    let by_path = "limit: 1/s, match: { path: '/users/{id}/**' }, key: ";
    assert_eq!(key(&rule(&format!("{by_path} 'path:id'")), &request), Some(vec!["42".to_owned()]));
    assert_eq!(key(&rule(&format!("{by_path} route")), &request), Some(vec!["/users/{id}/**".to_owned()]));
}

#[test]
fn a_rule_without_a_key_charges_one_that_all_share() {
    for rest in ["limit: 1/s", "limit: 1/s, key: global"] {
        assert_eq!(key(&rule(rest), &get("/").user("alice")), Some(vec![]));
    }
}

#[test]
fn several_parts_make_one_key_and_keep_their_bounds() {
    let rules = rule(&by("[user, 'header:X', method]"));
    let of = |user: &str, header: &str| rules.matching(&get("/").user(user).header("X", header)).rules[0].key.owned();
    assert_eq!(of("a", "b").parts().count(), 3);
    assert_ne!(of("a:b", "c"), of("a", "b:c"));
    assert_ne!(of("ab", ""), of("a", "b"));
}

#[test]
fn ipv4_addresses_have_one_spelling() {
    let rules = rule(&by("address"));
    let expected = Some(vec!["192.0.2.7".to_owned()]);
    assert_eq!(key(&rules, &from("192.0.2.7")), expected);
    assert_eq!(key(&rules, &from("::ffff:192.0.2.7")), expected);
    assert_ne!(key(&rules, &from("::ffff:192.0.2.8")), expected, "all of IPv4 must not share a bucket");
}

#[test]
fn ipv6_addresses_are_grouped_by_customer() {
    let rules = rule(&by("address"));
    assert_eq!(key(&rules, &from("2001:db8::1")), Some(vec!["2001:db8::/64".to_owned()]));
    assert_eq!(key(&rules, &from("2001:db8::1")), key(&rules, &from("2001:db8::ffff:1")));
    assert_ne!(key(&rules, &from("2001:db8::1")), key(&rules, &from("2001:db8:0:1::1")));
}

#[test]
fn addresses_are_grouped_as_the_rule_says() {
    for (sizes, address, expected) in [
        ("ipv4: 24", "192.0.2.7", "192.0.2.0/24"),
        ("ipv4: 24", "2001:db8::1", "2001:db8::/64"),
        ("ipv6: 48", "2001:db8:1:2::3", "2001:db8:1::/48"),
        ("ipv6: 128", "2001:db8::1", "2001:db8::1"),
        ("ipv4: 32, ipv6: 56", "192.0.2.7", "192.0.2.7"),
        ("ipv4: 0, ipv6: 0", "192.0.2.7", "0.0.0.0/0"),
        ("ipv4: 0, ipv6: 0", "2001:db8::1", "::/0"),
    ] {
        let rules = rule(&by(&format!("{{ address: {{ {sizes} }} }}")));
        assert_eq!(key(&rules, &from(address)), Some(vec![expected.to_owned()]), "{sizes}, {address}");
    }
}

#[test]
fn named_segments_hold_their_values() {
    for (path, name, target, expected) in [
        ("/users/{id}", "id", "/users/a%20b", "a%20b"),
        ("/users/{id}", "id", "/users//a%62/", "ab"),
        ("/{a}/{b}", "b", "/x/y", "y"),
        ("/**/{id}/edit", "id", "/a/b/c/edit", "c"),
        ("/**/x/{id}/**", "id", "/x/1/x/2", "1"),
        ("/{org}/**/{id}", "org", "/o/1/2", "o"),
        ("/{org}/**/{id}", "id", "/o/1/2", "2"),
    ] {
        let rules = rule(&format!("limit: 1/s, match: {{ path: '{path}' }}, key: 'path:{name}'"));
        assert_eq!(key(&rules, &get(target)), Some(vec![expected.to_owned()]), "{path}, {target}");
    }
    let rules = rule("limit: 1/s, match: { path: ['/a/{id}', '/b/x/{id}'] }, key: 'path:id'");
    assert_eq!(key(&rules, &get("/b/x/7")), Some(vec!["7".to_owned()]));
}

#[test]
fn a_missing_part_is_shared_skipped_or_refused() {
    let request = get("/").user("alice");
    for key in ["user", "[user, 'header:X']", "[address, user]", "'path:id'"] {
        let path = if key.contains("path") { "match: { path: ['/{id}', '/x/{id}'] }, " } else { "" };
        let rule = |policy: &str| rule(&format!("{path}limit: 1/s, key: {key}{policy}"));
        let nobody = get("/");
        if !path.is_empty() {
            assert!(!governs(&rule(""), &nobody));
            continue;
        }
        for policy in ["", ", on_missing_key: share"] {
            let rules = rule(policy);
            let matched = rules.matching(&nobody);
            assert_eq!(matched.rules[0].key, tidegate_core::Key::GLOBAL, "{key}");
            assert!(matched.refused.is_none());
        }
        let rules = rule(", on_missing_key: skip");
        let skipped = rules.matching(&nobody);
        assert!(skipped.rules.is_empty() && skipped.refused.is_none(), "{key}");
        let rules = rule(", on_missing_key: refuse");
        let refused = rules.matching(&nobody);
        assert!(refused.rules.is_empty(), "{key}");
        assert_eq!(refused.refused.map(|refused| refused.rule.id()), Some("r"), "{key}");
        if key == "user" {
            assert!(rules.matching(&request).refused.is_none());
        }
    }
}

#[test]
fn an_empty_part_is_not_a_missing_one() {
    let rules = rule(&by("'header:X'"));
    assert_eq!(key(&rules, &get("/").header("X", "")), Some(vec![String::new()]));
    assert_eq!(key(&rules, &get("/")), Some(vec![]));
}

#[test]
fn a_rule_in_shadow_refuses_nobody() {
    let rules = rule("limit: 1/s, key: user, on_missing_key: refuse, mode: shadow");
    assert!(rules.matching(&get("/")).refused.is_none());
}

#[test]
fn secrets_are_never_seen_in_keys() {
    let request = get("/?token=hunter2&access_key=hunter2&sig=hunter2")
        .api_key("hunter2")
        .header("Authorization", "hunter2")
        .header("Proxy-Authorization", "hunter2")
        .header("X-Api-Key", "hunter2")
        .header("X-Auth-Token", "hunter2")
        .header("Cookie", "hunter2")
        .cookie("session", "hunter2")
        .descriptor("api_key", "hunter2")
        .descriptor("Authorization", "hunter2");
    for part in [
        "api_key",
        "header:Authorization",
        "header:proxy-authorization",
        "header:X-API-Key",
        "header:X-Auth-Token",
        "header:Cookie",
        "cookie:session",
        "query:token",
        "query:access_key",
        "query:sig",
        "descriptor:api_key",
        "descriptor:Authorization",
    ] {
        for key in [part.to_owned(), format!("[method, '{part}']")] {
            let rules = rule(&by(&key));
            let matched = rules.matching(&request);
            let last = matched.rules[0].key.parts().last().unwrap();
            assert_eq!(last.len(), 32, "{part}");
            assert!(last.iter().all(u8::is_ascii_hexdigit), "{part}");
            assert!(!format!("{:?}", matched.rules[0].key).contains("hunter2"), "{part}");
        }
    }
}

#[test]
fn secrets_are_told_apart_and_the_same_on_every_node_with_the_same_secret() {
    let rules = |secret: &[u8; 16]| rule(&by("api_key")).with_secret(Secret::new(secret));
    let of = |secret: &[u8; 16], value: &str| key(&rules(secret), &get("/").api_key(value));
    let (one, other) = (b"0123456789abcdef", b"another secret !");
    assert_eq!(of(one, "k1"), of(one, "k1"));
    assert_ne!(of(one, "k1"), of(one, "k2"));
    assert_ne!(of(one, "k1"), of(other, "k1"));
}

#[test]
fn the_same_key_under_two_rules_is_two_states() {
    let rules = rules("rules: [{ id: a, key: user, limit: 1/s }, { id: b, key: user, limit: 1/s }]");
    let request = get("/").user("alice");
    let matched = rules.matching(&request);
    let charges: Vec<_> = matched.charges().map(|charge| (charge.rule.to_string(), charge.key.clone())).collect();
    assert_eq!(charges[0].1, charges[1].1);
    assert_ne!(charges[0].0, charges[1].0);
}

/// Why the rules refuse a request.
fn refused(rules: &RuleSet, request: &Request) -> Option<KeyFault> {
    rules.matching(request).refused.map(|refused| refused.fault)
}

#[test]
fn a_part_that_comes_more_than_once_is_refused() {
    let twice = Request::new("GET", "/?q=1&%71=2&Q=3&one=1")
        .header("X-Key", "made-up")
        .header("x-key", "real")
        .cookie("sid", "1")
        .cookie("sid", "2")
        .claim("org", "a")
        .claim("org", "b")
        .descriptor("d", "1")
        .descriptor("d", "2")
        .user("alice");
    for part in ["header:X-Key", "cookie:sid", "query:q", "claim:org", "descriptor:d"] {
        for part in [part.to_owned(), format!("[user, '{part}']"), format!("['{part}', user]")] {
            for more in ["", ", on_missing_key: skip", ", on_repeated_key: refuse"] {
                let rules = rule(&format!("{}{more}", by(&part)));
                assert_eq!(refused(&rules, &twice), Some(KeyFault::Repeated), "{part}{more}");
                assert_eq!(key(&rules, &twice), None, "{part}{more}");
            }
        }
    }
    let overridden = rule(&format!("{}, overrides: {{ real: unlimited, made-up: unlimited }}", by("header:X-Key")));
    assert_eq!(refused(&overridden, &twice), Some(KeyFault::Repeated));
    assert_eq!(refused(&rule(&by("query:one")), &twice), None);
    let missing = rule(&format!("{}, on_missing_key: refuse", by("query:other")));
    assert_eq!(refused(&missing, &twice), Some(KeyFault::Missing));
    // In shadow mode, and if the rule does not apply, nothing is refused.
    assert_eq!(refused(&rule(&format!("{}, mode: shadow", by("header:X-Key"))), &twice), None);
    assert_eq!(refused(&rule(&format!("{}, match: {{ path: /other }}", by("header:X-Key"))), &twice), None);
}

#[test]
fn all_spellings_of_a_value_make_one_key() {
    let keys = |part: &str, requests: &[Request]| {
        let rules = rule(&by(part));
        let keys: std::collections::HashSet<_> = requests.iter().map(|request| key(&rules, request)).collect();
        keys.into_iter().collect::<Vec<_>>()
    };
    let cookies =
        ["secret", "s%65cret", "\"secret\"", "\"\\163ecret\"", "%22secret"].map(|value| get("/").cookie("sid", value));
    assert_eq!(keys("cookie:sid", &cookies[..4]).len(), 1);
    assert_eq!(keys("cookie:sid", &cookies).len(), 2);
    let lines = ["Bearer x", "bearer x", "BEARER  x", "Bearer\tx"].map(|value| get("/").header("Authorization", value));
    assert_eq!(keys("header:Authorization", &lines).len(), 1);
    assert_eq!(keys("[header:Authorization, user]", &lines).len(), 1);
    let tokens = ["Bearer x", "Bearer X"].map(|value| get("/").header("Authorization", value));
    assert_eq!(keys("header:Authorization", &tokens).len(), 2, "tokens have a case");
    let targets = ["/?q=1", "/?+q=1", "/?%09q=1", "/?q%00x=1", "/?a=b;q=1", "/?Q=1", "/?q[]=1"].map(get);
    assert_eq!(keys("query:q", &targets), [Some(vec!["1".to_owned()])]);
}

#[test]
fn a_parameter_that_upstreams_read_in_several_ways_is_refused() {
    let rules = rule(&by("query:q"));
    for target in ["/?q=made-up&a=b;q=real", "/?q=made-up;a=b", "/?q=made-up&+q=real", "/?q=1&q%00=2", "/?q=1&q[]=2"] {
        assert_eq!(refused(&rules, &get(target)), Some(KeyFault::Repeated), "{target}");
    }
    assert_eq!(refused(&rules, &get("/?a=b;c&q=1")), None);
}

#[test]
fn overrides_and_operators_name_a_value_in_any_spelling() {
    let rules = rule("limit: 1/s, key: 'cookie:sid', overrides: { 'a%20b': 7/s }");
    for value in ["a b", "a%20b", "a+b", "\"a b\""] {
        assert_eq!(charges(&rules, &get("/").cookie("SID", value)), ["r: 1 of 7/s"], "{value}");
        let named = rules.key_of_rule("r", &[value], None).unwrap();
        assert_eq!(
            Some(named.key.parts().map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>()),
            key(&rules, &get("/").cookie("sid", "a b"))
        );
    }
}

#[test]
fn a_condition_holds_for_every_spelling() {
    let rules = rules(
        "rules: [{ id: r, match: { cookie: { plan: free }, header: { Authorization: 'Bearer *' } }, limit: 1/s }]",
    );
    for (plan, line) in [("free", "Bearer x"), ("fr%65e", "bearer x"), ("\"free\"", "BEARER   x")] {
        assert!(governs(&rules, &get("/").cookie("plan", plan).header("authorization", line)), "{plan} {line}");
    }
    assert!(governs(&when("cookie: { plan: 'fr%65e' }"), &get("/").cookie("plan", "fr%65e")), "as it is written, too");
    assert!(!governs(&rules, &get("/").cookie("plan", "free").header("authorization", "Basic x")));
}

#[test]
fn a_body_of_unknown_length_is_refused_where_its_length_is_the_cost() {
    let rules = rule("limit: 1000/min, cost: header:Content-Length");
    let chunked = get("/").header("Transfer-Encoding", "chunked");
    assert_eq!(refused(&rules, &chunked), Some(KeyFault::Unmeasured));
    assert_eq!(charges(&rules, &get("/").header("Content-Length", "42")), ["r: 42 of 1000/min"]);
    assert_eq!(charges(&rules, &get("/")), ["r: 1 of 1000/min"]);
    let otherwise = rule("limit: 1000/min, cost: { from: header:Content-Length, otherwise: 500 }");
    assert_eq!(charges(&otherwise, &chunked), ["r: 500 of 1000/min"]);
    assert_eq!(refused(&rule("limit: 1000/min, cost: header:X-Cost"), &chunked), None);
    assert_eq!(refused(&rule("limit: 1000/min, cost: header:Content-Length, mode: shadow"), &chunked), None);
}

#[test]
fn joined_values_make_one_key_and_keep_their_bounds() {
    let rules = rule(&format!("{}, on_repeated_key: join", by("[user, 'header:X']")));
    let of = |values: &[&str]| {
        let request = values.iter().fold(get("/").user("alice"), |request, value| request.header("X", value));
        assert_eq!(refused(&rules, &request), None);
        rules.matching(&request).rules[0].key.owned()
    };
    assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
    assert_eq!(of(&["a", "b"]).parts().count(), 2);
    let different = [of(&["a", "b"]), of(&["b", "a"]), of(&["ab", ""]), of(&["a", "b", ""]), of(&["a"]), of(&["b"])];
    for (number, one) in different.iter().enumerate() {
        assert!(different[..number].iter().all(|other| other != one), "{one:?}");
    }
}
