//! Rate-limit headers, header by header.

use http::HeaderMap;
use proptest::prelude::*;
use tidegate_core::limit::Recovery;
use tidegate_core::{Decision, Micros};
use tidegate_http::{HeaderStyle, IetfForm, Reply, ReplyContext, ResetForm};
use tidegate_rules::{Request, Ruled};

use crate::replies::support::{ALLOW, CONTEXT, NOW, deny, headers, limiter, list, ruled, ruling, text};

const RULES: &str = "
rules:
  - id: burst
    limit: 20/s burst 50
  - id: quota
    limits:
      - { name: hourly, limit: sliding 1000/h }
      - { name: streams, slots: 8, ttl: 2min }
  - id: stricter
    limit: 1/h
    mode: shadow
";

#[test]
fn an_allowed_request_gets_all_default_headers() {
    let limiter = limiter(RULES);
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    let headers = headers(&ruling, &HeaderStyle::default(), CONTEXT);
    let policy = "\"burst\";q=50;w=3, \"quota/hourly\";q=1000;w=3600, \"quota/streams\";q=8;qu=\"concurrent-requests\"";
    assert_eq!(text(&headers, "ratelimit-policy"), Some(policy));
    // Sliding windows and slots have no `t`.
    let standing = "\"burst\";r=49;t=1, \"quota/hourly\";r=999, \"quota/streams\";r=7";
    assert_eq!(text(&headers, "ratelimit"), Some(standing));
    // The slots are closest to exhaustion.
    assert_eq!(text(&headers, "x-ratelimit-limit"), Some("8"));
    assert_eq!(text(&headers, "x-ratelimit-remaining"), Some("7"));
    assert_eq!(text(&headers, "x-ratelimit-reset"), Some("120"));
    assert_eq!(headers.len(), 5, "{headers:?}");
}

#[test]
fn a_changed_limit_is_not_served_from_the_cache() {
    let mut one = ruled("one", ALLOW);
    let policy = |ruled: &Ruled<'static>| {
        let headers = headers(&ruling([ruled.clone()]), &HeaderStyle::default(), CONTEXT);
        text(&headers, "ratelimit-policy").unwrap().to_owned()
    };
    assert_eq!(policy(&one), "\"one\";q=10;w=60");
    one.decision.limit = 11;
    assert_eq!(policy(&one), "\"one\";q=11;w=60");
    one.recovery = Recovery::OnRelease;
    assert_eq!(policy(&one), "\"one\";q=11;qu=\"concurrent-requests\"");
    // More rules than the cache has slots, each twice.
    for number in (0..200).chain(0..200) {
        let ruled = ruled(&format!("rule {number}"), ALLOW);
        assert_eq!(policy(&ruled), format!("\"rule {number}\";q=10;w=60"));
    }
}

#[test]
fn each_set_of_headers_can_be_selected() {
    let ruling = ruling([ruled("burst", ALLOW)]);
    let shown = |style: HeaderStyle| {
        let headers = headers(&ruling, &style, CONTEXT);
        let mut shown: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        shown.sort();
        shown
    };
    let none = HeaderStyle::none();
    assert!(shown(none).is_empty());
    assert_eq!(shown(HeaderStyle { bucket: true, ..none }), ["x-ratelimit-bucket: burst"]);
    assert_eq!(shown(HeaderStyle { reset_after: true, ..none }), ["x-ratelimit-reset-after: 1.501"]);
    assert_eq!(
        shown(HeaderStyle { x_ratelimit: Some(ResetForm::Delta), ..none }),
        ["x-ratelimit-limit: 10", "x-ratelimit-remaining: 3", "x-ratelimit-reset: 2"]
    );
    assert_eq!(
        shown(HeaderStyle { x_ratelimit: Some(ResetForm::Epoch), ..none }),
        ["x-ratelimit-limit: 10", "x-ratelimit-remaining: 3", "x-ratelimit-reset: 1767225602"]
    );
    assert_eq!(
        shown(HeaderStyle { ietf: Some(IetfForm::Draft11), ..none }),
        ["ratelimit-policy: \"burst\";q=10;w=60", "ratelimit: \"burst\";r=3;t=2"]
    );
    assert!(shown(HeaderStyle { on_allowed: false, ..HeaderStyle::default() }).is_empty());
}

#[test]
fn a_reset_is_the_same_second_in_every_response_of_a_window() {
    let limiter = limiter("rules: [{ id: daily, limit: fixed 1000/day }]");
    let style = HeaderStyle { x_ratelimit: Some(ResetForm::Epoch), ..HeaderStyle::none() };
    for late in [0, 1, 400_000, 999_999] {
        let ruling = limiter.check_now(&Request::new("GET", "/"));
        let context = ReplyContext { at: NOW - Micros::new(late), ..CONTEXT };
        assert_eq!(headers(&ruling, &style, context)["x-ratelimit-reset"], "1767312000");
    }
}

#[test]
fn a_request_without_limits_has_no_headers() {
    assert!(headers(&ruling([]), &HeaderStyle::default(), CONTEXT).is_empty());
}

