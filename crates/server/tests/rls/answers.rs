//! Responses to each kind of request.

use std::time::{SystemTime, UNIX_EPOCH};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::value::Kind;
use tidegate::rls::{MetadataStyle, Settings};
use tidegate_http::{HeaderStyle, ResetForm};
use tidegate_rules::{Charging, DomainTerms};

use super::support::{Served, descriptor, header, request, told, with_hits, with_limit};

/// Units are years, so that no window ends during a test.
const EDGE: &str = "
domain: edge
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 5, name: each_user } }
  - { key: tenant, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: dark, rate_limit: { unit: year, requests_per_unit: 1 }, shadow_mode: true }
  - { key: quota, rate_limit: { unit: year, requests_per_unit: 1 }, quota_mode: true, metadata: { pool: { name: large } } }
  - { key: free }
  - { key: open, rate_limit: { unlimited: true } }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: vip, rate_limit: { unit: year, requests_per_unit: 2, replaces: [{ name: each_user }] } }
  - { key: large, rate_limit: { unit: year, requests_per_unit: 4294967295 } }
  - { key: s, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: m, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: h, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: d, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: w, rate_limit: { unit: week, requests_per_unit: 1 } }
  - { key: M, rate_limit: { unit: month, requests_per_unit: 1 } }
";

/// Consecutive requests to one server: each line has the descriptors and the expected response.
#[tokio::test]
async fn the_protocol_line_by_line() {
    let served = Served::new(EDGE).await;
    for (asked, answered) in [
        // Statuses are in order and complete, including descriptors without a limit.
        (&["nothing=1", "user=a", "free=1", "open=1", "tenant=a"][..], "OK: OK 0, OK 4, OK 0, OK 4294967295, OK 2"),
        (&["user=a more=1"], "OK: OK 0"),
        // A denial is a normal response, and charges none of the descriptors.
        (&["tenant=a"], "OK: OK 1"),
        (&["tenant=a"], "OK: OK 0"),
        (&["user=a", "tenant=a"], "OVER_LIMIT: OK 4, OVER_LIMIT 0"),
        (&["user=a", "tenant=a"], "OVER_LIMIT: OK 4, OVER_LIMIT 0"),
        (&["user=a"], "OK: OK 3"),
        // A descriptor in shadow mode never reports a denial; one in quota mode reports it, but does not deny.
        (&["dark=1", "quota=1"], "OK: OK 0, OK 0"),
        (&["dark=1", "quota=1"], "OK: OK 0, OVER_LIMIT 0"),
        // A replaced limit does not apply.
        (&["user=a", "vip=1"], "OK: OK 0, OK 1"),
        (&["user=a"], "OK: OK 2"),
        // A limit of zero.
        (&["none=1"], "OVER_LIMIT: OVER_LIMIT 0"),
        (&["large=1"], "OK: OK 4294967294"),
    ] {
        assert_eq!(told(&served.ask(request("edge", asked)).await), answered, "{asked:?}");
    }
    // An unknown domain limits nothing.
    assert_eq!(told(&served.ask(request("other", &["user=a", "none=1"])).await), "OK: OK 0, OK 0");
}

#[tokio::test]
async fn hits_at_both_levels() {
    let served = Served::new(EDGE).await;
    let ask = async |descriptors: Vec<RateLimitDescriptor>, hits_addend| {
        let request = RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend };
        told(&served.ask(request).await)
    };
    // The request's hits: 0 means 1.
    assert_eq!(ask(vec![descriptor("user=a"), descriptor("tenant=a")], 0).await, "OK: OK 4, OK 2");
    assert_eq!(ask(vec![descriptor("user=a"), descriptor("tenant=a")], 2).await, "OK: OK 2, OK 0");
    // The descriptor's hits take precedence, and 0 is a check without a charge.
    assert_eq!(ask(vec![with_hits("user=a", 2), descriptor("tenant=b")], 3).await, "OK: OK 0, OK 0");
    assert_eq!(ask(vec![with_hits("user=b", 0)], 3).await, "OK: OK 5");
    assert_eq!(ask(vec![with_hits("user=b", 0)], 0).await, "OK: OK 5");
    assert_eq!(ask(vec![with_hits("user=a", 0)], 3).await, "OVER_LIMIT: OVER_LIMIT 0");
    assert_eq!(ask(vec![descriptor("user=b"), with_hits("user=a", 0)], 3).await, "OVER_LIMIT: OK 5, OVER_LIMIT 0");
    // More than the limit can ever admit.
    assert_eq!(ask(vec![with_hits("user=c", u64::MAX)], 0).await, "OVER_LIMIT: OVER_LIMIT 5");
    assert_eq!(ask(vec![descriptor("user=c")], u32::MAX).await, "OVER_LIMIT: OVER_LIMIT 5");
    // Negative hits are a refund.
    let given_back = RateLimitDescriptor { is_negative_hits: true, ..with_hits("user=a", 2) };
    assert_eq!(ask(vec![given_back], 0).await, "OK: OK 2");
    assert_eq!(ask(vec![descriptor("user=a")], 0).await, "OK: OK 1");
}

