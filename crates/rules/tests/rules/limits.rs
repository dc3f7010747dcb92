//! `limit`, `limits`, `cost` and `reserve`: the charges of a rule.

use tidegate_core::disclosure::DenialStatus;
use tidegate_core::lease::Leasing;
use tidegate_core::time::MAX_EXACT;
use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{Charge, Micros};
use tidegate_rules::{Request, SettleSource};

use crate::rules::support::{charges, get, mistakes, rule};

#[test]
fn the_short_form_is_the_notation() {
    for text in [
        "20/s burst 50",
        "300/3h",
        "gcra 100/min burst 10",
        "meter 10/s burst 20",
        "shaper 10/s queue 50",
        "fixed 1000/day",
        "fixed 1000/month calendar",
        "sliding 300/min parts 6",
        "log 5/min",
        "concurrent 10 ttl 30s",
    ] {
        assert_eq!(charges(&rule(&format!("limit: {text}")), &get("/")), [format!("r: 1 of {text}")]);
    }
}

#[test]
fn several_limits_have_names_or_numbers() {
    let rules = rule("limits: [10/s, { name: hourly, limit: 1000/h }, 5/min, { name: daily, limit: fixed 9/day }]");
    let expected = ["r: 1 of 10/s", "r/hourly: 1 of 1000/h", "r/3: 1 of 5/min", "r/daily: 1 of fixed 9/day"];
    assert_eq!(charges(&rules, &get("/")), expected);
}

#[test]
fn a_cost_is_a_number() {
    assert_eq!(charges(&rule("limit: 10/s, cost: 5"), &get("/")), ["r: 5 of 10/s"]);
    assert_eq!(charges(&rule("limit: 10/s, cost: 0"), &get("/")), ["r: 0 of 10/s"]);
    assert_eq!(charges(&rule("limit: 1000/s, cost: 1_000"), &get("/")), ["r: 1000 of 1000/s"]);
}

#[test]
fn of_several_costs_the_largest_is_taken() {
    let cost = |cost: &str, request: &Request| {
        charges(&rule(&format!("limit: 100/s, cost: {cost}")), request).first().cloned().unwrap_or_default()
    };
    let costs = |costs: &[&str]| costs.iter().fold(get("/"), |request, cost| request.header("X-Cost", cost));
    for (said, taken) in
        [(&["1", "7"][..], 7), (&["7", "1"], 7), (&["0", "0"], 1), (&["2", "many"], 5), (&["9", "many"], 9)]
    {
        let expected = format!("r: {taken} of 100/s");
        assert_eq!(cost("{ from: 'header:X-Cost', otherwise: 5 }", &costs(said)), expected, "{said:?}");
    }
    assert_eq!(cost("query:n", &get("/?n=1&N=8&%6e=3")), "r: 8 of 100/s");
}

#[test]
fn a_cost_is_what_the_request_says() {
    let cost =
        |cost: &str, request: &Request| charges(&rule(&format!("limit: 100/s, cost: {cost}")), request)[0].clone();
    let said = |number: u64| format!("r: {number} of 100/s");
    assert_eq!(cost("header:X-Cost", &get("/").header("x-cost", " 7 ")), said(7));
    assert_eq!(cost("query:n", &get("/?n=8")), said(8));
    assert_eq!(cost("query:n", &get("/?n=18446744073709551615")), said(u64::MAX));
    assert_eq!(cost("query:n", &get("/?n=18446744073709551616")), said(u64::MAX), "more is not cheaper");
    assert_eq!(cost("query:n", &get("/?n=-8")), said(1));
    assert_eq!(cost("claim:n", &get("/").claim("n", "9")), said(9));
    assert_eq!(cost("descriptor:n", &get("/").descriptor("n", "10")), said(10));
    assert_eq!(cost("hits", &get("/").hits(11)), said(11));
    assert_eq!(cost("hits", &get("/").hits(0)), said(0), "a protocol may ask without taking");
    assert_eq!(cost("hits", &get("/")), said(1));
    assert_eq!(cost("{ from: hits }", &get("/")), said(1));
}

#[test]
fn a_cost_that_is_missing_or_no_number_is_the_other_one() {
    for value in [None, Some(""), Some("x"), Some("-1"), Some("1.5"), Some("0x5")] {
        let request = value.into_iter().fold(get("/"), |request, value| request.header("X", value));
        assert_eq!(charges(&rule("limit: 9/s, cost: header:X"), &request), ["r: 1 of 9/s"], "{value:?}");
        let rules = rule("limit: 9/s, cost: { from: 'header:X', otherwise: 4 }");
        assert_eq!(charges(&rules, &request), ["r: 4 of 9/s"], "{value:?}");
    }
}

