//! Every mistake: where it is, what is wrong, and how to correct it.

use crate::rules::support::{compare, findings, mistakes};

const IDS: &str = "write 1 to 100 letters, digits, `-`, `_`, `.` or `:`";
const FIELDS: &str = "write 1 to 8 keys of at most 64 bytes each with dots between, such as `usage.total_tokens`";
const PLACES: &str = "write `body:usage.total_tokens` or `header:X-Tokens-Used`, a list of such sources to add up, or a map of them with what each unit costs";

/// The text of the rule `r` from line 2, column 3 on, and the errors in it.
fn in_a_rule() -> Vec<(&'static str, String)> {
    let units = "no such unit of time: write ms, s, min, h, day, week, month or year";
    vec![
        ("id: r", "2:3 [i] a rule without a limit; write one such as `limit: 20/s burst 50`".into()),
        ("limit: 1/s", "2:3 [l] a rule without an `id`; give it one, and keep it: what was counted belongs to it".into()),
        ("id: a b\n  limit: 1/s", format!("2:7 [a b] `a b` cannot be an id; {IDS}")),
        ("id: ''\n  limit: 1/s", format!("2:7 [''] `` cannot be an id; {IDS}")),
        ("id: [r]\n  limit: 1/s", "2:7 [[] an id must be text, found a list; write one value".into()),
        ("id:\n  limit: 1/s", "2:3 [id] an id must be text, found nothing; write one value".into()),
        ("id: r\n  limmit: 1/s", "3:3 [limmit] a rule has no `limmit`; did you mean `limit`?".into()),
        ("id: r\n  limit: 1/x", format!("3:12 [x] `1/x` is not a limit; {units}")),
        ("id: r\n  limit: '1/x'", format!("3:10 ['1/x'] `1/x` is not a limit; {units}")),
        ("id: r\n  limit: 20/s brust 50", "3:15 [brust] `20/s brust 50` is not a limit; not understood: did you mean `burst`?".into()),
        ("id: r\n  limit:", "3:3 [limit] a limit must be text, found nothing; write one value".into()),
        ("id: r\n  limit: []", "3:10 [[] an empty list of limits; write `unlimited` if that is intended".into()),
        ("id: r\n  limit: 1/s\n  limits: [2/s]", "4:11 [[] `limit` and `limits` in one rule; keep `limits`, and list all limits there".into()),
        (
            "id: r\n  limits: [{ name: x, limit: 1/s }, { name: x, limit: 2/s }]",
            "3:37 [{] two limits of one rule are called `r/x`; give each its own `name`".into(),
        ),
        ("id: r\n  limits: [{ name: a/b, limit: 1/s }]", format!("3:20 [a/b] `a/b` cannot be a limit's name; {IDS}")),
        (
            "id: r\n  limit: 10/s\n  cost: 11",
            "3:10 [10/s] a request that costs 11 can never pass a limit that holds 10; raise the limit or its burst, or lower the cost".into(),
        ),
        (
            "id: r\n  limit: 10/s\n  cost: { from: 'header:X', otherwise: 11 }",
            "3:10 [10/s] a request that costs 11 can never pass a limit that holds 10; raise the limit or its burst, or lower the cost".into(),
        ),
        (
            "id: r\n  limit: 10/s\n  cost: { paths: { /a: 11 } }",
            "3:10 [10/s] a request that costs 11 can never pass a limit that holds 10; raise the limit or its burst, or lower the cost".into(),
        ),
        (
            "id: r\n  preset: login\n  cost: 11",
            "2:3 [i] a request that costs 11 can never pass a limit that holds 5; raise the limit or its burst, or lower the cost".into(),
        ),
        (
            "id: r\n  limit: 1/s\n  status: 302",
            "4:11 [302] `status` is 302, which is not an error status; write one from 400 to 599, such as `503`; without it a denial is 429".into(),
        ),
        ("id: r\n  limit: 1/s\n  cost: -1", "4:9 [-1] `cost` must be a whole number, found `-1`; write one such as 20 or 1_000".into()),
        ("id: r\n  limit: 1/s\n  cost: 1.5", "4:9 [1.5] `cost` must be a whole number, found `1.5`; write one such as 20 or 1_000".into()),
        (
            "id: r\n  limit: 1/s\n  cost: much",
            "4:9 [much] `much` is not a cost; write a number, `hits`, `header:NAME`, `query:NAME`, `claim:NAME`, `descriptor:NAME`, `body:FIELD` or `{ paths: { /search: 5 } }`".into(),
        ),
        (
            "id: r\n  limit: 1/s\n  cost: {}",
            "4:9 [{] `cost` needs one of `from` and `paths`; write `{ from: header:X-Cost, otherwise: 10 }` or `{ paths: { /search: 5 } }`".into(),
        ),
        (
            "id: r\n  limit: 1/s\n  cost: { paths: { /a: 5 }, times: 2 }",
            "4:9 [{] `times` has no effect with `paths`; remove it: each path has its own cost".into(),
        ),
        (
            "id: r\n  limit: 1/s\n  cost: { from: hits, times: 10 }",
            "4:17 [hits] `times` and `otherwise` have no effect on `hits`; write `cost: hits`".into(),
        ),
        (
            "id: r\n  limit: 1/s\n  cost: { from: hits, otherwise: 10 }",
            "4:17 [hits] `times` and `otherwise` have no effect on `hits`; write `cost: hits`".into(),
        ),
        ("id: r\n  limit: 1/s\n  cost: 'body:a..b'", format!("4:9 ['body:a..b'] `a..b` is not the path of a field; {FIELDS}")),
        ("id: r\n  limit: { limit: 1/s, settle: body }", format!("3:32 [body] `body` does not name a source in the response; {PLACES}")),
        ("id: r\n  limit: { limit: 1/s, settle: query:n }", format!("3:32 [query:n] `query:n` does not name a source in the response; {PLACES}")),
        ("id: r\n  limit: { limit: 1/s, settle: [] }", format!("3:32 [[] `settle` names no source in the response; {PLACES}")),
        ("id: r\n  limit: { limit: 1/s, settle: [body:a b] }", format!("3:33 [body:a b] `a b` is not the path of a field; {FIELDS}")),
        (
            "id: r\n  limit:\n    limit: 1/s\n    settle: { body:n: dear }",
            "5:23 [dear] the price of `body:n` must be a whole number, found `dear`; write one such as 20 or 1_000".into(),
        ),
        (
            "id: r\n  limit: { slots: 5, settle: body:n }",
            "3:30 [body:n] `concurrent 5 ttl 1min` is not settled; remove `settle`: slots come back when the response ends, and a queue has no costs to correct".into(),
        ),
        ("id: r\n  limit: 1/s\n  cost: { paths: { a: 5 } }", "4:20 [a] `a` is not a path pattern; a path begins with `/`".into()),
        ("id: r\n  preset: logn", "3:11 [logn] a preset cannot be `logn`; did you mean `login`?".into()),
        ("id: r\n  limit: 1/s\n  mode: on", "4:9 [on] `mode` cannot be `on`; write `enforce`, `shadow` or `off`".into()),
        ("id: r\n  limit: 1/s\n  mode: shadw", "4:9 [shadw] `mode` cannot be `shadw`; did you mean `shadow`?".into()),
        ("id: r\n  limit: 1/s\n  stop: maybe", "4:9 [maybe] `stop` cannot be `maybe`; write `true` or `false`".into()),
        ("id: r\n  limit: 1/s\n  priority: 1", "4:13 [1] `priority` cannot be `1`; write `critical`, `high`, `normal` or `low`".into()),
        ("id: r\n  limit: 1/s\n  on_missing_key: deny", "4:19 [deny] `on_missing_key` cannot be `deny`; write `share`, `skip` or `refuse`".into()),
        ("id: r\n  limit: 1/s\n  on_store_failure: alow", "4:21 [alow] `on_store_failure` cannot be `alow`; did you mean `allow`?".into()),
        (
            "id: r\n  limit: 1/s\n  on_store_failure: { allow_for: soon }",
            "4:34 [soon] `allow_for` is `soon`, which is not a duration; no such unit of time: write ms, s, min, h, day, week, month or year".into(),
        ),
        ("id: r\n  limit: 1/s\n  on_store_failure: { local_percent: 0 }", "4:38 [0] `local_percent` cannot be 0; write 1 to 100".into()),
        (
            "id: r\n  limit: 1/s\n  store_deadline: quick",
            "4:19 [quick] `store_deadline` is `quick`, which is not a duration; no such unit of time: write ms, s, min, h, day, week, month or year".into(),
        ),
        ("id: r\n  limit: 1/s\n  store_deadline: 1min", "4:19 [1min] `store_deadline` cannot be 1min; write 1ms to 10s".into()),
        ("id: r\n  limit: 1/s\n  store_deadline: 0s", "4:19 [0s] `store_deadline` cannot be 0s; write 1ms to 10s".into()),
        (
            "id: r\n  limit: 1_000_000/s burst 4_000_000_000_000_000\n  on_store_failure: { local_percent: 99 }",
            "4:21 [{] 99% of `1000000/s burst 4000000000000000` cannot be counted; a capacity of 3960000000000000 cannot be counted exactly at 990000 per 1s: give at most 45035996273704, or a rate that divides its period evenly (a round number per round period), or a fixed window".into(),
        ),
        ("id: r\n  limit: 1/s\n  replaces: x", "4:13 [x] there is no rule `x` to replace; name the id of a rule".into()),
        ("id: r\n  limit: 1/s\n  replaces: [r]", "4:14 [r] the rule `r` replaces itself; remove it from `replaces`".into()),
        ("id: rule-1\n  limit: 1/s\n- id: b\n  limit: 1/s\n  replaces: rule_1", "6:13 [rule_1] there is no rule `rule_1` to replace; did you mean `rule-1`?".into()),
        ("id: r\n  limit: 1/s\n- id: r\n  limit: 1/s", "4:7 [r] a second rule with the id `r`; the first is at rules.yaml:2:7; what was counted belongs to the id, so each rule needs its own".into()),
        ("id: r\n  tiers: 1/s", "3:10 [1/s] `tiers` must be a map, found text; write tiers and their limits, such as `{ free: 10/s, paid: 100/s }`".into()),
        ("id: r\n  tiers: { free: 1/x }", format!("3:20 [x] `1/x` is not a limit; {units}")),
    ]
}