#[tokio::test]
async fn a_limit_that_comes_with_the_request_counts_instead_of_the_file_s() {
    let served = Served::new(EDGE).await;
    let ask = async |domain: &str, descriptor| {
        let request = RateLimitRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
        served.ask(request).await
    };
    let two = || with_limit("user=a", 2, RateLimitUnit::Year);
    for answered in ["OK: OK 1", "OK: OK 0", "OVER_LIMIT: OVER_LIMIT 0"] {
        let response = ask("edge", two()).await;
        assert_eq!(told(&response), answered);
        let limit = response.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit()), (2, Unit::Year));
    }
    assert_eq!(told(&ask("edge", with_limit("what=ever", 2, RateLimitUnit::Year)).await), "OK: OK 1");
    assert_eq!(told(&ask("edge", descriptor("user=a")).await), "OK: OK 4");
    assert_eq!(told(&ask("unknown", two()).await), "OK: OK 0");
}

#[tokio::test]
async fn limits_are_shown_as_the_file_has_them() {
    let served = Served::new(EDGE).await;
    let asked = ["user=a", "s=1", "m=1", "h=1", "d=1", "w=1", "M=1", "free=1"];
    let response = served.ask(request("edge", &asked)).await;
    let limits: Vec<_> = response
        .statuses
        .iter()
        .map(|status| {
            let limit = status.current_limit.as_ref();
            limit.map(|limit| (limit.name.as_str(), limit.requests_per_unit, limit.unit()))
        })
        .collect();
    let one = |unit| Some(("", 1, unit));
    assert_eq!(
        limits,
        [
            Some(("each_user", 5, Unit::Year)),
            one(Unit::Second),
            one(Unit::Minute),
            one(Unit::Hour),
            one(Unit::Day),
            one(Unit::Week),
            one(Unit::Month),
            None
        ]
    );
}

/// Microseconds since the epoch.
fn now() -> u128 {
    #[expect(clippy::disallowed_methods, reason = "what the server says is held against the machine's own clock")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap().as_micros()
}

#[tokio::test]
async fn resets_are_exact() {
    let served = Served::new(EDGE).await;
    const YEAR: u128 = 365 * 24 * 3_600 * 1_000_000;
    for _ in 0..5 {
        let before = now();
        let response = served.ask(request("edge", &["tenant=a"])).await;
        let after = now();
        let reset = response.statuses[0].duration_until_reset.as_ref().unwrap();
        let reset = u128::try_from(reset.seconds).unwrap() * 1_000_000 + u128::try_from(reset.nanos).unwrap() / 1_000;
        // The window's end is the same for all clients, to the microsecond; the clocks may differ slightly.
        let end = before - before % YEAR + YEAR;
        let slack = 50_000;
        assert!((end - after - slack..=end - before + slack).contains(&reset), "{reset} until {end} at {before}");
        let wait = header(&response, "retry-after").map(|wait| wait.parse::<u128>().unwrap());
        assert!(wait.is_none_or(|wait| wait * 1_000_000 >= reset), "{wait:?} for {reset}");
        assert_eq!(wait.is_some(), told(&response).starts_with("OVER"));
    }
}

