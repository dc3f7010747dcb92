//! Limits with their parts in fields.

use crate::rules::support::{charges, get, mistakes, rule};

#[test]
fn every_algorithm_can_be_spelled_out() {
    for (fields, short) in [
        ("rate: 20/s", "20/s"),
        ("rate: 20/s, burst: 50", "20/s burst 50"),
        ("algorithm: token-bucket, rate: 20/s, burst: 50", "20/s burst 50"),
        ("algorithm: gcra, rate: 100/min, burst: 10", "gcra 100/min burst 10"),
        ("algorithm: meter, rate: 10/s, burst: 20", "meter 10/s burst 20"),
        ("algorithm: shaper, rate: 10/s, queue: 50", "shaper 10/s queue 50"),
        ("algorithm: fixed, limit: 1000, window: 1h", "fixed 1000/h"),
        ("algorithm: fixed, limit: 1000, window: day", "fixed 1000/day"),
        ("algorithm: fixed, limit: 1000, calendar: month", "fixed 1000/month calendar"),
        ("algorithm: sliding, limit: 300, window: 1min, parts: 6", "sliding 300/min parts 6"),
        ("algorithm: log, limit: 5, window: 60s", "log 5/min"),
        ("algorithm: log, limit: 5, per: min", "log 5/min"),
        ("algorithm: concurrent, slots: 10, ttl: 30s", "concurrent 10 ttl 30s"),
        ("slots: 10, ttl: 30s", "concurrent 10 ttl 30s"),
        ("limit: 1_000, per: h", "1000/h"),
        ("limit: 20/s burst 50", "20/s burst 50"),
        ("limit: 20/s, burst: 50", "20/s burst 50"),
        ("algorithm: gcra, limit: 20/s, burst: 5", "gcra 20/s burst 5"),
    ] {
        assert_eq!(
            charges(&rule(&format!("limit: {{ {fields} }}")), &get("/")),
            [format!("r: 1 of {short}")],
            "{fields}"
        );
    }
}

#[test]
fn contradictions_are_named_with_their_place() {
    // The fields begin in column 9.
    for (fields, expected) in [
        ("rate: 20/s, limit: 5", "21 [limit] `rate` and `limit` in one limit; keep one of them"),
        ("rate: 20/s, slots: 5", "21 [slots] `rate` and `slots` in one limit; keep one of them"),
        ("limit: 5, window: 1h, calendar: day", "31 [calendar] `window` and `calendar` in one limit; keep one of them"),
        (
            "rate: 20/s, window: 1h",
            "29 [1h] `window` has no effect with `rate`; remove it, or write `limit: 100` and `window`",
        ),
        (
            "slots: 2, window: 1h",
            "27 [1h] `window` has no effect with `slots`; remove it, or write `limit: 100` and `window`",
        ),
        ("limit: 5, burst: 9", "16 [5] a `limit` without a period; add `window: 1h`, or `calendar: month`"),
        (
            "burst: 9",
            "7 [{] a limit without a number; write `rate: 20/s`, `limit: 100` with `window: 1h`, or `slots: 10`",
        ),
        (
            "rate: 20/s burst 5",
            "15 [20/s burst 5] `rate` is `20/s burst 5`; write one word; the rest of the limit has fields of its own",
        ),
        (
            "rate: 20/fortnight",
            "15 [20/fortnight] this limit reads as `token-bucket 20/fortnight`; no such unit of time: write ms, s, min, h, day, week, month or year",
        ),
        (
            "limit: 5, window: 1x",
            "27 [1x] this limit reads as `token-bucket 5/1x`; no such unit of time: write ms, s, min, h, day, week, month or year",
        ),
        (
            "rate: 20/s, queue: 5",
            "21 [queue] this limit reads as `token-bucket 20/s queue 5`; not understood: only `burst` may follow here",
        ),
        (
            "slots: 2, burst: 5",
            "19 [burst] this limit reads as `concurrent 2 burst 5`; not understood: only `ttl` may follow here",
        ),
        (
            "algorithm: gcar, rate: 1/s",
            "20 [gcar] this limit reads as `gcar 1/s`; no such algorithm: did you mean `gcra`?",
        ),
        ("rate: 20/s, burts: 5", "21 [burts] a limit has no `burts`; did you mean `burst`?"),
        ("rate: [1, 2]", "15 [[] `rate` must be text, found a list; write one value"),
    ] {
        let text = format!("rules:\n- id: r\n  limit:\n    - {{ {fields} }}");
        let expected = format!("4:{expected}");
        assert_eq!(mistakes(&text), [expected], "{fields}");
    }
}
