//! Responses of an upstream with its own rate-limit headers.

use http::HeaderMap;
use tidegate_http::{HeaderStyle, Reply};

use crate::replies::support::{ALLOW, CONTEXT, all, list, ruled, ruling};

/// The headers of an upstream's response, merged with Tidegate's.
fn merged(theirs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in theirs {
        headers.append(*name, value.parse().unwrap());
    }
    Reply::new(&ruling([ruled("own", ALLOW)]), &HeaderStyle::default(), CONTEXT).write_headers(&mut headers);
    headers
}

#[test]
fn an_upstreams_limits_are_listed_after_ours() {
    let headers = merged(&[
        ("ratelimit", "\"up\";r=1;t=5"),
        ("ratelimit", "\"other\";r=2"),
        ("ratelimit-policy", "\"up\";q=5;w=10"),
    ]);
    assert_eq!(all(&headers, "ratelimit"), ["\"own\";r=3;t=2, \"up\";r=1;t=5, \"other\";r=2"]);
    assert_eq!(all(&headers, "ratelimit-policy"), ["\"own\";q=10;w=60, \"up\";q=5;w=10"]);
    assert_eq!(list(&headers, "ratelimit").len(), 3);
    // The form of an older draft is not a list: it stays unchanged.
    let headers = merged(&[("ratelimit", "limit=10, remaining=1, reset=5")]);
    assert_eq!(all(&headers, "ratelimit"), ["limit=10, remaining=1, reset=5"]);
}

#[test]
fn an_upstreams_limit_with_our_name_is_renamed() {
    let headers = merged(&[
        ("ratelimit", "\"own\";r=1000;t=5, own;r=2000, \"upstream:own\";r=7"),
        ("ratelimit", "other;r=2, 100;w=60, (\"own\");r=9, :AAAA:;r=1"),
        ("ratelimit-policy", "\"own\";q=5000;w=1"),
    ]);
    let expected =
        "\"own\";r=3;t=2, \"upstream:own\";r=1000;t=5, \"upstream:own\";r=2000, \"upstream:own\";r=7, \"other\";r=2";
    assert_eq!(all(&headers, "ratelimit"), [expected]);
    assert_eq!(all(&headers, "ratelimit-policy"), ["\"own\";q=10;w=60, \"upstream:own\";q=5000;w=1"]);
    let headers = merged(&[("ratelimit-policy", "100;w=60")]);
    assert_eq!(all(&headers, "ratelimit-policy"), ["\"own\";q=10;w=60"]);
}

#[test]
fn an_upstreams_x_ratelimit_fields_stay_if_ours_lack_remaining() {
    let style = HeaderStyle { x_ratelimit: None, bucket: true, reset_after: true, ..HeaderStyle::default() };
    let written = |theirs: &[(&'static str, &'static str)]| {
        let mut headers: HeaderMap =
            theirs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        Reply::new(&ruling([ruled("own", ALLOW)]), &style, CONTEXT).write_headers(&mut headers);
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
fn the_stricter_of_two_sets_of_x_ratelimit_fields_stays() {
    let family = |headers: &HeaderMap| {
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"].map(|name| all(headers, name).join("|"))
    };
    let ours = ["10", "3", "2"];
    let theirs = |left, reset| {
        merged(&[("x-ratelimit-limit", "5"), ("x-ratelimit-remaining", left), ("x-ratelimit-reset", reset)])
    };
    assert_eq!(family(&theirs("1", "9")), ["5", "1", "9"]);
    assert_eq!(family(&theirs("3", "9")), ["5", "3", "9"]);
    assert_eq!(family(&theirs("3", "2")), ours);
    assert_eq!(family(&theirs("4", "9")), ours);
    assert_eq!(family(&theirs("many", "9")), ours);
    // Tidegate's other fields are not mixed into the upstream's.
    let headers = merged(&[("x-ratelimit-remaining", "0")]);
    assert_eq!(family(&headers), ["", "0", ""]);
    assert_eq!(family(&merged(&[("x-ratelimit-bucket", "up"), ("x-ratelimit-limit", "1")])), ours);
}

#[test]
fn an_upstreams_x_ratelimit_fields_without_remaining_are_replaced() {
    let mut headers = HeaderMap::new();
    headers.append("x-ratelimit-limit", 1.into());
    headers.append("x-ratelimit-limit", 2.into());
    Reply::new(&ruling([ruled("burst", ALLOW)]), &HeaderStyle::default(), CONTEXT).write_headers(&mut headers);
    assert_eq!(headers.get_all("x-ratelimit-limit").iter().collect::<Vec<_>>(), ["10"]);
}
