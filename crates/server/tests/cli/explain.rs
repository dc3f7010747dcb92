//! Tests of `tidegate explain`.

use serde_json::Value;

use crate::cli::{BROKEN, Folder, GOOD};

const MANY: &str = "\
tiers: { from: 'header:X-Tier', default: free }
rules:
  - { id: old, limit: 1/s, mode: off }
  - { id: usual, limit: 100/s }
  - id: search
    match: { path: '/search/{what}', header: { X-Env: prod } }
    key: [address, 'path:what']
    limits: [20/s burst 50, { name: daily, limit: fixed 1000/day, cost: hits }]
    on_store_failure: deny
    store_deadline: 50ms
    replaces: usual
  - { id: dark, limit: 2/s, mode: shadow }
  - { id: staff, match: { address: 10.0.0.0/8 }, limit: unlimited }
  - { id: keys, key: api_key, tiers: { free: 5/s }, stop: true }
  - { id: beyond, limit: 1/s }
";

#[test]
fn an_explanation_tells_of_every_rule() {
    let folder = Folder::with(&[("rules.yaml", MANY)]);
    let ran = folder.run(&[
        "explain",
        "rules.yaml",
        "--request",
        "get /search/./tea/?q=1",
        "--header",
        "X-Env: prod",
        "--header",
        "Host: API.example.com:8443",
        "--ip",
        "::ffff:203.0.113.7",
        "--api-key",
        "hush",
        "--hits",
        "3",
    ]);
    assert_eq!(
        ran.good(),
        "\
method   GET
host     api.example.com
path     /search/tea
address  203.0.113.7
tier     free

old     off
usual   replaced     by `search`
search  match        key             address 203.0.113.7, path:what tea
                     limit           20/s burst 50, cost 1
                     limit           fixed 1000/day, cost 3 by hits
                     mode            enforce
                     store failure   deny
                     store deadline  50ms
                     written in      rules.yaml:5:5
dark    match        key             shared by all requests
                     limit           2/s, cost 1
                     mode            shadow
                     store failure   allow
                     written in      rules.yaml:12:5
staff   no match     address is `203.0.113.7`, wanted `10.0.0.0/8`
keys    match        key             api_key #f28f794d
                     limit           5/s, cost 1 (for this tier)
                     mode            enforce
                     store failure   allow
                     written in      rules.yaml:14:5
beyond  not reached  `keys` stops the search

rules that match: 3 of 7
"
    );
}

#[test]
fn an_explanation_tells_where_costs_come_from_and_how_they_are_settled() {
    let rules = "
rules:
  - id: model
    limits:
      - { name: tokens, limit: 9000/min, cost: 'body:max_tokens', settle: 'body:usage.total_tokens' }
      - { name: money, limit: 9000/day, cost: { from: 'body:max_tokens', times: 15 }, settle: { 'body:in': 3, 'header:X-Out': 15 } }
";
    let folder = Folder::with(&[("rules.yaml", rules)]);
    let explain = ["explain", "rules.yaml", "--request", "POST /v1/chat/completions", "--body", "max_tokens=500"];
    let ran = folder.run(&explain);
    for line in [
        "9000/min, cost 500 by body:max_tokens, to be settled within 10min at the response's body:usage.total_tokens\n",
        "9000/day, cost 7500 by 15 × body:max_tokens, to be settled within 10min at the response's 3 × body:in + 15 × header:x-out\n",
    ] {
        assert!(ran.good().contains(line), "{line} is not in {}", ran.good());
    }
}

#[test]
fn an_explanation_tells_how_a_rate_adapts() {
    let rules = "
rules:
  - { id: api, limit: 1000/s burst 200, adapt: { between: 100/s..1000/s, on: [latency > 200ms, errors > 5%] } }
";
    let folder = Folder::with(&[("rules.yaml", rules)]);
    let ran = folder.run(&["explain", "rules.yaml", "--request", "GET /"]);
    for line in [
        "limit           1000/s burst 200, cost 1",
        "adapts          100/s..1000/s by aimd, down 30% on latency > 200ms or errors > 5%, up 5% of the range every 1s\n",
    ] {
        assert!(ran.good().contains(line), "{line} is not in {}", ran.good());
    }
    let json = folder.run(&["explain", "--format=json", "rules.yaml", "--request", "GET /"]).json();
    let adapt = json["rules"][0]["limits"][0]["adapt"].as_str().unwrap_or_default().to_owned();
    assert!(adapt.starts_with("100/s..1000/s by aimd"), "{json}");
}

