//! `match`: each kind of condition, with each kind of value.

use tidegate_rules::Request;

use crate::rules::support::{get, governs, ids, rules, when};

type Say = fn(&str) -> String;
type Have = fn(Request, &str) -> Request;

/// The text of a condition around its value, and a request with such a value.
const VALUES: [(&str, Say, Have); 8] = [
    ("header", |value| format!("header: {{ X-Env: {value} }}"), |request, value| request.header("x-env", value)),
    ("query", |value| format!("query: {{ env: {value} }}"), |_, value| get(&format!("/?env={value}"))),
    ("cookie", |value| format!("cookie: {{ env: {value} }}"), |request, value| request.cookie("env", value)),
    ("claim", |value| format!("claim: {{ env: {value} }}"), |request, value| request.claim("env", value)),
    (
        "descriptor",
        |value| format!("descriptor: {{ env: {value} }}"),
        |request, value| request.descriptor("env", value),
    ),
    ("tier", |value| format!("tier: {value}"), |request, value| request.tier(value)),
    ("user", |value| format!("user: {value}"), |request, value| request.user(value)),
    ("api_key", |value| format!("api_key: {value}"), |request, value| request.api_key(value)),
];

/// The text of a value, what it matches, what it does not match, and whether it matches a missing value.
const PATTERNS: [(&str, &[&str], &[&str], bool); 21] = [
    ("prod", &["prod"], &["Prod", "production", "", "pro"], false),
    ("\"prod\"", &["prod"], &["'prod'"], false),
    ("[prod, test]", &["prod", "test"], &["prodtest", "dev"], false),
    ("[prod, te*]", &["prod", "te", "test"], &["dev", "prod1"], false),
    ("'pr*'", &["pr", "prod"], &["apr", "p"], false),
    ("'*'", &["", "anything"], &[], false),
    ("{ exact: 'pr*' }", &["pr*"], &["prod"], false),
    ("{ exact: [a, b] }", &["a", "b"], &["ab"], false),
    ("{ glob: p?d* }", &["p?d", "p?d1"], &["prod"], false),
    ("{ glob: [a*, b*] }", &["a1", "b1"], &["c1"], false),
    ("{ regex: 'p.+d' }", &["prod", "p-d"], &["pd", "xprod", "prodx"], false),
    ("{ regex: ['a+', 'b+'] }", &["aa", "b"], &["ab"], false),
    ("{ regex: '(?i)prod' }", &["PROD", "prod"], &["prods"], false),
    ("{ not: prod }", &["test", ""], &["prod"], true),
    ("{ not: [prod, test] }", &["dev"], &["prod", "test"], true),
    ("{ not: { regex: 'p.*' } }", &["test"], &["prod"], true),
    ("{ not: { not: prod } }", &["prod"], &["test"], false),
    ("{ present: true }", &["", "prod"], &[], false),
    ("{ present: false }", &[], &["", "prod"], true),
    ("{ not: { present: true } }", &[], &["", "prod"], true),
    ("[prod, { present: false }]", &["prod"], &["test"], true),
];

#[test]
fn every_condition_takes_every_kind_of_value() {
    for (kind, say, have) in VALUES {
        for (pattern, yes, no, absent) in PATTERNS {
            let rules = when(&say(pattern));
            for (values, expected) in [(yes, true), (no, false)] {
                for value in values {
                    assert_eq!(governs(&rules, &have(get("/"), value)), expected, "{kind}: {pattern} and {value:?}");
                }
            }
            assert_eq!(governs(&rules, &get("/")), absent, "{kind}: {pattern} and nothing");
        }
    }
}

#[test]
fn numbers_and_booleans_are_compared_as_they_are_written() {
    for (written, value, other) in [
        ("1.10", "1.10", "1.1"),
        ("007", "007", "7"),
        ("1_000", "1_000", "1000"),
        ("0x10", "0x10", "16"),
        ("true", "true", "True"),
        ("yes", "yes", "true"),
        ("off", "off", "false"),
        ("1e3", "1e3", "1000"),
    ] {
        let rules = when(&format!("header: {{ X: {written} }}"));
        assert!(governs(&rules, &get("/").header("X", value)), "{written}");
        assert!(!governs(&rules, &get("/").header("X", other)), "{written} is not {other}");
    }
}

#[test]
fn names_of_headers_parameters_and_cookies_have_no_case_but_other_names_do() {
    assert!(governs(&when("header: { X-ENV: a }"), &get("/").header("x-Env", "a")));
    assert!(governs(&when("query: { Env: a }"), &get("/?env=a")));
    assert!(governs(&when("cookie: { Env: a }"), &get("/").cookie("env", "a")));
    assert!(!governs(&when("claim: { Env: a }"), &get("/").claim("env", "a")));
    assert!(!governs(&when("descriptor: { Env: a }"), &get("/").descriptor("env", "a")));
}