#[test]
fn an_explanation_tells_a_stated_cost_from_the_other_one() {
    let rules = rule("limit: 9/s, cost: header:X");
    for (value, is_fallback) in [("7", false), ("18446744073709551616", false), ("x", true)] {
        let explained = rules.explain(&get("/").header("X", value));
        let shown = serde_json::to_value(&explained.rules[0]).unwrap().to_string();
        assert!(shown.contains(&format!("\"cost_is_fallback\":{is_fallback}")), "{value}: {shown}");
    }
}

#[test]
fn clients_cannot_make_their_requests_free() {
    assert_eq!(charges(&rule("limit: 9/s, cost: header:X"), &get("/").header("X", "0")), ["r: 1 of 9/s"]);
    assert_eq!(charges(&rule("limit: 9/s, cost: query:n"), &get("/?n=0")), ["r: 1 of 9/s"]);
    assert_eq!(charges(&rule("limit: 9/s, cost: claim:n"), &get("/").claim("n", "0")), ["r: 0 of 9/s"]);
    // Nor cheaper than one of the units that they pay for.
    let times = rule("limit: 99/s, cost: { from: 'header:X', times: 15, otherwise: 30 }");
    for (value, cost) in [("0", 15), ("1", 15), ("2", 30)] {
        assert_eq!(charges(&times, &get("/").header("X", value)), [format!("r: {cost} of 99/s")], "{value}");
    }
}

#[test]
fn a_cost_depends_on_the_path() {
    let rules = rule("limit: 100/s, cost: { paths: { /search: 5, /search/**: 6, '/x/{id}': 7 }, otherwise: 2 }");
    for (path, cost) in [("/search", 5), ("/search/", 5), ("/search/a", 6), ("/x/1", 7), ("/y", 2)] {
        assert_eq!(charges(&rules, &get(path)), [format!("r: {cost} of 100/s")], "{path}");
    }
    assert_eq!(charges(&rule("limit: 9/s, cost: { paths: { /a: 5 } }"), &get("/b")), ["r: 1 of 9/s"]);
}

#[test]
fn each_limit_may_have_its_own_cost_and_reserve() {
    let rules = rule(
        "key: user, cost: 2, limits: [10/s, { name: tokens, limit: 100000/min, cost: { from: 'header:X-Tokens', otherwise: 500 },
         reserve: 2min }, { name: streams, slots: 4, ttl: 1min, cost: 1 }]",
    );
    let request = get("/").user("alice").header("X-Tokens", "1200");
    let expected = ["r: 2 of 10/s", "r/tokens: 1200 of 100000/min", "r/streams: 1 of concurrent 4 ttl 1min"];
    assert_eq!(charges(&rules, &request), expected);
    let matched = rules.matching(&request);
    let reserves: Vec<_> = matched.charges().map(|charge| charge.reserve).collect();
    assert_eq!(reserves, [None, Some(Micros::from_secs(120)), None]);
}

#[test]
fn a_cost_may_stand_in_the_body_and_have_a_price() {
    let rules = rule(
        "limits: [{ name: tokens, limit: 100000/min, cost: { from: 'body:max_tokens', otherwise: 500 } },
         { name: money, limit: fixed 100000/day, cost: { from: 'body:max_tokens', times: 15, otherwise: 700 } }]",
    );
    assert!(rules.reads_bodies() && !rule("limit: 9/s").reads_bodies());
    let of = |request: &Request| {
        charges(&rules, request).iter().map(|charge| charge.split(' ').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of(&get("/").body("max_tokens", "1200")), ["1200", "18000"]);
    assert_eq!(of(&get("/").body("max_tokens", "0")), ["1", "15"], "at least one, at its price");
    assert_eq!(of(&get("/").body("max_tokens", &u64::MAX.to_string()))[1], (15 * MAX_EXACT).to_string());
    assert_eq!(of(&get("/").body("max_tokens", "1.5")), ["2", "30"], "rounded up");
    assert_eq!(of(&get("/").body("max_tokens", "1e3")), ["1000", "15000"]);
    for none in
        [get("/"), get("/").body("max_tokens", "-1"), get("/").body("max_tokens", "x"), get("/").body("max", "7")]
    {
        assert_eq!(of(&none), ["500", "700"]);
    }
    let request = get("/");
    let matched = rules.matching(&request);
    assert_eq!(matched.fields().map(ToString::to_string).collect::<Vec<_>>(), ["max_tokens", "max_tokens"]);
}