/// The text of a rule's key, from line 4, column 8 on.
fn in_a_key() -> Vec<(&'static str, String)> {
    vec![
        ("usr", "4:8 [usr] `usr` is not a part of a key; did you mean `user`?".into()),
        (
            "header",
            "4:8 [header] `header` is not a part of a key; write `global`, or one or more of `address`, `api_key`, `user`, `tier`, `method`, `host`, `route`, `header:NAME`, `cookie:NAME`, `query:NAME`, `claim:NAME`, `path:NAME`, `descriptor:NAME`".into(),
        ),
        ("[]", "4:8 [[] a key without parts; write `global` if all requests are to share one".into()),
        ("", "4:3 [key] a part of a key must be text, found nothing; write one value".into()),
        ("{}", "4:8 [{] empty key part; write `{ address: { ipv4: 24, ipv6: 56 } }`".into()),
        ("{ header: X-Tenant }", "4:10 [header] a part of a key is one word; write `header:X-Tenant`".into()),
        ("{ address: { ipv4: 33 } }", "4:27 [33] an ipv4 address has 32 bits; write 0 to 32".into()),
        ("{ address: { ipv6: -1 } }", "4:27 [-1] `ipv6` must be a whole number, found `-1`; write one such as 20 or 1_000".into()),
        ("path:id", "4:8 [path:id] no segment is called `id`; name the segment in every path of `match`, such as `/users/{id}`".into()),
    ]
}