#[test]
fn methods_have_no_case() {
    for (condition, yes, no) in [
        ("method: post", &["POST", "post", "Post"][..], &["GET"][..]),
        ("method: [GET, HEAD]", &["get", "HEAD"], &["POST"]),
        ("method: 'P*'", &["POST", "put"], &["GET"]),
        ("method: { regex: 'get|post' }", &["GET", "post"], &["PUT"]),
        ("method: { not: GET }", &["POST"], &["GET", "get"]),
    ] {
        for (methods, expected) in [(yes, true), (no, false)] {
            for method in methods {
                assert_eq!(governs(&when(condition), &Request::new(method, "/")), expected, "{condition}, {method}");
            }
        }
    }
}

#[test]
fn hosts_have_no_case_and_no_dot_at_the_end() {
    for (condition, yes, no) in [
        (
            "host: API.example.com",
            &["api.example.com", "API.EXAMPLE.COM", "api.example.com."][..],
            &["example.com"][..],
        ),
        ("host: api.example.com.", &["api.example.com", "api.example.com."], &["example.com"]),
        (
            "host: '*.example.com'",
            &["a.example.com", "a.B.example.com", "a.example.com."],
            &["example.com", "aexample.com"],
        ),
        ("host: '*example.com'", &["example.com", "a.example.com", "badexample.com"], &["example.org"]),
        ("host: { regex: '[A-Z]+\\.Example\\.com' }", &["a.example.com"], &["1.example.com"]),
        ("host: { not: '*.example.com' }", &["example.org"], &["a.example.com", "A.EXAMPLE.com."]),
        ("host: [a.com, '*.b.com']", &["a.com", "x.b.com"], &["b.com"]),
    ] {
        for (hosts, expected) in [(yes, true), (no, false)] {
            for host in hosts {
                assert_eq!(governs(&when(condition), &get("/").host(host)), expected, "{condition}, {host}");
                let header = format!("header: {{ Host: {} }}", condition.strip_prefix("host: ").unwrap());
                assert_eq!(governs(&when(&header), &get("/").host(host)), expected, "{header}, {host}");
                assert_eq!(governs(&when(&header), &get("/").header("Host", host)), expected, "{header}, {host}");
            }
        }
    }
    assert!(governs(&when("host: { not: a.com }"), &get("/")), "what is missing is not that");
}

#[test]
fn addresses_lie_in_networks() {
    for (condition, yes, no) in [
        ("address: 192.0.2.7", &["192.0.2.7", "::ffff:192.0.2.7"][..], &["192.0.2.8", "::192.0.2.7"][..]),
        ("address: 10.0.0.0/8", &["10.1.2.3", "::ffff:10.1.2.3"], &["11.0.0.0", "fd00::a"]),
        ("address: '::ffff:10.0.0.0/104'", &["10.1.2.3"], &["11.0.0.0"]),
        ("address: 0.0.0.0/0", &["1.2.3.4", "::ffff:1.2.3.4"], &["2001:db8::1"]),
        ("address: '::/0'", &["2001:db8::1"], &["1.2.3.4"]),
        ("address: '2001:db8::/32'", &["2001:db8:ffff::1"], &["2001:db9::", "10.0.0.1"]),
        ("address: ['2001:db8::1', 10.0.0.0/8]", &["2001:db8::1", "10.9.9.9"], &["2001:db8::2"]),
        ("address: { not: 10.0.0.0/8 }", &["11.0.0.1", "2001:db8::1"], &["10.0.0.1", "::ffff:10.0.0.1"]),
        ("address: { not: [10.0.0.0/8, '2001:db8::/32'] }", &["11.0.0.1"], &["10.0.0.1", "2001:db8::1"]),
    ] {
        for (addresses, expected) in [(yes, true), (no, false)] {
            for address in addresses {
                let request = get("/").address(address.parse().unwrap());
                assert_eq!(governs(&when(condition), &request), expected, "{condition}, {address}");
            }
        }
    }
    assert!(!governs(&when("address: 0.0.0.0/0"), &get("/")));
    assert!(governs(&when("address: { not: 10.0.0.0/8 }"), &get("/")), "what is missing is not in there");
}

