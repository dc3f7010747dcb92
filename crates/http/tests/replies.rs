//! What clients are told, header by header.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so and stop")]

use std::borrow::Cow;

use http::{HeaderMap, StatusCode};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use smallvec::SmallVec;
use tidegate_core::disclosure::Disclosure;
use tidegate_core::limit::Recovery;
use tidegate_core::{Decision, ManualClock, MemoryStore, Micros, Outcome, RuleId, Timestamp, Verdict};
use tidegate_http::{Asked, Audience, Caller, HeaderStyle, IetfForm, Reply, ResetForm};
use tidegate_rules::{DecidedBy, Limiter, Mode, Request, RuleSet, Ruled, Ruling};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);
const ASKED: Asked = Asked { at: NOW, caller: Caller::Authenticated, random: 0 };

fn limiter(rules: &str) -> Limiter<MemoryStore<ManualClock>, ManualClock> {
    let rules = RuleSet::parse("rules.yaml", rules).unwrap_or_else(|findings| panic!("{findings}")).rules;
    let clock = ManualClock::at(NOW);
    Limiter::with_clock(rules, MemoryStore::with_clock(clock.clone()), clock)
}

fn ruled(name: &str, outcome: Outcome) -> Ruled<'static> {
    let decision = Decision { outcome, limit: 10, remaining: 3, reset_after: Micros::new(1_500_001) };
    let (recovery, disclosure) = (Recovery::AtOnce(Micros::from_secs(60)), Disclosure::DEFAULT);
    Ruled {
        id: Cow::Owned(RuleId::new(name)),
        mode: Mode::Enforce,
        decision,
        recovery,
        disclosure,
        by: DecidedBy::Store,
    }
}

fn ruling(ruled: impl IntoIterator<Item = Ruled<'static>>) -> Ruling<'static> {
    let ruled: SmallVec<[Ruled; 4]> = ruled.into_iter().collect();
    let decisions: Vec<_> = ruled.iter().map(|ruled| ruled.decision).collect();
    Ruling {
        generation: 1,
        verdict: Verdict::of(&decisions),
        refused: None,
        ruled,
        receipts: SmallVec::new(),
        second_names: None,
        unkeyed: None,
    }
}

fn deny(wait: u64) -> Outcome {
    Outcome::Deny { retry_after: Micros::new(wait) }
}

const ALLOW: Outcome = Outcome::Allow { delay: Micros::ZERO };

fn headers(ruling: &Ruling<'_>, style: &HeaderStyle, asked: Asked) -> HeaderMap {
    let mut headers = HeaderMap::new();
    Reply::new(ruling, style, asked).write_headers(&mut headers);
    headers
}

fn body(ruling: &Ruling<'_>, style: &HeaderStyle, asked: Asked) -> serde_json::Value {
    serde_json::from_slice(&Reply::new(ruling, style, asked).problem()).unwrap()
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

fn list(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, BareItem)>)> {
    let list: List = Parser::new(headers[name].as_bytes()).parse().unwrap();
    let entry = |entry: ListEntry| match entry {
        ListEntry::Item(item) => {
            let params = item.params.into_iter().map(|(name, value)| (name.as_str().to_owned(), value));
            (item.bare_item.as_string().unwrap().as_str().to_owned(), params.collect())
        }
        ListEntry::InnerList(inner) => panic!("{inner:?}"),
    };
    list.into_iter().map(entry).collect()
}

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
fn an_allowed_request_is_told_how_it_stands() {
    let limiter = limiter(RULES);
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    let headers = headers(&ruling, &HeaderStyle::default(), ASKED);
    let policy = "\"burst\";q=50;w=3, \"quota/hourly\";q=1000;w=3600, \"quota/streams\";q=8;qu=\"concurrent-requests\"";
    assert_eq!(text(&headers, "ratelimit-policy"), Some(policy));
    // What slides and what is released do not say when there is more.
    let standing = "\"burst\";r=49;t=1, \"quota/hourly\";r=999, \"quota/streams\";r=7";
    assert_eq!(text(&headers, "ratelimit"), Some(standing));
    // The slots are closest to their end.
    assert_eq!(text(&headers, "x-ratelimit-limit"), Some("8"));
    assert_eq!(text(&headers, "x-ratelimit-remaining"), Some("7"));
    assert_eq!(text(&headers, "x-ratelimit-reset"), Some("120"));
    assert_eq!(headers.len(), 5, "{headers:?}");
}

#[test]
fn a_limit_that_has_changed_is_written_anew() {
    let mut one = ruled("one", ALLOW);
    let policy = |ruled: &Ruled<'static>| {
        let headers = headers(&ruling([ruled.clone()]), &HeaderStyle::default(), ASKED);
        text(&headers, "ratelimit-policy").unwrap().to_owned()
    };
    assert_eq!(policy(&one), "\"one\";q=10;w=60");
    one.decision.limit = 11;
    assert_eq!(policy(&one), "\"one\";q=11;w=60");
    one.recovery = Recovery::OnRelease;
    assert_eq!(policy(&one), "\"one\";q=11;qu=\"concurrent-requests\"");
    // More rules than are remembered, each again and again.
    for number in (0..200).chain(0..200) {
        let ruled = ruled(&format!("rule {number}"), ALLOW);
        assert_eq!(policy(&ruled), format!("\"rule {number}\";q=10;w=60"));
    }
}