#[test]
fn a_server_is_asked_only_for_rates_that_adapt() {
    let folder = Folder::with(&[("rules.yaml", "rules: [{ id: all, limit: 10/s }]")]);
    let asked = ["explain", "rules.yaml", "--request", "GET /", "--admin", "http://127.0.0.1:1"];
    let ran = folder.run(&asked);
    ran.good();
    assert!(ran.err().contains("note: no rule has `adapt`, so --admin changes nothing"), "{}", ran.err());
    let adapts = "rules: [{ id: api, adapt: { between: 100/s..1000/s, on: errors > 5% } }]";
    let folder = Folder::with(&[("rules.yaml", adapts)]);
    assert!(folder.run(&asked).usage_error().contains("the admin listener requires its token"));
    let refused = folder.run(&[&asked[..], &["--token", "an-operators-token"]].concat());
    assert!(refused.bad().contains("127.0.0.1:1: Connection refused"), "{}", refused.err());
    let url = ["explain", "rules.yaml", "--request", "GET /", "--admin", "ftp://a", "--token", "an-operators-token"];
    assert!(folder.run(&url).bad().contains("is not the URL of a server"));
}

#[test]
fn an_explanation_comes_as_json_too() {
    let folder = Folder::with(&[("rules.yaml", MANY)]);
    let ran = folder.run(&["explain", "--format=json", "rules.yaml", "--request", "GET /x", "--ip", "192.0.2.7"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.err());
    let report = ran.json();
    assert_eq!(
        (&report["path"], &report["tier"], &report["address"]),
        (&"/x".into(), &"free".into(), &"192.0.2.7".into())
    );
    assert_eq!(report["matched"], serde_json::json!(["usual", "dark", "keys"]));
    assert_eq!(report["refused_by"], Value::Null);
    let rule = |id: &str| report["rules"].as_array().unwrap().iter().find(|rule| rule["id"] == id).unwrap();
    assert_eq!(rule("staff")["outcome"], "mismatch");
    assert_eq!((&rule("staff")["condition"], &rule("staff")["actual"]), (&"address".into(), &"192.0.2.7".into()));
    assert_eq!((&rule("usual")["outcome"], &rule("usual")["limits"][0]["limit"]), (&"matched".into(), &"100/s".into()));
    assert_eq!((&rule("usual")["file"], &rule("usual")["line"]), (&"rules.yaml".into(), &4.into()));
}

#[test]
fn broken_rules_cannot_be_explained() {
    let folder = Folder::with(&[("rules.yaml", BROKEN)]);
    let ran = folder.run(&["explain", "rules.yaml", "--request", "GET /"]);
    assert_eq!((ran.code(), ran.out()), (Some(1), ""));
    assert!(ran.err().contains("--> rules.yaml:3:"), "{}", ran.err());
}

#[test]
fn a_mistake_in_the_request_comes_with_what_to_write() {
    let folder = Folder::with(&[("rules.yaml", GOOD)]);
    let explain = |more: &[&str]| {
        let args = [&["explain", "rules.yaml", "--request", "GET /"], more].concat();
        folder.run(&args).usage_error().to_owned()
    };
    for (more, wanted) in [
        (["--ip", "203.0.113.7:80"], "write it without the port: 203.0.113.7"),
        (["--ip", "home"], "such as 203.0.113.7"),
        (["--header", "X-Env"], "'X-Env: prod'"),
        (["--claim", "sub"], "write sub=value"),
        (["--address", "home"], "such as 203.0.113.7"),
        (["--hits", "many"], "--hits"),
    ] {
        let message = explain(&more);
        assert!(message.contains(wanted), "{message}");
    }
    let message = folder.run(&["explain", "rules.yaml", "--request", "/login"]);
    assert!(message.usage_error().contains("write 'GET /login'"), "{}", message.err());
}

#[test]
fn explain_shows_what_clients_see() {
    let rules = "rules: [{ id: r, limits: [5/h, { name: day, limit: 9/day, show: false }], problem: abnormal-usage, status: 403 }]";
    let folder = Folder::with(&[("rules.yaml", rules)]);
    let run = |more: &[&str]| {
        let asked = ["explain", "rules.yaml", "--request", "GET /"];
        folder.run(&[&asked[..], more].concat()).good().to_owned()
    };
    let told = run(&[]);
    for said in ["9/day, cost 1, not shown to clients", "problem         abnormal-usage", "status          403"] {
        assert!(told.contains(said), "{said}: {told}");
    }
    let told: Value = serde_json::from_str(&run(&["--format", "json"])).unwrap();
    let rule = &told["rules"][0];
    assert_eq!((&rule["problem"], &rule["status"]), (&"abnormal-usage".into(), &403.into()), "{told}");
    assert_eq!((&rule["limits"][0]["show"], &rule["limits"][1]["show"]), (&true.into(), &false.into()), "{told}");
}

#[test]
fn explain_says_how_limits_are_leased() {
    for (rule, said) in [
        ("limit: 1000/s, lease: off", "1000/s, cost 1, never leased\n"),
        ("limit: 1000/s", "1000/s, cost 1, leased, at nodes with 40/s of a key or more\n"),
        ("limit: 1000/s burst 200", "1000/s burst 200, cost 1, leased, at nodes with 200/s of a key or more\n"),
        (
            "limit: 1000/s, lease: { at_most: 10%, every: 100ms }",
            "1000/s, cost 1, leased at most 10%, every 100ms, at nodes with 80/s of a key or more\n",
        ),
        // Too small to be leased, or of a kind that is never leased.
        ("limit: 100/min", "100/min, cost 1\n"),
        ("limit: log 1000/s", "log 1000/s, cost 1\n"),
        ("limit: 1000/s, write_behind: { at_most: 5% }", "1000/s, cost 1, write-behind"),
        (
            "limit: concurrent 100, lease: auto",
            "concurrent 100 ttl 1min, cost 1, leased in blocks of slots, at most 50%\n",
        ),
        ("limit: concurrent 100", "concurrent 100 ttl 1min, cost 1\n"),
        (
            "shed: { slots: 1000 }, lease: { at_most: 20% }",
            ", leased in blocks of slots, at most 20% (for this priority)\n",
        ),
    ] {
        let folder = Folder::with(&[("rules.yaml", &format!("rules: [{{ id: r, {rule} }}]"))]);
        let told = folder.run(&["explain", "rules.yaml", "--request", "GET /"]).good().to_owned();
        assert!(told.contains(said), "{said}: {told}");
    }
}

#[test]
fn a_cost_that_the_request_does_not_state_is_called_the_default() {
    let rules = "rules: [{ id: model, limit: 9000/min, cost: { from: 'body:max_tokens', otherwise: 2000 } }]";
    let folder = Folder::with(&[("rules.yaml", rules)]);
    let explain = |more: &[&str]| {
        let asked = ["explain", "rules.yaml", "--request", "POST /"];
        folder.run(&[&asked[..], more].concat()).good().to_owned()
    };
    let fallback = "cost 2000 by default, since the request has no number at body:max_tokens";
    for more in [&["--body", "max_tokens=abc"][..], &[]] {
        let told = explain(more);
        assert!(told.contains(fallback), "{told}");
    }
    assert!(explain(&["--body", "max_tokens=2000"]).contains("cost 2000 by body:max_tokens"));
    let json: Value = serde_json::from_str(&explain(&["--body", "max_tokens=abc", "--format", "json"])).unwrap();
    assert_eq!(json["rules"][0]["limits"][0]["cost_is_fallback"], true, "{json}");
}

#[test]
fn an_unknown_region_is_refused_with_those_that_the_rules_have() {
    let rules = "
regions: { eu: 60%, us: 40% }
rules:
  - { id: all, limit: 10/s }
  - { id: own, limit: 10/s, regions: { shares: { eu: 10%, us: 90% } } }
";
    let folder = Folder::with(&[("rules.yaml", rules), ("none.yaml", "rules: [{ id: all, limit: 10/s }]")]);
    let explain = |rules: &str, region: &str| folder.run(&["explain", rules, "--request", "GET /", "--region", region]);
    let refused = explain("rules.yaml", "ue");
    let wanted = "there is no region `ue` in the rules: they have `eu`, `us`. Did you mean `eu`?";
    assert!(refused.bad().contains(wanted), "{}", refused.err());
    let none = explain("none.yaml", "eu");
    none.good();
    assert!(none.err().contains("note: the rules have no `regions`, so --region changes nothing"), "{}", none.err());
    let known = explain("rules.yaml", "eu");
    assert!(known.good().contains("60% of 10/s") && known.out().contains("10% of 10/s"), "{}", known.out());
}

#[test]
fn a_token_needs_the_configuration_and_excludes_a_user() {
    let folder = Folder::with(&[("rules.yaml", GOOD)]);
    let explain = |more: &[&str]| {
        let asked = ["explain", "rules.yaml", "--request", "GET /", "--jwt", "a.b.c"];
        folder.run(&[&asked[..], more].concat()).usage_error().to_owned()
    };
    assert!(explain(&[]).contains("add --config tidegate.yaml"), "{}", explain(&[]));
    for more in [["--user", "bob"], ["--tier", "gold"], ["--claim", "sub=bob"]] {
        let said = explain(&more);
        assert!(said.contains("cannot be used with") && said.contains(more[0]), "{said}");
    }
}