/// The text of a rule's conditions, from line 4, column 10 on.
fn in_a_match() -> Vec<(&'static str, String)> {
    vec![
        ("[]", "4:10 [[] `match` must be a map, found a list; write a map with `method`, `path`, `host`, `header`, `query`, `cookie`, `claim`, `tier`, `user`, `api_key`, `address` or `descriptor`".into()),
        ("{ pth: /a }", "4:12 [pth] `match` has no `pth`; did you mean `path`?".into()),
        ("{ path: a }", "4:18 [a] `a` is not a path pattern; a path begins with `/`".into()),
        ("{ path: /a/ }", "4:18 [/a/] `/a/` is not a path pattern; this path is never seen: paths are normalised before they are matched; write `/a`".into()),
        ("{ path: /a b }", "4:18 [/a b] `/a b` is not a path pattern; this path is never seen: paths are normalised before they are matched; write `/a%20b`".into()),
        ("{ path: '/a/../{b}' }", "4:18 ['/a/../{b}'] `/a/../{b}` is not a path pattern; this path is never seen: paths are normalised before they are matched; write `/{b}`".into()),
        ("{ path: /a** }", "4:18 [/a**] `/a**` is not a path pattern; `**` matches whole segments: write it between slashes".into()),
        ("{ path: '/x{a}' }", "4:18 ['/x{a}'] `/x{a}` is not a path pattern; `x{a}` is not a name in braces: write `{name}` as a whole segment, with letters, digits and `_`".into()),
        ("{ path: '/{a}/{a}' }", "4:18 ['/{a}/{a}'] `/{a}/{a}` is not a path pattern; `{a}` is used twice".into()),
        ("{ path: /**/a/**/b }", "4:18 [/**/a/**/b] `/**/a/**/b` is not a path pattern; `**` is allowed once at the end and once before it: more would make matching slow".into()),
        ("{ path: [] }", "4:18 [[] `path` is an empty list, which nothing matches; name a path, or remove it".into()),
        ("{ path: {} }", "4:18 [{] `path` is an empty map; write one, a list, or `{ not: … }`".into()),
        ("{ path: { glob: /a } }", "4:20 [glob] `path` has no `glob`; `path` has `not`".into()),
        ("{ address: 10.0.0.1/8 }", "4:21 [10.0.0.1/8] `10.0.0.1/8` has bits set outside its network; write `10.0.0.0/8`".into()),
        ("{ address: nowhere }", "4:21 [nowhere] `nowhere` is neither an address nor a network; write one such as `10.0.0.0/8`, `192.0.2.7` or `2001:db8::/32`".into()),
        ("{ address: {} }", "4:21 [{] `address` is an empty map; write one, a list, or `{ not: … }`".into()),
        ("{ header: X }", "4:20 [X] `header` must be a map, found text; write names and values, such as `{ X-Env: prod }`".into()),
        ("{ header: { X: } }", "4:22 [X] `X` has no value; write one, or `{ present: true }` for any".into()),
        ("{ header: { X: [] } }", "4:25 [[] `X` is an empty list, which nothing matches; name a value, or remove it".into()),
        ("{ header: { X: {} } }", "4:25 [{] `X` has 0 operators; one is allowed; write one, or a list of several such maps: `exact`, `glob`, `regex`, `not` or `present`".into()),
        ("{ header: { X: { exact: a, glob: b } } }", "4:25 [{] `X` has 2 operators; one is allowed; write one, or a list of several such maps: `exact`, `glob`, `regex`, `not` or `present`".into()),
        ("{ header: { X: { rgex: a } } }", "4:27 [rgex] `X` has no `rgex`; did you mean `regex`?".into()),
        ("{ header: { X: { regex: '(' } } }", "4:34 ['('] `(` is not a regular expression; unclosed group".into()),
        ("{ header: { X: { regex: '(a{99}){99}' } } }", "4:34 ['(a{99}){99}'] `(a{99}){99}` is too large once compiled; at most 262144 bytes: bound its repetitions, or use `(?-u)` and ASCII classes".into()),
        ("{ header: { X: { present: sure } } }", "4:36 [sure] `present` cannot be `sure`; write `true` or `false`".into()),
        ("{ header: { X-A: a, x-a: b } }", "4:30 [x-a] `x-a` is a header that is named above; keep one of them".into()),
    ]
}