#[tokio::test]
async fn responses_get_the_headers_of_the_chosen_style() {
    let plain = Served::new(EDGE).await;
    let shown = |response: &envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse| {
        let mut names: Vec<_> = response.response_headers_to_add.iter().map(|header| header.key.clone()).collect();
        names.sort();
        names.join(" ")
    };
    // Envoy writes the conventional headers itself.
    let all = "ratelimit ratelimit-policy retry-after";
    assert_eq!(shown(&plain.ask(request("edge", &["tenant=a"])).await), "");
    assert_eq!(
        shown(&plain.ask(request("edge", &["tenant=a", "s=1", "none=1"])).await),
        all.replace(" retry-after", "")
    );
    for _ in 0..2 {
        plain.ask(request("edge", &["tenant=a"])).await;
    }
    let denied = plain.ask(request("edge", &["tenant=a"])).await;
    assert_eq!(shown(&denied), all);
    assert_eq!(header(&denied, "ratelimit-policy"), Some("\"@edge|tenant\";q=3;w=31536000"));

    let headers = HeaderStyle { x_ratelimit: Some(ResetForm::Delta), ietf: None, ..HeaderStyle::default() };
    let served = Served::with(EDGE, Settings { headers, ..Settings::default() }).await;
    let allowed = served.ask(request("edge", &["tenant=a", "user=a"])).await;
    assert_eq!(shown(&allowed), "x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset");
    // The headers of the limit that is closest to exhaustion.
    assert_eq!(header(&allowed, "x-ratelimit-remaining"), Some("2"));
}

#[tokio::test]
async fn descriptors_are_counted_by_their_hits() {
    let served = Served::new(
        "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: dark, rate_limit: { unit: year, requests_per_unit: 10 }, shadow_mode: true }
",
    )
    .await;
    for (asked, hits_addend) in [("user=a", 4), ("user=a", 6), ("user=a", 5), ("dark=a", 10), ("dark=a", 3)] {
        served.ask(RateLimitRequest { hits_addend, ..request("d", &[asked]) }).await;
    }
    let text = tidegate::metrics::exposition(
        served.engine.metrics(),
        served.engine.limiter(),
        tidegate::metrics::Format::Text,
    );
    let count = |descriptor: &str, outcome: &str| -> Option<u64> {
        let series = format!("tidegate_descriptors_total{{descriptor=\"{descriptor}\",outcome=\"{outcome}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)).map(|count| count.parse().unwrap())
    };
    let all = |descriptor| ["within", "over", "over_in_shadow"].map(|outcome| count(descriptor, outcome));
    assert_eq!(all("d.user"), [Some(10), Some(5), None], "{text}");
    assert_eq!(all("d.dark"), [Some(10), Some(0), Some(3)], "{text}");
    // The sixth to the tenth hit leave nothing, and the first four leave enough.
    assert!(text.contains("tidegate_descriptors_near_limit_total{descriptor=\"d.user\"} 6\n"), "{text}");
}

#[tokio::test]
async fn requests_for_domains_that_no_file_has_are_counted() {
    let served = Served::new("{ domain: d, descriptors: [{ key: user }] }").await;
    for domain in ["d", "e", "f", "tidegate"] {
        served.ask(request(domain, &["user=a"])).await;
    }
    let text = tidegate::metrics::exposition(
        served.engine.metrics(),
        served.engine.limiter(),
        tidegate::metrics::Format::Text,
    );
    assert!(text.contains("\ntidegate_unknown_domain_requests_total 2\n"), "{text}");
}

#[tokio::test]
async fn dynamic_metadata_tells_what_has_something_left() {
    let served = Served::new(EDGE).await;
    assert_eq!(served.ask(request("edge", &["user=a"])).await.dynamic_metadata, None);
    let field = |response: &envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse, name: &str| {
        let metadata = response.dynamic_metadata.as_ref().unwrap();
        metadata.fields.get(name).and_then(|value| value.kind.clone())
    };
    let within = served.ask(request("edge", &["user=a", "quota=1"])).await;
    assert_eq!(field(&within, "domain"), Some(Kind::StringValue("edge".to_owned())));
    assert!(matches!(field(&within, "metadata"), Some(Kind::StructValue(given)) if given.fields.contains_key("pool")));
    assert!(matches!(field(&within, "quotaModeViolations"), Some(Kind::ListValue(list)) if list.values.is_empty()));
    let over = served.ask(request("edge", &["user=a", "quota=1"])).await;
    assert_eq!(field(&over, "metadata"), None);
    let Some(Kind::ListValue(violations)) = field(&over, "quotaModeViolations") else { panic!("{over:?}") };
    assert_eq!(violations.values[0].kind, Some(Kind::NumberValue(1.0)));

    let always = Served::with(EDGE, Settings { metadata: MetadataStyle::Always, ..Settings::default() }).await;
    let Some(Kind::ListValue(descriptors)) = field(&always.ask(request("edge", &["user=a"])).await, "descriptors")
    else {
        panic!("there are no descriptors");
    };
    assert_eq!(descriptors.values.len(), 1);
    let never = Served::with(EDGE, Settings { metadata: MetadataStyle::Never, ..Settings::default() }).await;
    assert_eq!(never.ask(request("edge", &["quota=1"])).await.dynamic_metadata, None);
}

#[tokio::test]
async fn a_domain_can_be_charged_as_the_original_does() {
    let always = DomainTerms { charging: Charging::Always, ..DomainTerms::default() };
    let settings = Settings { domains: [("edge".to_owned(), always)].into(), ..Settings::default() };
    let served = Served::with(EDGE, settings).await;
    let ask = async |asked: &[&str]| told(&served.ask(request("edge", asked)).await);
    assert_eq!(ask(&["user=a", "none=1"]).await, "OVER_LIMIT: OK 4, OVER_LIMIT 0");
    assert_eq!(ask(&["user=a", "none=1"]).await, "OVER_LIMIT: OK 3, OVER_LIMIT 0");
}

#[tokio::test]
async fn our_own_rules_can_be_asked() {
    let rules = "
rules:
  - { id: login, match: { method: POST, path: /login }, key: address, limit: fixed 2/year }
  - { id: all, limit: log 5/h }
";
    let served = Served::new(rules).await;
    let login = "method=POST path=/login remote_address=203.0.113.7";
    for answered in ["OK: OK 1", "OK: OK 0", "OVER_LIMIT: OVER_LIMIT 0"] {
        let response = served.ask(request("tidegate", &[login])).await;
        assert_eq!(told(&response), answered);
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "login");
    }
    assert_eq!(told(&served.ask(request("tidegate", &["method=GET path=/"])).await), "OK: OK 2");
    assert_eq!(told(&served.ask(request("other", &[login])).await), "OK: OK 0");
    let none = Served::with(rules, Settings { own_domain: None, ..Settings::default() }).await;
    assert_eq!(told(&none.ask(request("tidegate", &[login])).await), "OK: OK 0");
}

