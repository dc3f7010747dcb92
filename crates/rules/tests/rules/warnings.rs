//! Warnings: text that is valid but was probably not meant.

use crate::rules::support::{doubts, mistakes};

#[test]
fn a_key_that_anyone_can_choose_is_doubtful() {
    let expected = "clients choose this key themselves, and a new key has a full limit; add `address`, `user` or another part that is verified, or a second rule that is";
    for key in ["header:X-User", "query:user", "cookie:id", "[header:X, query:y]"] {
        let text = format!("rules:\n- id: r\n  key: {key}\n  limit: 1/s");
        let marked = if key.starts_with('[') { "[" } else { key };
        assert_eq!(doubts(&text), [format!("warning: 3:8 [{marked}] {expected}")], "{key}");
    }
    for key in ["address", "user", "api_key", "claim:sub", "[address, header:X]", "global", "route"] {
        assert_eq!(doubts(&format!("rules: [{{ id: r, limit: 1/s, key: {key} }}]")), [""; 0], "{key}");
    }
    assert_eq!(doubts("rules: [{ id: r, limit: 1/s, key: 'header:X', mode: off }]"), [""; 0]);
}

#[test]
fn a_method_that_is_nearly_a_usual_one_is_doubtful() {
    let text = |method: &str| format!("rules: [{{ id: r, match: {{ method: {method} }}, limit: 1/s, key: user }}]");
    let expected = "warning: 1:35 [PSOT] `PSOT` is not a usual method, and matches only requests that use it; did you mean `POST`?";
    assert_eq!(doubts(&text("PSOT")), [expected]);
    for method in ["post", "[GET, PURGE]", "P*", "MKCALENDAR", "{ not: GET }"] {
        assert_eq!(doubts(&text(method)), [""; 0], "{method}");
    }
    assert_eq!(doubts(&text("[GET, DELTE]")).len(), 1);
}

#[test]
fn a_shed_rule_without_slots_is_doubtful() {
    let text = "rules: [{ id: r, shed: { slots: 0 } }]";
    assert_eq!(
        doubts(text),
        ["warning: 1:33 [0] `shed` with 0 slots refuses every request; raise it, unless that is intended"]
    );
    let text = "rules: [{ id: r, shed: { slots: 10, critical: 0%, high: 0%, normal: 0%, low: 0% } }]";
    assert_eq!(
        doubts(text),
        [
            "warning: 1:47 [0%] `shed` without a share for any priority refuses every request; raise it, unless that is intended"
        ]
    );
    assert_eq!(
        doubts("rules: [{ id: r, shed: { slots: 10, low: 0% } }]"),
        [""; 0],
        "a priority without slots is refused"
    );
}

#[test]
fn a_lease_on_a_rule_that_is_never_leased_is_doubtful() {
    let text = |limit: &str| format!("rules: [{{ id: r, limit: {limit}, key: user, lease: {{ at_most: 10% }} }}]");
    let found = doubts(&text("log 100/s"));
    assert!(found.len() == 1 && found[0].contains("`lease` on a rule without a limit that can be leased"), "{found:?}");
    assert_eq!(doubts(&text("1000/s")), [""; 0]);
}

#[test]
fn a_share_that_a_request_does_not_fit_in_is_doubtful() {
    let text = |percent| {
        format!("rules: [{{ id: r, limit: 20/s, cost: 5, on_store_failure: {{ local_percent: {percent} }} }}]")
    };
    let expected = "warning: 1:58 [{] a request that costs 5 cannot pass a share that holds 4; it is denied while the store is unavailable: raise `local_percent`, or lower the cost";
    assert_eq!(doubts(&text(20)), [expected]);
    assert_eq!(doubts(&text(25)), [""; 0]);
}

#[test]
fn a_limit_that_admits_nothing_is_doubtful() {
    let expected = |at: &str| {
        format!(
            "warning: {at} `10/s burst 0` admits nothing: every request that it governs is denied; raise the limit or its burst, unless that is intended"
        )
    };
    assert_eq!(doubts("rules: [{ id: r, limit: 10/s burst 0 }]"), [expected("1:25 [10/s burst 0]")]);
    assert_eq!(doubts("rules: [{ id: r, limits: [10/s burst 0] }]"), [expected("1:26 [[]")]);
    assert_eq!(doubts("rules: [{ id: r, limit: 1/s, key: user, overrides: { mallory: 10/s burst 0 } }]"), [""; 0]);
}

#[test]
fn a_rule_that_is_never_reached_is_doubtful() {
    for (first, second) in [
        ("", ""),
        ("", "match: { path: /a }"),
        ("match: { path: /** }", "match: { path: /a }"),
        ("match: { path: /** }", "match: { path: { not: /a } }"),
        ("match: { path: /a/** }", "match: { path: [/a, /a/b, '/a/{x}/*.png'] }"),
        ("match: { path: /a/* }", "match: { path: '/a/{id}' }"),
        ("match: { path: /*.png }", "match: { path: /x.png }"),
        ("match: { path: /**/b }", "match: { path: /**/b }"),
        ("match: { method: [GET, POST] }", "match: { method: GET, path: /a }"),
        ("match: { address: 10.0.0.0/8 }", "match: { address: [10.1.0.0/16, 10.2.0.1] }"),
        ("match: { host: a.com }", "match: { host: A.com. }"),
    ] {
        let text =
            format!("rules:\n- {{ id: a, limit: 1/s, stop: true, {first} }}\n- {{ id: b, limit: 1/s, {second} }}");
        let expected = "warning: 3:3 [{] the rule `b` is never reached; `a` at rules.yaml:2:3 matches all that it matches, and stops the search";
        assert_eq!(doubts(&text), [expected], "{first} before {second}");
    }
}