#[test]
fn each_family_of_headers_can_be_chosen() {
    let ruling = ruling([ruled("burst", ALLOW)]);
    let shown = |style: HeaderStyle| {
        let headers = headers(&ruling, &style, ASKED);
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
fn a_reset_is_the_same_second_in_every_answer_of_a_window() {
    let limiter = limiter("rules: [{ id: daily, limit: fixed 1000/day }]");
    let style = HeaderStyle { x_ratelimit: Some(ResetForm::Epoch), ..HeaderStyle::none() };
    for late in [0, 1, 400_000, 999_999] {
        let ruling = limiter.check_now(&Request::new("GET", "/"));
        let asked = Asked { at: NOW - Micros::new(late), ..ASKED };
        assert_eq!(headers(&ruling, &style, asked)["x-ratelimit-reset"], "1767312000");
    }
}

#[test]
fn a_denial_names_the_limits_that_deny_and_says_when_to_come_back() {
    let ruling = ruling([ruled("burst", deny(1)), ruled("quota", ALLOW), ruled("daily", deny(59_000_001))]);
    let response = Reply::new(&ruling, &HeaderStyle::default(), ASKED).response();
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
fn what_never_fits_is_not_asked_to_come_back() {
    let ruling = ruling([ruled("burst", Outcome::TooLarge { max: 10 }), ruled("daily", deny(1))]);
    let style = HeaderStyle::default();
    let reply = Reply::new(&ruling, &style, ASKED);
    assert_eq!((reply.status(), reply.retry_after()), (StatusCode::PAYLOAD_TOO_LARGE, None));
    let older = HeaderStyle { too_large: StatusCode::TOO_MANY_REQUESTS, ..style };
    assert_eq!(Reply::new(&ruling, &older, ASKED).status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!reply.response().headers().contains_key("retry-after"));
    let body = body(&ruling, &style, ASKED);
    assert_eq!(
        body["detail"],
        "This request costs more than can ever pass at once, which is 10. Trying again is no use."
    );
}

#[test]
fn strangers_learn_when_to_come_back_and_nothing_more() {
    let style =
        HeaderStyle { audience: Audience::Authenticated, bucket: true, reset_after: true, ..HeaderStyle::default() };
    let stranger = Asked { caller: Caller::Unauthenticated, ..ASKED };
    let denied = ruling([ruled("burst", deny(2_000_000))]);
    let shown = headers(&denied, &style, stranger);
    assert_eq!((shown.len(), text(&shown, "retry-after")), (1, Some("2")));
    assert_eq!(body(&denied, &style, stranger).get("violated-policies"), None);
    let too_large = ruling([ruled("burst", Outcome::TooLarge { max: 10 })]);
    assert!(!body(&too_large, &style, stranger)["detail"].as_str().unwrap().contains("10"));
    assert!(headers(&ruling([ruled("burst", ALLOW)]), &style, stranger).is_empty());
    assert_eq!(headers(&denied, &style, ASKED).len(), 8);
}

#[test]
fn a_request_without_its_key_is_forbidden() {
    let limiter = limiter("rules: [{ id: keyed, key: user, on_missing_key: refuse, limit: 10/s }]");
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    let response = Reply::new(&ruling, &HeaderStyle::default(), ASKED).response();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(!response.headers().contains_key("retry-after"));
    assert_eq!(body(&ruling, &HeaderStyle::default(), ASKED)["title"], "Forbidden");
}

#[test]
fn a_store_that_is_away_is_nobodys_quota() {
    let away = |by| Ruled { by, ..ruled("login", deny(1_000_000)) };
    for (ruled, status) in [
        (vec![away(DecidedBy::Deny)], 503),
        (vec![away(DecidedBy::AllowEnded), ruled("burst", ALLOW)], 503),
        (vec![away(DecidedBy::Local)], 429),
        (vec![away(DecidedBy::Deny), ruled("burst", deny(1))], 429),
    ] {
        let ruling = ruling(ruled);
        let response = Reply::new(&ruling, &HeaderStyle::default(), ASKED).response();
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers()["retry-after"], "1");
    }
}

#[test]
fn a_request_that_nothing_limits_has_no_headers() {
    assert!(headers(&ruling([]), &HeaderStyle::default(), ASKED).is_empty());
}

/// What a third request under this limit is told: `Retry-After`, and `t` of `RateLimit`.
fn told_when_empty(limit: &str) -> (u64, u64) {
    let limiter = limiter(&format!("rules: [{{ id: one, limit: {limit} }}]"));
    let mut told = (0, 0);
    for _ in 0..4 {
        let ruling = limiter.check_now(&Request::new("GET", "/"));
        let headers = headers(&ruling, &HeaderStyle::default(), ASKED);
        let Some(wait) = text(&headers, "retry-after") else { continue };
        let (_, parameters) = list(&headers, "ratelimit").remove(0);
        let (_, time) = parameters.into_iter().find(|(name, _)| name == "t").unwrap();
        told = (wait.parse().unwrap(), time.as_integer().unwrap().try_into().unwrap());
    }
    told
}

#[test]
fn there_is_more_no_later_than_a_denied_client_may_come_back() {
    for limit in
        ["2/min burst 2", "gcra 3/min", "meter 3/min", "sliding 2/min", "fixed 3/min", "log 3/min", "7/h burst 3"]
    {
        let (wait, time) = told_when_empty(limit);
        assert_eq!(time, wait, "{limit}");
    }
    assert_eq!(told_when_empty("2/min burst 2"), (30, 30));
}

#[test]
fn what_is_left_of_other_limits_is_told_up_to_when_a_denied_client_may_come_back() {
    let mut daily = ruled("daily", ALLOW);
    daily.decision.reset_after = Micros::from_secs(70_000);
    let denied = headers(&ruling([ruled("burst", deny(1_200_000)), daily.clone()]), &HeaderStyle::default(), ASKED);
    assert_eq!(text(&denied, "retry-after"), Some("2"));
    assert_eq!(text(&denied, "ratelimit"), Some("\"burst\";r=3;t=2, \"daily\";r=3;t=2"));
    let allowed = headers(&ruling([daily]), &HeaderStyle::default(), ASKED);
    assert_eq!(text(&allowed, "ratelimit"), Some("\"daily\";r=3;t=70000"));
}

#[test]
fn a_full_quota_does_not_say_when_there_is_more() {
    let limiter = limiter("rules: [{ id: one, limit: 5/min, cost: { from: claim:cost } }]");
    let ruling = limiter.check_now(&Request::new("GET", "/").claim("cost", "0"));
    assert_eq!(text(&headers(&ruling, &HeaderStyle::default(), ASKED), "ratelimit"), Some("\"one\";r=5"));
}

#[test]
fn a_hidden_limit_is_nowhere_to_be_seen() {
    let hidden = |mut ruled: Ruled<'static>| {
        ruled.disclosure.is_shown = false;
        ruled
    };
    // The hidden one has least left, and denies.
    let mut global = hidden(ruled("global", deny(2_000_000)));
    global.decision.remaining = 0;
    let ruling = ruling([global, ruled("burst", ALLOW)]);
    let style = HeaderStyle { bucket: true, reset_after: true, ..HeaderStyle::default() };
    let response = Reply::new(&ruling, &style, ASKED).response();
    let shown = format!("{:?} {}", response.headers(), String::from_utf8_lossy(response.body()));
    assert!(!shown.contains("global"), "{shown}");
    assert_eq!(response.headers()["retry-after"], "2", "when to come back is told");
    assert_eq!(response.headers()["x-ratelimit-remaining"], "3");
    assert_eq!(response.headers()["x-ratelimit-bucket"], "burst");
    let too_large = self::ruling([hidden(ruled("global", Outcome::TooLarge { max: 77 }))]);
    let response = Reply::new(&too_large, &style, ASKED).response();
    let shown = format!("{:?} {}", response.headers(), String::from_utf8_lossy(response.body()));
    assert!(!shown.contains("77") && !shown.contains("global"), "{shown}");
    // Nor can its size be found out by trying: it denies as one that is used up does.
    let used_up = self::ruling([hidden(ruled("global", deny(2_000_000)))]);
    let ordinary = Reply::new(&used_up, &style, ASKED).response();
    assert_eq!((response.status(), ordinary.status()), (StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS));
    assert_eq!((response.headers(), response.body()), (ordinary.headers(), ordinary.body()));
    // A limit that is shown says so all the same, and what it holds itself.
    let both = [hidden(ruled("global", Outcome::TooLarge { max: 77 })), ruled("burst", Outcome::TooLarge { max: 99 })];
    let response = Reply::new(&self::ruling(both), &style, ASKED).response();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let shown = String::from_utf8_lossy(response.body());
    assert!(shown.contains("99") && !shown.contains("77"), "{shown}");
}

#[test]
fn a_rule_may_call_what_it_denies_abnormal() {
    let limiter = limiter("rules: [{ id: scan, problem: abnormal-usage, limit: 1/h }, { id: all, limit: 1/h }]");
    limiter.check_now(&Request::new("GET", "/"));
    let ruling = limiter.check_now(&Request::new("GET", "/"));
    let body = body(&ruling, &HeaderStyle::default(), ASKED);
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#abnormal-usage-detected");
    assert_eq!(body["violated-policies"], serde_json::json!(["scan", "all"]));
}

#[test]
fn the_unit_of_a_quota_is_told_where_there_is_a_word_for_it() {
    let limiter = limiter(
        "rules: [{ id: up, limit: 900/min, cost: 'header:content-length' }, { id: tokens, limit: 900/min, cost: 7 }]",
    );
    let ruling = limiter.check_now(&Request::new("GET", "/").header("content-length", "9"));
    let headers = headers(&ruling, &HeaderStyle::default(), ASKED);
    let policy = "\"up\";q=900;qu=\"content-bytes\";w=60, \"tokens\";q=900;w=60";
    assert_eq!(text(&headers, "ratelimit-policy"), Some(policy));
}

#[test]
fn a_partition_is_told_as_a_hash_if_the_style_says_so() {
    let limiter = limiter("rules: [{ id: each, key: api_key, limit: 5/min }]");
    let request = Request::new("GET", "/").api_key("k_secret");
    let ruling = limiter.check_now(&request);
    let partitions = limiter.rules().rules.partitions(&request);
    let mut headers = HeaderMap::new();
    Reply::new(&ruling, &HeaderStyle::default(), ASKED).partitions(Some(&partitions)).write_headers(&mut headers);
    let (_, parameters) = list(&headers, "ratelimit").remove(0);
    let (name, value) = parameters.last().unwrap();
    assert_eq!((name.as_str(), value.as_byte_sequence().map(<[u8]>::len)), ("pk", Some(8)));
}

/// The response of an upstream with these headers, once ours are written.
fn beside(theirs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in theirs {
        headers.append(*name, value.parse().unwrap());
    }
    Reply::new(&ruling([ruled("own", ALLOW)]), &HeaderStyle::default(), ASKED).write_headers(&mut headers);
    headers
}

fn all<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

#[test]
fn an_upstream_that_limits_too_is_told_of_beside_us() {
    let headers = beside(&[
        ("ratelimit", "\"up\";r=1;t=5"),
        ("ratelimit", "\"other\";r=2"),
        ("ratelimit-policy", "\"up\";q=5;w=10"),
    ]);
    assert_eq!(all(&headers, "ratelimit"), ["\"own\";r=3;t=2, \"up\";r=1;t=5, \"other\";r=2"]);
    assert_eq!(all(&headers, "ratelimit-policy"), ["\"own\";q=10;w=60, \"up\";q=5;w=10"]);
    assert_eq!(list(&headers, "ratelimit").len(), 3);
    // In a form of older drafts, which is no list: it stays as it came.
    let headers = beside(&[("ratelimit", "limit=10, remaining=1, reset=5")]);
    assert_eq!(all(&headers, "ratelimit"), ["limit=10, remaining=1, reset=5"]);
}

#[test]
fn an_upstreams_limit_is_never_taken_for_one_of_ours() {
    let headers = beside(&[
        ("ratelimit", "\"own\";r=1000;t=5, own;r=2000, \"upstream:own\";r=7"),
        ("ratelimit", "other;r=2, 100;w=60, (\"own\");r=9, :AAAA:;r=1"),
        ("ratelimit-policy", "\"own\";q=5000;w=1"),
    ]);
    let told =
        "\"own\";r=3;t=2, \"upstream:own\";r=1000;t=5, \"upstream:own\";r=2000, \"upstream:own\";r=7, \"other\";r=2";
    assert_eq!(all(&headers, "ratelimit"), [told]);
    assert_eq!(all(&headers, "ratelimit-policy"), ["\"own\";q=10;w=60, \"upstream:own\";q=5000;w=1"]);
    let headers = beside(&[("ratelimit-policy", "100;w=60")]);
    assert_eq!(all(&headers, "ratelimit-policy"), ["\"own\";q=10;w=60"]);
}

#[test]
fn an_upstreams_conventional_family_stays_where_ours_says_nothing_of_what_is_left() {
    let style = HeaderStyle { x_ratelimit: None, bucket: true, reset_after: true, ..HeaderStyle::default() };
    let written = |theirs: &[(&'static str, &'static str)]| {
        let mut headers: HeaderMap =
            theirs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        Reply::new(&ruling([ruled("own", ALLOW)]), &style, ASKED).write_headers(&mut headers);
        let names = ["limit", "remaining", "reset", "reset-after", "bucket"];
        names.map(|name| all(&headers, &format!("x-ratelimit-{name}")).join("|"))
    };
    let theirs = [("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "9")];
    assert_eq!(written(&theirs), ["5", "4", "9", "", ""]);
    let bucket = ("x-ratelimit-bucket", "up");
    assert_eq!(written(&[theirs[0], theirs[1], theirs[2], bucket]), ["5", "4", "9", "", "up"]);
    assert_eq!(written(&[bucket]), ["", "", "", "", "up"]);
    assert_eq!(written(&[])[4], "own");
}

#[test]
fn of_two_conventional_families_the_stricter_is_told() {
    let family = |headers: &HeaderMap| {
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"].map(|name| all(headers, name).join("|"))
    };
    let ours = ["10", "3", "2"];
    let theirs = |left, reset| {
        beside(&[("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", left), ("x-ratelimit-reset", reset)])
    };
    assert_eq!(family(&theirs("1", "9")), ["5", "1", "9"]);
    assert_eq!(family(&theirs("3", "9")), ["5", "3", "9"]);
    assert_eq!(family(&theirs("3", "2")), ours);
    assert_eq!(family(&theirs("4", "9")), ours);
    assert_eq!(family(&theirs("many", "9")), ours);
    // What we would have added to theirs is not.
    let headers = beside(&[("x-ratelimit-remaining", "0")]);
    assert_eq!(family(&headers), ["", "0", ""]);
    assert_eq!(family(&beside(&[("x-ratelimit-bucket", "up"), ("x-ratelimit-limit", "1")])), ours);
}

#[test]
fn what_says_nothing_of_what_is_left_is_replaced() {
    let mut headers = HeaderMap::new();
    headers.append("x-ratelimit-limit", 1.into());
    headers.append("x-ratelimit-limit", 2.into());
    Reply::new(&ruling([ruled("burst", ALLOW)]), &HeaderStyle::default(), ASKED).write_headers(&mut headers);
    assert_eq!(headers.get_all("x-ratelimit-limit").iter().collect::<Vec<_>>(), ["10"]);
}

#[test]
fn grpc_tells_it_in_headers() {
    let style = HeaderStyle::default();
    let grpc = |ruled| Reply::new(&ruling([ruled]), &style, ASKED).grpc_headers();
    let denied = grpc(ruled("burst", deny(1_500_000)));
    assert_eq!((text(&denied, "grpc-status"), text(&denied, "content-type")), (Some("8"), Some("application/grpc")));
    assert_eq!(text(&denied, "grpc-message"), Some("Too many requests. Try again in 2 s."));
    assert!(denied.contains_key("grpc-status-details-bin"));
    let never = grpc(ruled("burst", Outcome::TooLarge { max: 1 }));
    assert_eq!((text(&never, "grpc-status"), never.get("grpc-status-details-bin")), (Some("8"), None));
    let away = grpc(Ruled { by: DecidedBy::Deny, ..ruled("burst", deny(1)) });
    assert_eq!(text(&away, "grpc-status"), Some("14"));
}

#[test]
fn grpc_is_known_by_its_content_type() {
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

proptest! {
    #[test]
    fn waiting_as_told_is_always_enough(wait in 1_u64..1 << 53, jitter in 0_u64..1 << 40, random in any::<u64>()) {
        let style = HeaderStyle { jitter: Micros::new(jitter), ..HeaderStyle::default() };
        let ruling = ruling([ruled("burst", deny(wait))]);
        let told = headers(&ruling, &style, Asked { random, ..ASKED });
        let told: u64 = text(&told, "retry-after").unwrap().parse().unwrap();
        prop_assert!(told >= 1 && told * 1_000_000 >= wait);
        prop_assert!(told <= (wait + jitter).div_ceil(1_000_000));
    }

    #[test]
    fn every_name_and_number_makes_a_list(
        name in "\\PC{1,20}|[\"\\\\ -~]{1,9}", limit in any::<u64>(), left in any::<u64>(), reset in any::<u64>(),
    ) {
        let decision = Decision { outcome: ALLOW, limit, remaining: left, reset_after: Micros::new(reset) };
        let ruling = ruling([Ruled { decision, ..ruled(&name, ALLOW) }, ruled("plain", ALLOW)]);
        let style = HeaderStyle { bucket: true, ..HeaderStyle::default() };
        let headers = headers(&ruling, &style, ASKED);
        let names = |header| list(&headers, header).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        prop_assert_eq!(names("ratelimit-policy").len(), 2);
        prop_assert_eq!(names("ratelimit-policy"), names("ratelimit"));
        prop_assert!(headers.contains_key("x-ratelimit-bucket"));
    }
}