#[test]
fn paths_are_matched_segment_by_segment() {
    for (condition, yes, no) in [
        ("path: /", &["/", "", "//", "/./"][..], &["/a"][..]),
        ("path: /users", &["/users", "/users/"], &["/user", "/users/1", "/Users", "/"]),
        ("path: /users/*", &["/users/1", "/users/1/"], &["/users", "/users/1/2"]),
        ("path: '/users/{id}'", &["/users/1"], &["/users", "/users/1/2"]),
        ("path: /users/**", &["/users", "/users/1", "/users/1/2"], &["/user", "/a/users"]),
        ("path: /**", &["/", "/a", "/a/b"], &[]),
        ("path: /**/edit", &["/edit", "/a/edit", "/a/b/edit", "/edit/edit"], &["/", "/edit/a"]),
        ("path: /a/**/b/**", &["/a/b", "/a/x/b", "/a/x/b/y/z", "/a/b/b"], &["/a", "/a/x", "/b"]),
        ("path: /*.png", &["/a.png", "/.png"], &["/a.jpg", "/a/b.png"]),
        ("path: /v*/x", &["/v1/x", "/v/x"], &["/w1/x"]),
        ("path: [/a, /b/*]", &["/a", "/b/1"], &["/b", "/c"]),
        ("path: { not: /health }", &["/", "/healthy"], &["/health", "/health/"]),
        ("path: { not: [/health, /metrics/**] }", &["/a"], &["/health", "/metrics", "/metrics/x"]),
        ("path: /a%2Fb", &["/a%2Fb", "/a%2fb"], &["/a/b"]),
        ("path: /caf%C3%A9", &["/café", "/caf%c3%a9"], &["/cafe"]),
    ] {
        for (paths, expected) in [(yes, true), (no, false)] {
            for path in paths {
                assert_eq!(governs(&when(condition), &get(path)), expected, "{condition}, {path}");
            }
        }
    }
}

#[test]
fn all_conditions_must_hold() {
    let rules = when("method: POST, path: /a, header: { X: '1', Y: '2' }, tier: free, address: 10.0.0.0/8");
    let whole = Request::new("POST", "/a").header("X", "1").header("Y", "2").tier("free");
    let whole = whole.address("10.0.0.1".parse().unwrap());
    assert!(governs(&rules, &whole));
    assert!(!governs(&rules, &whole.clone().tier("paid")));
    assert!(!governs(&rules, &whole.clone().address("11.0.0.1".parse().unwrap())));
    assert!(!governs(&rules, &Request::new("GET", "/a").header("X", "1").header("Y", "2").tier("free")));
    assert!(!governs(&rules, &Request::new("POST", "/a").header("X", "1").tier("free")));
}

#[test]
fn no_condition_is_every_request() {
    assert!(governs(&when(""), &get("/whatever")));
}

#[test]
fn any_of_several_values_makes_a_rule_apply() {
    for (kind, say, have) in VALUES.into_iter().filter(|(kind, ..)| !["tier", "user", "api_key"].contains(kind)) {
        for (pattern, yes, no, _) in PATTERNS {
            let rules = when(&say(pattern));
            for (first, second, expected) in [(yes, no, true), (no, yes, true), (yes, yes, true), (no, no, false)] {
                if let ([first, ..], [second, ..]) = (first, second) {
                    let twice = match kind {
                        "query" => get(&format!("/?env={first}&%65nv={second}")),
                        _ => have(have(get("/"), first), second),
                    };
                    assert_eq!(governs(&rules, &twice), expected, "{kind}: {pattern}, {first:?} and {second:?}");
                }
            }
        }
    }
}

#[test]
fn a_rule_that_one_of_several_values_makes_apply_keeps_no_other_out() {
    let rules = rules(
        "
rules:
  - { id: replacing, match: { header: { X-Plan: paid } }, limit: 100/s, replaces: free }
  - { id: stopping, match: { header: { X-Plan: paid } }, limit: 100/s, stop: true }
  - { id: free, limit: 1/s }
",
    );
    let plans = |plans: &[&str]| plans.iter().fold(get("/"), |request, plan| request.header("X-Plan", plan));
    for (said, expected) in [
        (&["paid"][..], &["replacing", "stopping"][..]),
        (&["paid", "paid"], &["replacing", "stopping"]),
        (&["free"], &["free"]),
        (&["paid", "free"], &["replacing", "stopping", "free"]),
        (&["free", "paid"], &["replacing", "stopping", "free"]),
    ] {
        let request = plans(said);
        assert_eq!(ids(&rules.matching(&request)), expected, "{said:?}");
        let explained = rules.explain(&request);
        assert_eq!(explained.matched().map(|rule| rule.id.as_str()).collect::<Vec<_>>(), expected, "{said:?}");
    }
}