#[test]
fn a_cost_may_stand_in_one_of_several_places() {
    let rules = rule(
        "limit: { limit: 100000/min, cost: { from: ['body:max_completion_tokens', 'body:max_tokens'], times: 2, otherwise: 500 } }",
    );
    let of = |request: &Request| charges(&rules, request)[0].split(' ').nth(1).unwrap().to_owned();
    assert_eq!(of(&get("/").body("max_completion_tokens", "30")), "60");
    assert_eq!(of(&get("/").body("max_tokens", "40")), "80");
    assert_eq!(of(&get("/")), "500");
    // The larger one is charged, as an upstream may use either of them.
    assert_eq!(of(&get("/").body("max_completion_tokens", "1").body("max_tokens", "40")), "80");
    let request = get("/");
    let fields: Vec<_> = rules.matching(&request).fields().map(ToString::to_string).collect();
    assert_eq!(fields, ["max_completion_tokens", "max_tokens"]);
    let rules = rule("limit: 100/min, cost: [header:X-Cost, query:n]");
    assert_eq!(charges(&rules, &get("/?n=3")), ["r: 3 of 100/min"]);
}

#[test]
fn clients_see_limits_unless_a_rule_or_a_limit_hides_them() {
    let shown = |text: &str| -> Vec<bool> {
        let rules = rule(text);
        let request = get("/");
        rules.matching(&request).charges().map(|charge| charge.disclosure.is_shown).collect()
    };
    assert_eq!(shown("limit: 1/s"), [true]);
    assert_eq!(shown("limit: 1/s, show: false"), [false]);
    assert_eq!(shown("preset: login, show: false"), [false]);
    assert_eq!(shown("limits: [1/s, { limit: 9/h, show: false }]"), [true, false]);
    assert_eq!(shown("limits: [1/s, { limit: 9/h, show: true }], show: false"), [false, false]);
}

#[test]
fn a_rule_says_the_status_of_its_denials() {
    let statuses = |text: &str| -> Vec<Option<u16>> {
        let rules = rule(text);
        let request = get("/");
        let status = |charge: Charge<'_>| charge.disclosure.status.map(DenialStatus::get);
        rules.matching(&request).charges().map(status).collect()
    };
    assert_eq!(statuses("limit: 1/s"), [None]);
    assert_eq!(statuses("limits: [1/s, 9/h], status: 503"), [Some(503), Some(503)]);
    assert_eq!(statuses("preset: login, status: 400"), [Some(400)]);
}

#[test]
fn units_follow_from_costs() {
    use tidegate_core::disclosure::QuotaUnit::{ContentBytes, Other, Requests};
    for (text, unit) in [
        ("limit: 1/s", Requests),
        ("limit: 100/s, cost: 5", Other),
        ("limit: 100/s, cost: 'header:Content-Length'", ContentBytes),
        ("limit: 100/s, cost: { from: 'header:Content-Length', times: 2 }", Other),
        ("limit: 100/s, cost: 'body:max_tokens'", Other),
        ("limit: { limit: 100/s, settle: 'body:usage' }", Other),
    ] {
        let rules = rule(text);
        let request = get("/");
        let found: Vec<_> = rules.matching(&request).charges().map(|charge| charge.disclosure.unit).collect();
        assert_eq!(found, [unit], "{text}");
    }
}

#[test]
fn a_cost_is_settled_where_the_rule_says() {
    let rules = rule(
        "limits: [9/s, { name: total, limit: 900/s, settle: 'body:usage.total_tokens', reserve: 2min },
         { name: sum, limit: 900/s, settle: ['body:in', 'header:X-Out'] },
         { name: money, limit: 900/s, settle: { 'body:in': 3, 'body:out': 15 } }]",
    );
    let request = get("/");
    let matched = rules.matching(&request);
    let settled: Vec<_> = matched.settled().map(|(limit, settle)| format!("{limit}: {settle}")).collect();
    assert_eq!(
        settled,
        ["r/total: body:usage.total_tokens", "r/sum: body:in + header:x-out", "r/money: 3 × body:in + 15 × body:out"]
    );
    // Settled costs are reserved, by default for ten minutes.
    let reserves: Vec<_> = matched.charges().map(|charge| charge.reserve).collect();
    assert_eq!(reserves, [None, Some(120), Some(600), Some(600)].map(|secs| secs.map(Micros::from_secs)));
    let (_, money) = matched.settled().last().unwrap();
    assert_eq!(money.cost(|_| Some("2")), Some(36));
    let only_out = |source: &SettleSource| (source.to_string() == "body:out").then_some("2");
    assert_eq!((money.cost(only_out), money.cost(|_| None::<&str>)), (Some(30), None));
}