#[test]
fn each_mistake_in_a_rule_is_told_with_its_place_and_a_remedy() {
    compare(in_a_rule().into_iter().map(|(text, expected)| {
        let text = format!("rules:\n- {text}");
        (text.clone(), mistakes(&text), vec![expected])
    }));
}

#[test]
fn each_mistake_in_a_key_is_told_with_its_place_and_a_remedy() {
    compare(in_a_key().into_iter().map(|(text, expected)| {
        let text = format!("rules:\n- id: r\n  limit: 1/s\n  key: {text}");
        (text.clone(), mistakes(&text), vec![expected])
    }));
}

#[test]
fn each_mistake_in_a_match_is_told_with_its_place_and_a_remedy() {
    compare(in_a_match().into_iter().map(|(text, expected)| {
        let text = format!("rules:\n- id: r\n  limit: 1/s\n  match: {text}");
        (text.clone(), mistakes(&text), vec![expected])
    }));
}

#[test]
fn each_mistake_in_a_file_is_told_with_its_place_and_a_remedy() {
    let mut cases = Vec::new();
    let map = "write a map with `include`, `tiers`, `regions` or `rules`";
    for (text, expected) in [
        ("rule: []", vec!["1:1 [rule] a rules file has no `rule`; did you mean `rules`?".to_owned()]),
        ("- id: a", vec![format!("1:1 [-] a rules file must be a map, found a list; {map}")]),
        ("text", vec![format!("1:1 [text] a rules file must be a map, found text; {map}")]),
        ("{}", vec!["1:1 [{] a rules file without rules; write `rules:` and a list of rules below it".to_owned()]),
        ("rules: { id: a }", vec!["1:8 [{] `rules` must be a list, found a map; begin each rule with `- id: …`".to_owned()]),
        ("rules: [text]", vec!["1:9 [text] a rule must be a map, found text; begin it with `- id: …`".to_owned()]),
        ("tiers: []", vec!["1:8 [[] `tiers` must be a map, found a list; write a map with `from`, `api_keys` or `default`".to_owned()]),
        ("tiers: { from: user }", vec!["1:16 [user] `user` is not a source of tiers; write `header:NAME`, `claim:NAME` or `store`".to_owned()]),
        ("tiers: { api_keys: [a] }", vec!["1:20 [[] `api_keys` must be a map, found a list; write API keys and their tiers, such as `{ k_123: paid }`".to_owned()]),
        ("tiers: { default: [a] }", vec!["1:19 [[] `default` must be text, found a list; write one value".to_owned()]),
    ] {
        cases.push((text.to_owned(), mistakes(text), expected));
    }
    compare(cases);
}