/// Envoy writes clients' headers from the statuses.
#[tokio::test]
async fn a_limit_that_clients_may_not_see_is_not_in_the_statuses() {
    let rules = "rules: [{ id: shown, limit: fixed 5/year }, { id: hidden, limit: fixed 1/year, show: false }]";
    let served = Served::new(rules).await;
    for answered in ["OK: OK 4", "OVER_LIMIT: OVER_LIMIT 4"] {
        let response = served.ask(request("tidegate", &["path=/"])).await;
        assert_eq!(told(&response), answered);
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "shown");
    }
    let served = Served::new("rules: [{ id: hidden, limit: fixed 1/year, show: false }]").await;
    for answered in ["OK: OK 0", "OVER_LIMIT: OVER_LIMIT 0"] {
        let response = served.ask(request("tidegate", &["path=/"])).await;
        assert_eq!(told(&response), answered);
        assert_eq!((&response.statuses[0].current_limit, &response.statuses[0].duration_until_reset), (&None, &None));
    }
}

#[tokio::test]
async fn parallel_calls_admit_exactly_the_limit() {
    const LIMIT: usize = 500;
    let rules = format!(
        "domain: d\ndescriptors:\n  - {{ key: k, rate_limit: {{ unit: year, requests_per_unit: {LIMIT} }} }}\n  - {{ key: j }}\n"
    );
    let served = Served::new(&rules).await;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = served.client().await;
        for _ in 0..16 {
            let mut client = client.clone();
            callers.spawn(async move {
                let mut admitted = 0;
                for _ in 0..8 {
                    let response = client.should_rate_limit(request("d", &["k=1", "j=1"])).await.unwrap().into_inner();
                    admitted += usize::from(told(&response).starts_with("OK"));
                }
                admitted
            });
        }
    }
    let admitted: usize = callers.join_all().await.into_iter().sum();
    assert_eq!(admitted, LIMIT, "of {}", 8 * 16 * 8);
}
