//! Repeated parts of a request, with an upstream that uses the last one.

use crate::gateway::peers::{Gateway, HaProxy, Upstream, curl};

/// Serves requests with the real key, taken from the last line if there are several.
const REAL_KEY: &str = "
  acl real req.hdr(x-api-key,-1) -m str real
  http-request return status 401 unless real
  http-request return status 200 content-type text/plain string served";

#[test]
fn a_made_up_key_in_front_of_a_real_one_gains_nothing() {
    let haproxy = HaProxy::start(REAL_KEY);
    assert_eq!(curl(&haproxy.url(), &["-H", "X-Api-Key: made-up", "-H", "X-Api-Key: real"]).body, "served");
    let by_header = "rules: [{ id: r, key: 'header:X-Api-Key', limit: log 2/h }]";
    let by_key = "rules: [{ id: r, key: api_key, limit: log 2/h }]";
    let own = ["--gateway-api-key-header", "X-Api-Key"];
    let vouched = ["--auth-api-key-header", "X-Api-Key"];
    for (rules, args) in [(by_header, &[][..]), (by_key, &own), (by_key, &vouched)] {
        let gateway = Gateway::start(rules, &[&haproxy.url()], args);
        for protocol in ["--http1.1", "--http2-prior-knowledge"] {
            for number in 0..5 {
                let made_up = format!("X-Api-Key: {number}");
                for (first, second) in [(made_up.as_str(), "X-Api-Key: real"), ("X-Api-Key: real", &made_up)] {
                    let got = gateway.curl("/", &[protocol, "-H", first, "-H", second]);
                    assert_eq!(got.status, 400, "{args:?}: {got:?}");
                    assert_eq!(got.header("content-type"), Some("application/problem+json"));
                    assert!(got.json()["detail"].as_str().unwrap().contains("more than once"), "{got:?}");
                }
            }
        }
        let statuses = [(); 3].map(|()| gateway.curl("/", &["-H", "X-Api-Key: real"]).status);
        assert_eq!(statuses, [200, 200, 429], "{args:?}");
    }
}

#[test]
fn cookies_and_parameters_that_come_twice_are_refused_in_every_spelling() {
    let upstream = Upstream::saying("ok");
    let rules = "rules: [{ id: c, key: [address, 'cookie:sid'], limit: 1000/h }, { id: q, key: [address, 'query:key'], limit: 1000/h }]";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    let twice: [&[&str]; 3] = [
        &["-H", "Cookie: sid=1; a=2; sid=3"],
        &["-H", "Cookie: sid=1", "-H", "Cookie: sid=3"],
        &["-H", "Cookie: sid=1; sid=1"],
    ];
    for protocol in ["--http1.1", "--http2-prior-knowledge"] {
        for args in twice {
            assert_eq!(gateway.curl("/", &[&[protocol], args].concat()).status, 400, "{protocol} {args:?}");
        }
        // HTTP/2 may split cookies into several lines.
        assert_eq!(gateway.curl("/", &[protocol, "-H", "Cookie: sid=1", "-H", "Cookie: a=2"]).status, 200);
        for query in ["key=1&key=2", "key=1&k%65y=2", "key=1&KEY=2", "key&key"] {
            assert_eq!(gateway.curl(&format!("/?{query}"), &[protocol]).status, 400, "{protocol} {query}");
        }
        assert_eq!(gateway.curl("/?key=1&keys=2&other=key", &[protocol]).status, 200);
    }
    assert_eq!(upstream.heads().len(), 4, "what is refused does not reach the upstream");
}

#[test]
fn a_second_value_does_not_dodge_a_rule() {
    let upstream = Upstream::saying("ok");
    let rules = "
rules:
  - { id: paid, match: { header: { X-Plan: paid } }, limit: 1000/h, stop: true }
  - { id: free, match: { header: { X-Plan: { not: paid } } }, limit: log 1/h }
";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    let ask = |args: &[&str]| gateway.curl("/", args).status;
    assert_eq!(ask(&["-H", "X-Plan: free"]), 200);
    assert_eq!(ask(&["-H", "X-Plan: free", "-H", "X-Plan: paid"]), 429);
    assert_eq!(ask(&["-H", "X-Plan: paid", "-H", "X-Plan: free"]), 429);
    assert_eq!(ask(&["-H", "X-Plan: paid"]), 200);
}

#[test]
fn a_rule_may_join_them_or_only_report() {
    let upstream = Upstream::saying("ok");
    let rules = "
rules:
  - { id: tags, key: [address, 'header:X-Tag'], on_repeated_key: join, limit: log 1/h }
  - { id: watched, key: [address, 'header:X-Tag'], mode: shadow, limit: log 1/h }
";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    let ask = |tags: &[&str]| {
        let args: Vec<String> = tags.iter().flat_map(|tag| ["-H".to_owned(), format!("X-Tag: {tag}")]).collect();
        gateway.curl("/", &args.iter().map(String::as_str).collect::<Vec<_>>()).status
    };
    assert_eq!([ask(&["a", "b"]), ask(&["a", "b"]), ask(&["b", "a"]), ask(&["a"])], [200, 429, 200, 200]);
}

/// One session, in spellings that upstreams treat alike, has one limit.
#[test]
fn no_spelling_of_a_cookie_or_of_credentials_has_a_limit_of_its_own() {
    let upstream = Upstream::saying("ok");
    let rules = "rules: [{ id: c, key: 'cookie:sid', limit: log 3/h, on_missing_key: skip }, \
                 { id: a, key: 'header:Authorization', limit: log 3/h, on_missing_key: skip }]";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    let cookies = ["sid=secret", "sid=s%65cret", "sid=\"secret\"", "sid=\"s%65cret\""];
    let statuses = cookies.map(|cookie| gateway.curl("/", &["-H", &format!("Cookie: {cookie}")]).status);
    assert_eq!(statuses, [200, 200, 200, 429]);
    let lines = ["Bearer x", "bearer x", "Bearer  x", "BEARER\tx"];
    let statuses = lines.map(|line| gateway.curl("/", &["-H", &format!("Authorization: {line}")]).status);
    assert_eq!(statuses, [200, 200, 200, 429]);
}
