//! Refusals: status, problem body and gRPC status, and what they reveal.

use http::{HeaderMap, StatusCode};
use tidegate_core::Outcome;
use tidegate_core::disclosure::{DenialKind, Disclosure};
use tidegate_http::{Audience, Caller, HeaderStyle, Reply, ReplyContext};
use tidegate_rules::{DecidedBy, Request, Ruled};

use crate::replies::support::{ALLOW, CONTEXT, body, deny, headers, limiter, list, ruled, ruling, text};

#[test]
fn a_denial_names_the_denying_limits_and_the_time_to_wait() {
    let ruling = ruling([ruled("burst", deny(1)), ruled("quota", ALLOW), ruled("daily", deny(59_000_001))]);
    let response = Reply::new(&ruling, &HeaderStyle::default(), CONTEXT).response();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["retry-after"], "60");
    assert_eq!(list(response.headers(), "ratelimit-policy").len(), 3);
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "The assigned quota has been exceeded",
        "status": 429,
        "detail": "Too many requests. Try again in 60 s.",
        "violated-policies": ["burst", "daily"],
    });
    assert_eq!(serde_json::from_slice::<serde_json::Value>(response.body()).unwrap(), expected);
}

#[test]
fn a_request_that_never_fits_has_no_retry_after() {
    let ruling = ruling([ruled("burst", Outcome::TooLarge { max: 10 }), ruled("daily", deny(1))]);
    let style = HeaderStyle::default();
    let reply = Reply::new(&ruling, &style, CONTEXT);
    assert_eq!((reply.status(), reply.retry_after()), (StatusCode::PAYLOAD_TOO_LARGE, None));
    let older = HeaderStyle { too_large: StatusCode::TOO_MANY_REQUESTS, ..style };
    assert_eq!(Reply::new(&ruling, &older, CONTEXT).status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!reply.response().headers().contains_key("retry-after"));
    let body = body(&ruling, &style, CONTEXT);
    assert_eq!(
        body["detail"],
        "This request costs more than can ever pass at once, which is 10. Retrying cannot succeed."
    );
}

#[test]
fn unauthenticated_callers_see_only_the_time_to_wait() {
    let style =
        HeaderStyle { audience: Audience::Authenticated, bucket: true, reset_after: true, ..HeaderStyle::default() };
    let stranger = ReplyContext { caller: Caller::Unauthenticated, ..CONTEXT };
    let denied = ruling([ruled("burst", deny(2_000_000))]);
    let shown = headers(&denied, &style, stranger);
    assert_eq!((shown.len(), text(&shown, "retry-after")), (1, Some("2")));
    assert_eq!(body(&denied, &style, stranger).get("violated-policies"), None);
    let too_large = ruling([ruled("burst", Outcome::TooLarge { max: 10 })]);
    assert!(!body(&too_large, &style, stranger)["detail"].as_str().unwrap().contains("10"));
    assert!(headers(&ruling([ruled("burst", ALLOW)]), &style, stranger).is_empty());
    assert_eq!(headers(&denied, &style, CONTEXT).len(), 8);
}

#[test]
fn a_request_without_its_key_is_forbidden() {
    let limiter = limiter("rules: [{ id: keyed, key: user, on_missing_key: refuse, limit: 10/s }]");
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    let response = Reply::new(&ruling, &HeaderStyle::default(), CONTEXT).response();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(body(&ruling, &HeaderStyle::default(), CONTEXT)["title"], "Forbidden");
}

#[test]
fn a_denial_by_store_outage_is_503() {
    let outage = |by| Ruled { by, ..ruled("login", deny(1_000_000)) };
    for (ruled, status) in [
        (vec![outage(DecidedBy::Deny)], 503),
        (vec![outage(DecidedBy::AllowEnded), ruled("burst", ALLOW)], 503),
        (vec![outage(DecidedBy::Local)], 429),
        (vec![outage(DecidedBy::Deny), ruled("burst", deny(1))], 429),
    ] {
        let ruling = ruling(ruled);
        let response = Reply::new(&ruling, &HeaderStyle::default(), CONTEXT).response();
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers()["retry-after"], "1");
    }
}