#[test]
fn a_rule_that_may_be_reached_is_not_doubtful() {
    for (first, second) in [
        ("match: { path: /a }", ""),
        ("match: { path: /a/* }", "match: { path: /a }"),
        ("match: { path: /a/* }", "match: { path: /a/** }"),
        ("match: { path: /a/** }", "match: { path: /**/a }"),
        ("match: { path: { not: /a } }", "match: { path: /b }"),
        ("match: { method: GET }", "match: { method: [GET, POST] }"),
        ("match: { address: 10.1.0.0/16 }", "match: { address: 10.0.0.0/8 }"),
        ("match: { address: { not: 10.0.0.0/8 } }", "match: { address: 11.0.0.1 }"),
        ("match: { header: { X: a } }", "match: { header: { Y: a } }"),
        ("mode: off", ""),
        ("mode: shadow", ""),
        ("key: user, on_missing_key: skip", ""),
        ("", "mode: off"),
    ] {
        let text =
            format!("rules:\n- {{ id: a, limit: 1/s, stop: true, {first} }}\n- {{ id: b, limit: 1/s, {second} }}");
        assert_eq!(doubts(&text), [""; 0], "{first} before {second}");
    }
    let tiers =
        "{ tiers: { default: free }, rules: [{ id: a, tiers: { free: 1/s }, stop: true }, { id: b, limit: 1/s }] }";
    assert_eq!(doubts(tiers), [""; 0]);
}

#[test]
fn many_doubts_neither_become_a_mistake_nor_hide_one() {
    let doubtful = |number: u32| format!("- {{ id: r{number}, key: 'header:X', limit: 1/s, stop: true }}\n");
    let text = format!("rules:\n{}", (0..300).map(doubtful).collect::<String>());
    let told = doubts(&text);
    assert!(told.len() <= 201 && told.iter().all(|line| line.starts_with("warning: ")), "{told:?}");
    for mistake in
        ["- { id: last, limit: 1/x }", "- { id: r7, limit: 1/s }", "- { id: last, limit: 1/s, replaces: nobody }"]
    {
        let told = mistakes(&format!("{text}{mistake}\n"));
        assert_eq!(told.iter().filter(|line| !line.starts_with("warning: ")).count(), 1, "{mistake}");
    }
}

#[test]
fn terms_of_a_lease_on_what_cannot_be_leased_are_doubtful() {
    let doubt = |limit: &str| doubts(&format!("rules: [{{ id: r, limit: {{ {limit} }} }}]")).len();
    assert_eq!(doubt("limit: log 100/s, lease: auto"), 1);
    assert_eq!(doubt("limit: 1000/s burst 10, lease: { at_most: 10% }"), 1);
    assert_eq!(doubt("limit: 1000/s, reserve: 1min, lease: auto"), 1);
    assert_eq!(doubt("limit: log 100/s, lease: off"), 0);
    assert_eq!(doubt("limit: 1000/s, lease: auto"), 0);
}

#[test]
fn only_shapers_and_logs_can_be_split() {
    let told = |rule: &str| mistakes(&format!("rules: [{{ id: r, {rule} }}]"));
    for good in ["limit: shaper 100/s queue 50, split: 4", "limits: [{ limit: log 64/min, split: 64 }, 5/s]"] {
        assert_eq!(doubts(&format!("rules: [{{ id: r, {good} }}]")), [""; 0], "{good}");
    }
    for (bad, problem) in [
        ("limit: 100/s, split: 4", "`split` on `100/s`, which is neither a shaper nor a log; remove it: nodes lease"),
        ("limit: 1/s, split: 4", "`split` on `1/s`, which is neither a shaper nor a log; remove it: shapers and logs"),
        ("limits: [log 9/s, 5/s], split: 2", "`split` on `5/s`"),
        ("limits: [{ limit: fixed 5000/s, split: 2 }]", "`split` on `fixed 5000/s`"),
        ("shed: { slots: 100 }, split: 2", "`split` on `concurrent 100"),
        ("limit: log 3/s, split: 4", "`log 3/s` is too small for 4 parts: each would admit nothing"),
        ("limit: log 300/s, split: 1", "`split` cannot be 1; write a number of parts from 2 to 64"),
        ("limit: log 300/s, split: 1000", "`split` cannot be 1000"),
        ("limit: log 300/s, split: two", "`split` must be a whole number, found `two`"),
    ] {
        let told = told(bad);
        assert!(!told.is_empty() && told.iter().all(|line| line.contains(problem)), "{bad}: {told:?}");
    }
}