#[test]
fn all_mistakes_come_at_once_in_the_order_of_the_file() {
    let text = "rules:
  - id: login
    mach: { path: /login }
    key: adress
    limit: 5/mim
    limit: 6/min
  - id: login
    limit: 10/s
    cost: 11
    mode: maybe
    replaces: [nobody, login]
";
    let lines = mistakes(text);
    let places: Vec<&str> = lines.iter().map(|line| line.split(']').next().unwrap()).collect();
    assert_eq!(
        places,
        [
            "3:5 [mach",
            "4:10 [adress",
            "5:14 [mim",
            "6:5 [limit",
            "7:9 [login",
            "8:12 [10/s",
            "10:11 [maybe",
            "11:16 [nobody",
            "11:24 [login"
        ]
    );
}

#[test]
fn a_faulty_rule_makes_no_other_rule_faulty() {
    let text = "rules: [{ id: a, limit: 1/x }, { id: b, limit: 1/s, replaces: a }]";
    assert_eq!(mistakes(text).len(), 1, "{:?}", mistakes(text));
    let text = "rules: [{ id: a, limit: 1/s, stop: true, match: { path: x } }, { id: b, limit: 1/s }]";
    assert_eq!(mistakes(text).len(), 1, "{:?}", mistakes(text));
}

#[test]
fn columns_count_characters() {
    let text = "# ünïcödé\nrules: [{ id: a, match: { user: [ж, 日本] }, limit: 1/s, limmit: 2 }]";
    assert_eq!(mistakes(text)[0], "2:56 [limmit] a rule has no `limmit`; did you mean `limit`?");
}

#[test]
fn a_mistake_is_shown_with_its_line() {
    let text = "rules:\n  - id: login\n    limit: 5/mim\n";
    let expected = "\
error: `5/mim` is not a limit
 --> rules.yaml:3:14
  |
3 |     limit: 5/mim
  |              ^^^
  = no such unit of time: did you mean `min`?

";
    assert_eq!(findings(text).to_string(), expected);
}

#[test]
fn a_mistake_in_a_long_line_is_shown_around_its_place() {
    let text = format!(
        "rules: [{{ id: a, match: {{ user: '{}' }}, limit: 1/x, key: '{}' }}]",
        "u".repeat(500),
        "k".repeat(300)
    );
    let shown = findings(&text);
    assert!(shown.0.iter().all(|finding| finding.excerpt.chars().count() <= 100));
    let marked = |finding: &tidegate_rules::Diagnostic| -> String {
        finding.excerpt.chars().skip(finding.mark.0).take(finding.mark.1).collect()
    };
    assert_eq!(marked(&shown.0[0]), "x");
}

#[test]
fn errors_in_aliases_are_named_with_the_anchor_s_place() {
    let text = "rules:\n- { id: a, limit: &l 1/x }\n- { id: b, limit: *l }\n";
    let lines = mistakes(text);
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line.starts_with("2:24 [x]")), "{lines:?}");
}