#[test]
fn a_hidden_limit_does_not_appear_in_the_response() {
    let hidden = |mut ruled: Ruled<'static>| {
        ruled.disclosure.is_shown = false;
        ruled
    };
    // The hidden limit has the least remaining, and denies.
    let mut global = hidden(ruled("global", deny(2_000_000)));
    global.decision.remaining = 0;
    let ruling = ruling([global, ruled("burst", ALLOW)]);
    let style = HeaderStyle { bucket: true, reset_after: true, ..HeaderStyle::default() };
    let response = Reply::new(&ruling, &style, CONTEXT).response();
    let shown = format!("{:?} {}", response.headers(), String::from_utf8_lossy(response.body()));
    assert!(!shown.contains("global"), "{shown}");
    assert_eq!(response.headers()["retry-after"], "2", "the wait is visible");
    assert_eq!(response.headers()["x-ratelimit-remaining"], "3");
    assert_eq!(response.headers()["x-ratelimit-bucket"], "burst");
    let too_large = crate::replies::support::ruling([hidden(ruled("global", Outcome::TooLarge { max: 77 }))]);
    let response = Reply::new(&too_large, &style, CONTEXT).response();
    let shown = format!("{:?} {}", response.headers(), String::from_utf8_lossy(response.body()));
    assert!(!shown.contains("77") && !shown.contains("global"), "{shown}");
    // Nor does a too large request reveal its size: the response is that of an exhausted limit.
    let exhausted = crate::replies::support::ruling([hidden(ruled("global", deny(2_000_000)))]);
    let ordinary = Reply::new(&exhausted, &style, CONTEXT).response();
    assert_eq!((response.status(), ordinary.status()), (StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS));
    assert_eq!((response.headers(), response.body()), (ordinary.headers(), ordinary.body()));
    // A visible limit still answers 413, with its own size.
    let both = [hidden(ruled("global", Outcome::TooLarge { max: 77 })), ruled("burst", Outcome::TooLarge { max: 99 })];
    let response = Reply::new(&crate::replies::support::ruling(both), &style, CONTEXT).response();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let shown = String::from_utf8_lossy(response.body());
    assert!(shown.contains("99") && !shown.contains("77"), "{shown}");
}

#[test]
fn a_rule_can_deny_with_the_problem_of_abnormal_usage() {
    let limiter = limiter("rules: [{ id: scan, problem: abnormal-usage, limit: 1/h }, { id: all, limit: 1/h }]");
    limiter.check_now(&Request::new("GET", "/"));
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    let body = body(&ruling, &HeaderStyle::default(), CONTEXT);
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#abnormal-usage-detected");
    assert_eq!(body["violated-policies"], serde_json::json!(["scan", "all"]));
}

#[test]
fn a_rule_that_sheds_denies_for_lack_of_capacity() {
    let limiter = limiter("rules: [{ id: fleet, shed: { slots: 1, ttl: 1h } }, { id: quota, limit: 2/h }]");
    let _held = limiter.check_now(&Request::new("GET", "/"));
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    let style = HeaderStyle::default();
    for (random, seconds) in [(0, "1"), (4_000_000_000_001, "2"), (3_999_999, "5")] {
        let reply = Reply::new(&ruling, &style, ReplyContext { random, ..CONTEXT });
        let response = reply.response();
        assert_eq!(
            (response.status(), text(response.headers(), "retry-after")),
            (StatusCode::SERVICE_UNAVAILABLE, Some(seconds))
        );
        assert_eq!(text(&reply.grpc_headers(), "grpc-status"), Some("14"));
    }
    let body = body(&ruling, &style, CONTEXT);
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!(body["detail"], "There are more requests than can be served. Try again in 1 s.");
}