#[test]
fn unlimited_is_a_limit_that_takes_nothing() {
    let rules = rule("limit: unlimited");
    let request = get("/");
    let matched = rules.matching(&request);
    assert_eq!((matched.rules.len(), matched.charges().count()), (1, 0));
}

#[test]
fn presets_are_rules() {
    let request = get("/").user("alice").address("192.0.2.7".parse().unwrap());
    for (preset, limit, key) in [
        ("login", "log 5/min", "192.0.2.7"),
        ("posts", "sliding 300/3h", "alice"),
        ("reads", "300/min", "alice"),
        ("messages", "fixed 5/day", "alice"),
    ] {
        let rules = rule(&format!("preset: {preset}"));
        assert_eq!(charges(&rules, &request), [format!("r: 1 of {limit}")]);
        assert_eq!(crate::rules::support::key(&rules, &request), Some(vec![key.to_owned()]), "{preset}");
    }
}

#[test]
fn rules_override_their_preset() {
    let request = get("/").user("alice").address("192.0.2.7".parse().unwrap());
    let rules = rule("preset: login, key: user, limit: 9/min, on_store_failure: allow");
    assert_eq!(charges(&rules, &request), ["r: 1 of 9/min"]);
    assert_eq!(crate::rules::support::key(&rules, &request), Some(vec!["alice".to_owned()]));
    assert_eq!(rules.rules()[0].on_store_failure().to_string(), "allow");
    assert_eq!(rule("preset: login").rules()[0].on_store_failure().to_string(), "deny");
}

#[test]
fn failure_policies_are_explicit_and_bounded() {
    for (written, meant) in [
        ("allow", "allow"),
        ("deny", "deny"),
        ("local", "local"),
        ("{ allow_for: 30s }", "allow for 30s"),
        ("{ local_percent: 20 }", "local at 20% of the limit"),
    ] {
        let rules = rule(&format!("limit: 1/s, on_store_failure: {written}"));
        assert_eq!(rules.rules()[0].on_store_failure().to_string(), meant);
    }
}

#[test]
fn a_rule_says_for_how_long_the_store_is_waited_for() {
    let request = get("/");
    let deadline = |rest: &str| {
        let rules = rule(&format!("limits: [1/s, 5/min]{rest}"));
        let deadlines: Vec<_> = rules.matching(&request).charges().map(|charge| charge.deadline).collect();
        assert_eq!(deadlines, [rules.rules()[0].store_deadline(); 2]);
        deadlines[0]
    };
    assert_eq!(deadline(""), None);
    assert_eq!(deadline(", store_deadline: 50ms"), Some(Micros::from_millis(50)));
}

#[test]
fn a_rule_says_how_its_limits_are_leased_and_a_limit_says_otherwise() {
    let leasings = |rest: &str| -> Vec<Leasing> {
        let rules = rule(rest);
        rules.matching(&get("/")).charges().map(|charge| charge.leasing).collect()
    };
    let of_limit = |lease: &str| leasings(&format!("limit: {{ limit: 1000/s, lease: {lease} }}"))[0];
    assert_eq!(leasings("limits: [1000/s, 5000/min]"), [Leasing::AUTO; 2]);
    assert_eq!(leasings("limits: [1000/s, 5000/min], lease: off"), [Leasing::OFF; 2]);
    assert_eq!(
        leasings("limits: [1000/s, { name: m, limit: 5000/min, lease: auto }], lease: off"),
        [Leasing::OFF, Leasing::AUTO]
    );
    assert_eq!(leasings("preset: reads, key: global, lease: off"), [Leasing::OFF]);
    assert_eq!(of_limit("{ at_most: 10%, every: 100ms }"), Leasing::within(10, 100).unwrap());
    assert_eq!(of_limit("{ at_most: 1% }"), Leasing::within(1, 200).unwrap());
    assert_eq!(of_limit("{ every: 20ms }"), Leasing::within(50, 20).unwrap());
    // Slots are leased only if the file has `lease`.
    assert_eq!(leasings("limits: [1000/s, concurrent 100]"), [Leasing::AUTO, Leasing::OFF]);
    assert_eq!(leasings("limits: [1000/s, concurrent 100], lease: auto"), [Leasing::AUTO; 2]);
    assert_eq!(leasings("shed: { slots: 1000 }"), [Leasing::OFF]);
    assert_eq!(leasings("shed: { slots: 1000 }, lease: { at_most: 10% }"), [Leasing::within(10, 200).unwrap()]);
}