/// `Retry-After` and the `t` of `RateLimit` on the last of four requests under this limit.
fn waits_when_exhausted(limit: &str) -> (u64, u64) {
    let limiter = limiter(&format!("rules: [{{ id: one, limit: {limit} }}]"));
    let mut waits = (0, 0);
    for _ in 0..4 {
        let ruling = limiter.check_now(&Request::new("GET", "/"));
        let headers = headers(&ruling, &HeaderStyle::default(), CONTEXT);
        let Some(wait) = text(&headers, "retry-after") else { continue };
        let (_, parameters) = list(&headers, "ratelimit").remove(0);
        let (_, time) = parameters.into_iter().find(|(name, _)| name == "t").unwrap();
        waits = (wait.parse().unwrap(), time.as_integer().unwrap().try_into().unwrap());
    }
    waits
}

#[test]
fn the_t_of_an_exhausted_limit_equals_retry_after() {
    for limit in
        ["2/min burst 2", "gcra 3/min", "meter 3/min", "sliding 2/min", "fixed 3/min", "log 3/min", "7/h burst 3"]
    {
        let (wait, time) = waits_when_exhausted(limit);
        assert_eq!(time, wait, "{limit}");
    }
    assert_eq!(waits_when_exhausted("2/min burst 2"), (30, 30));
}

#[test]
fn the_t_of_other_limits_never_exceeds_retry_after() {
    let mut daily = ruled("daily", ALLOW);
    daily.decision.reset_after = Micros::from_secs(70_000);
    let denied = headers(&ruling([ruled("burst", deny(1_200_000)), daily.clone()]), &HeaderStyle::default(), CONTEXT);
    assert_eq!(text(&denied, "retry-after"), Some("2"));
    assert_eq!(text(&denied, "ratelimit"), Some("\"burst\";r=3;t=2, \"daily\";r=3;t=2"));
    let allowed = headers(&ruling([daily]), &HeaderStyle::default(), CONTEXT);
    assert_eq!(text(&allowed, "ratelimit"), Some("\"daily\";r=3;t=70000"));
}

#[test]
fn a_full_quota_has_no_t() {
    let limiter = limiter("rules: [{ id: one, limit: 5/min, cost: { from: claim:cost } }]");
    let ruling = limiter.check_now(&Request::new("GET", "/").claim("cost", "0"));
    assert_eq!(text(&headers(&ruling, &HeaderStyle::default(), CONTEXT), "ratelimit"), Some("\"one\";r=5"));
}

#[test]
fn the_unit_of_a_quota_is_named_if_the_draft_has_a_name() {
    let limiter = limiter(
        "rules: [{ id: up, limit: 900/min, cost: 'header:content-length' }, { id: tokens, limit: 900/min, cost: 7 }]",
    );
    let ruling = limiter.check_now(&Request::new("GET", "/").header("content-length", "9"));
    let headers = headers(&ruling, &HeaderStyle::default(), CONTEXT);
    let policy = "\"up\";q=900;qu=\"content-bytes\";w=60, \"tokens\";q=900;w=60";
    assert_eq!(text(&headers, "ratelimit-policy"), Some(policy));
}

#[test]
fn a_partition_key_is_a_hash() {
    let limiter = limiter("rules: [{ id: each, key: api_key, limit: 5/min }]");
    let request = Request::new("GET", "/").api_key("k_secret");
    let ruling = limiter.check_now(&request);
    let partitions = limiter.rules().rules.partitions(&request);
    let mut headers = HeaderMap::new();
    Reply::new(&ruling, &HeaderStyle::default(), CONTEXT).partitions(Some(&partitions)).write_headers(&mut headers);
    let (_, parameters) = list(&headers, "ratelimit").remove(0);
    let (name, value) = parameters.last().unwrap();
    assert_eq!((name.as_str(), value.as_byte_sequence().map(<[u8]>::len)), ("pk", Some(8)));
}

proptest! {
    #[test]
    fn waiting_for_retry_after_is_always_enough(wait in 1_u64..1 << 53, jitter in 0_u64..1 << 40, random in any::<u64>()) {
        let style = HeaderStyle { jitter: Micros::new(jitter), ..HeaderStyle::default() };
        let ruling = ruling([ruled("burst", deny(wait))]);
        let denied = headers(&ruling, &style, ReplyContext { random, ..CONTEXT });
        let seconds: u64 = text(&denied, "retry-after").unwrap().parse().unwrap();
        prop_assert!(seconds >= 1 && seconds * 1_000_000 >= wait);
        prop_assert!(seconds <= (wait + jitter).div_ceil(1_000_000));
    }

    #[test]
    fn every_name_and_number_is_a_valid_list(
        name in "\\PC{1,20}|[\"\\\\ -~]{1,9}", limit in any::<u64>(), left in any::<u64>(), reset in any::<u64>(),
    ) {
        let decision = Decision { outcome: ALLOW, limit, remaining: left, reset_after: Micros::new(reset) };
        let ruling = ruling([Ruled { decision, ..ruled(&name, ALLOW) }, ruled("plain", ALLOW)]);
        let style = HeaderStyle { bucket: true, ..HeaderStyle::default() };
        let headers = headers(&ruling, &style, CONTEXT);
        let names = |header| list(&headers, header).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        prop_assert_eq!(names("ratelimit-policy").len(), 2);
        prop_assert_eq!(names("ratelimit-policy"), names("ratelimit"));
        prop_assert!(headers.contains_key("x-ratelimit-bucket"));
    }
}