/// It has cost 1, and no other request would fit in either: there is nothing that its client could send instead.
#[test]
fn a_request_without_slots_is_denied_for_lack_of_capacity_and_is_not_too_large() {
    for shed in ["{ slots: 0 }", "{ slots: 10, normal: 0%, low: 0% }"] {
        for show in ["true", "false"] {
            let limiter = limiter(&format!("rules: [{{ id: fleet, show: {show}, shed: {shed} }}]"));
            let ruling = limiter.check_now(&Request::new("GET", "/"));
            let style = HeaderStyle::default();
            let reply = Reply::new(&ruling, &style, ReplyContext { random: 3_999_999, ..CONTEXT });
            let response = reply.response();
            let told = (response.status().as_u16(), text(response.headers(), "retry-after"));
            assert_eq!(told, (503, Some("5")), "{shed}, {show}");
            assert_eq!(text(&reply.grpc_headers(), "grpc-status"), Some("14"), "{shed}, {show}");
            let body = body(&ruling, &style, CONTEXT);
            assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
        }
    }
}

#[test]
fn limits_without_slots_leave_the_other_limits_to_speak() {
    let denied = limiter("rules: [{ id: fleet, shed: { slots: 0 } }, { id: quota, limit: fixed 1/h }]");
    denied.check_now(&Request::new("GET", "/"));
    let used_up = limiter("rules: [{ id: fleet, mode: shadow, shed: { slots: 0 } }, { id: quota, limit: fixed 1/h }]");
    used_up.check_now(&Request::new("GET", "/"));
    let large = limiter("rules: [{ id: fleet, shed: { slots: 0 } }, { id: quota, limit: fixed 1/h, cost: hits }]");
    let blocked = limiter("rules: [{ id: blocked, limit: concurrent 0 }]");
    for (limiter, hits, status) in [(denied, 1, 503), (used_up, 1, 429), (large, 2, 413), (blocked, 1, 413)] {
        let ruling = limiter.check_now(&Request::new("GET", "/").hits(hits));
        assert_eq!(Reply::new(&ruling, &HeaderStyle::default(), CONTEXT).status().as_u16(), status, "{ruling:?}");
    }
}

#[test]
fn a_used_up_quota_says_when_it_recovers_also_beside_a_limit_without_slots() {
    let without_slots = ruled("fleet", Outcome::TooLarge { max: 0 });
    let without_slots = Ruled {
        disclosure: Disclosure { problem: DenialKind::ReducedCapacity, ..Disclosure::DEFAULT },
        ..without_slots
    };
    let both = ruling([without_slots, ruled("quota", deny(7_000_000))]);
    let response = Reply::new(&both, &HeaderStyle::default(), CONTEXT).response();
    assert_eq!((response.status().as_u16(), text(response.headers(), "retry-after")), (429, Some("7")));
}

#[test]
fn a_used_up_quota_comes_before_a_lack_of_capacity() {
    let limiter = limiter("rules: [{ id: fleet, shed: { slots: 1, ttl: 1h } }, { id: quota, limit: 1/h }]");
    let _held = limiter.check_now(&Request::new("GET", "/"));
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    let style = HeaderStyle::default();
    assert_eq!(Reply::new(&ruling, &style, CONTEXT).status(), StatusCode::TOO_MANY_REQUESTS);
    let body = body(&ruling, &style, CONTEXT);
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
}

#[test]
fn a_grpc_refusal_is_in_the_headers() {
    let style = HeaderStyle::default();
    let grpc = |ruled| Reply::new(&ruling([ruled]), &style, CONTEXT).grpc_headers();
    let denied = grpc(ruled("burst", deny(1_500_000)));
    assert_eq!((text(&denied, "grpc-status"), text(&denied, "content-type")), (Some("8"), Some("application/grpc")));
    assert_eq!(text(&denied, "grpc-message"), Some("Too many requests. Try again in 2 s."));
    assert!(denied.contains_key("grpc-status-details-bin"));
    let never = grpc(ruled("burst", Outcome::TooLarge { max: 1 }));
    assert_eq!((text(&never, "grpc-status"), never.get("grpc-status-details-bin")), (Some("8"), None));
    let outage = grpc(Ruled { by: DecidedBy::Deny, ..ruled("burst", deny(1)) });
    assert_eq!(text(&outage, "grpc-status"), Some("14"));
}

#[test]
fn grpc_is_recognised_by_its_content_type() {
    for (kind, expected) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("application/grpc;charset=utf-8", true),
        ("application/grpc-web", false),
        ("application/json", false),
    ] {
        let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, kind.parse().unwrap())]);
        assert_eq!(tidegate_http::is_grpc(&headers), expected, "{kind}");
    }
}