#[test]
fn terms_of_leases_that_cannot_be_are_refused() {
    let wrong = |lease: &str| mistakes(&format!("rules: [{{ id: r, limit: 1000/s, lease: {lease} }}]"));
    for (lease, expected) in [
        ("{ at_most: 60% }", "1:51 [60%] `at_most` cannot be `60%`; write a share from `1%` to `50%`"),
        ("{ at_most: 10 }", "1:51 [10] `at_most` cannot be `10`; write a share from `1%` to `50%`"),
        ("{ at_most: 0% }", "1:51 [0%] `at_most` cannot be `0%`; write a share from `1%` to `50%`"),
        ("{ every: 1s }", "1:49 [1s] `every` cannot be 1s; write `20ms` to `200ms`, in whole milliseconds"),
        ("{ every: 5ms }", "1:49 [5ms] `every` cannot be 5ms; write `20ms` to `200ms`, in whole milliseconds"),
        ("{}", "1:40 [{] `lease` is an empty map; write `auto`, `off` or `{ at_most: 10%, every: 100ms }`"),
    ] {
        assert_eq!(wrong(lease), [expected]);
    }
    assert_eq!(wrong("on").len(), 1);
}

#[test]
fn a_rule_says_how_far_copies_decide_and_a_limit_says_otherwise() {
    let settings = |rest: &str| -> Vec<(Option<WriteBehind>, Leasing)> {
        let rules = rule(rest);
        rules.matching(&get("/")).charges().map(|charge| (charge.write_behind, charge.leasing)).collect()
    };
    let (five, ten) = (WriteBehind::within(5, 100), WriteBehind::within(10, 20));
    assert_eq!(settings("limit: 1000/s"), [(None, Leasing::AUTO)]);
    assert_eq!(settings("limit: 1000/s, write_behind: { at_most: 5% }"), [(five, Leasing::OFF)]);
    assert_eq!(
        settings(
            "limits: [1000/s, { name: h, limit: fixed 5000/h, write_behind: { at_most: 10%, every: 20ms } }], write_behind: { at_most: 5% }"
        ),
        [(five, Leasing::OFF), (ten, Leasing::OFF)]
    );
    assert_eq!(settings("limit: 1000/s, write_behind: { at_most: 5% }, lease: off"), [(five, Leasing::OFF)]);
}

#[test]
fn limits_that_copies_cannot_decide_are_refused() {
    let wrong = |rest: &str| mistakes(&format!("rules: [{{ id: r, {rest} }}]"));
    for (rest, part) in [
        ("limit: 100/s, write_behind: { at_most: 60% }", "`at_most` cannot be `60%`; write a share from `1%` to `50%`"),
        ("limit: 100/s, write_behind: { at_most: 5 }", "`at_most` cannot be `5`; write a share"),
        (
            "limit: 100/s, write_behind: { every: 1s }",
            "`write_behind` without `at_most`; write the most that the fleet",
        ),
        ("limit: 100/s, write_behind: { at_most: 5%, every: 1ms }", "`every` cannot be 1ms; write `10ms` to `10s`"),
        (
            "limit: sliding 100/min, write_behind: { at_most: 5% }",
            "`write_behind` on `sliding 100/min`, which only the store",
        ),
        ("limit: log 100/min, write_behind: { at_most: 5% }", "`write_behind` on `log 100/min`, which only the store"),
        ("limit: { limit: shaper 10/s queue 5, write_behind: { at_most: 5% } }", "which only the store can decide"),
        ("limit: { limit: 100/s, reserve: 1min, write_behind: { at_most: 5% } }", "whose cost is reserved"),
        (
            "limit: 100/s, write_behind: { at_most: 5% }, lease: auto",
            "`write_behind` and `lease` on one limit; keep one",
        ),
    ] {
        let found = wrong(rest);
        assert!(found.len() == 1 && found[0].contains(part), "{rest}: {found:?}");
    }
}
