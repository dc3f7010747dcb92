//! Responses of real servers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use super::{LimitId, ServerLimit, Unit, read};

fn wall() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_000_000)
}

fn headers(lines: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn limits(lines: &str) -> Vec<ServerLimit> {
    read(&headers(lines), wall())
}

fn limit(name: &str, quota: impl Into<Option<u64>>, remaining: u64, millis: u64) -> ServerLimit {
    let (unit, window) = (Unit::Requests, Duration::from_millis(millis));
    ServerLimit { id: LimitId::named(name), unit, quota: quota.into(), remaining, window }
}

fn tokens(name: &str, quota: u64, remaining: u64, millis: u64) -> ServerLimit {
    ServerLimit { unit: Unit::Tokens, ..limit(name, quota, remaining, millis) }
}

#[test]
fn the_present_draft_names_several_limits() {
    let read = limits(
        r#"RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400
           RateLimit: "burst";r=50;t=30
           RateLimit: "daily";r=900;t=70000"#,
    );
    assert_eq!(read, [limit("burst", 100, 50, 30_000), limit("daily", 1_000, 900, 70_000_000)]);
}

#[test]
fn the_window_of_the_policy_stands_in_for_a_missing_one() {
    let spent = limits("RateLimit-Policy: \"burst\";q=100;w=60\nRateLimit: \"burst\";r=0");
    assert_eq!(
        spent[0].window,
        Duration::from_millis(60_600),
        "a sliding window recovers gradually, and has room for one then"
    );
    let read = limits("RateLimit-Policy: \"burst\";q=100;w=60\nRateLimit: \"burst\";r=50");
    assert_eq!(read, [limit("burst", 100, 50, 60_000)]);
    assert_eq!(limits("RateLimit: \"burst\";r=50"), []);
}

#[test]
fn a_partition_is_part_of_the_identity() {
    let read = limits("RateLimit: \"burst\";r=5;t=3;pk=:YWxpY2U=:");
    assert_eq!(read[0].id, LimitId { name: "burst".into(), partition: b"alice".to_vec() });
    let of_policy = limits("RateLimit-Policy: \"burst\";q=9;w=3;pk=:YWxpY2U=:\nRateLimit: \"burst\";r=5;t=3");
    assert_eq!(of_policy[0].id, read[0].id);
    let of_field = limits("RateLimit-Partition: alice\nRateLimit: \"burst\";a=5;w=3");
    assert_eq!(of_field[0].id, read[0].id);
}

#[test]
fn units_that_no_pace_can_keep_are_ignored() {
    let read = limits(
        r#"RateLimit-Policy: "slots";q=10;qu="concurrent-requests", "size";q=9;w=1;qu="content-bytes", "llm";q=50;w=60;qu="tokens"
           RateLimit: "slots";r=0, "size";r=0;t=1, "llm";r=20;t=30"#,
    );
    assert_eq!(read, [tokens("llm", 50, 20, 30_000)]);
}

#[test]
fn the_proposed_names_are_read() {
    let read = limits("RateLimit-Policy: \"burst\";q=100;w=60\nRateLimit: \"burst\";a=50;w=30");
    assert_eq!(read, [limit("burst", 100, 50, 30_000)]);
}

#[test]
fn older_drafts_are_read() {
    let seventh = "RateLimit-Policy: 100;w=60\nRateLimit: limit=100, remaining=50, reset=30";
    assert_eq!(limits(seventh), [limit("", 100, 50, 30_000)]);
    let sixth = "RateLimit-Policy: 100;w=60\nRateLimit-Limit: 100\nRateLimit-Remaining: 50\nRateLimit-Reset: 30";
    assert_eq!(limits(sixth), [limit("", 100, 50, 30_000)]);
    assert_eq!(limits("RateLimit-Remaining: 50\nRateLimit-Reset: 30"), [limit("", None, 50, 30_000)]);
}

#[test]
fn conventional_fields_count_in_seconds_or_from_the_epoch() {
    let in_seconds = "X-RateLimit-Limit: 60\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 30";
    assert_eq!(limits(in_seconds), [limit("", 60, 1, 30_000)]);
    let epoch = "X-RateLimit-Limit: 60\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 1795000030";
    assert_eq!(limits(epoch), [limit("", 60, 1, 30_000)]);
    let spelled_apart = "X-Rate-Limit-Limit: 60\nX-Rate-Limit-Remaining: 1\nX-Rate-Limit-Reset: 1795000030";
    assert_eq!(limits(spelled_apart), [limit("", 60, 1, 30_000)]);
}

#[test]
fn an_epoch_is_held_against_the_date_of_the_response() {
    // The server's clock is an hour behind.
    let behind = "Date: Wed, 18 Nov 2026 10:06:40 GMT\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 1794996430";
    assert_eq!(limits(behind), [limit("", None, 1, 30_000)]);
}

#[test]
fn discords_buckets_and_githubs_resources_are_names() {
    let discord = "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1795000001.5
        X-RateLimit-Reset-After: 1.25\nX-RateLimit-Bucket: abcd1234";
    assert_eq!(limits(discord), [limit("abcd1234", 5, 0, 1_250)]);
    let github = "X-RateLimit-Limit: 5000\nX-RateLimit-Remaining: 4999\nX-RateLimit-Reset: 1795003600
        X-RateLimit-Used: 1\nX-RateLimit-Resource: core";
    assert_eq!(limits(github), [limit("core", 5_000, 4_999, 3_600_000)]);
}

#[test]
fn gitlabs_reset_is_an_epoch() {
    let gitlab = "RateLimit-Limit: 60\nRateLimit-Remaining: 58\nRateLimit-Reset: 1795000030\nRateLimit-Observed: 2
        RateLimit-Name: throttle_authenticated_web";
    assert_eq!(limits(gitlab), [limit("throttle_authenticated_web", 60, 58, 30_000)]);
}

#[test]
fn discords_buckets_are_split_by_channel_guild_and_webhook() {
    let discord = headers("X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 1\nX-RateLimit-Bucket: b");
    for (path, resource) in [
        ("/api/v10/channels/1/messages/2", "channels/1"),
        ("/api/v10/channels/1", "channels/1"),
        ("/guilds/7/members", "guilds/7"),
        ("/api/webhooks/3", "webhooks/3"),
        ("/api/v10/users/1", ""),
        ("/", ""),
    ] {
        assert_eq!(super::read_at(path, &discord, wall())[0].id.partition, resource.as_bytes(), "{path}");
    }
    let other = headers("X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1");
    assert!(super::read_at("/channels/1", &other, wall())[0].id.partition.is_empty());
}

#[test]
fn tokens_of_webhooks_are_not_kept() {
    let discord = headers("X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 1\nX-RateLimit-Bucket: b");
    let partition = |path: &str| {
        let partition = super::read_at(path, &discord, wall())[0].id.partition.clone();
        String::from_utf8(partition).unwrap()
    };
    let secret = partition("/api/webhooks/3/s3cr3t/messages");
    assert!(secret.starts_with("webhooks/3/") && !secret.contains("s3cr3t"), "{secret}");
    assert_eq!(secret, partition("/webhooks/3/s3cr3t"));
    assert_ne!(secret, partition("/webhooks/3/another"));
    let (long, longer) = ("1".repeat(3_000), "1".repeat(3_001));
    let (one, other) = (partition(&format!("/channels/{long}")), partition(&format!("/channels/{longer}")));
    assert!(one != other && one.len() < 40, "{one}");
}

#[test]
fn openais_durations_and_anthropics_timestamps_are_read() {
    let openai = "x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: 59\nx-ratelimit-reset-requests: 1s
        x-ratelimit-limit-tokens: 150000\nx-ratelimit-remaining-tokens: 149984\nx-ratelimit-reset-tokens: 6m0s";
    assert_eq!(limits(openai), [limit("requests", 60, 59, 1_000), tokens("tokens", 150_000, 149_984, 360_000)]);
    let anthropic = "anthropic-ratelimit-requests-limit: 50\nanthropic-ratelimit-requests-remaining: 49
        anthropic-ratelimit-requests-reset: 2026-11-18T11:07:40Z\nanthropic-ratelimit-input-tokens-limit: 40000
        anthropic-ratelimit-input-tokens-remaining: 39000\nanthropic-ratelimit-input-tokens-reset: 2026-11-18T11:06:41Z";
    assert_eq!(limits(anthropic), [limit("requests", 50, 49, 60_000), tokens("input-tokens", 40_000, 39_000, 1_000)]);
}

#[test]
fn a_gateway_in_front_of_a_provider_adds_its_limits() {
    let both = "RateLimit: \"own\";r=5;t=1\nX-RateLimit-Remaining: 5\nX-RateLimit-Reset: 9
        x-ratelimit-remaining-tokens: 10\nx-ratelimit-limit-tokens: 20\nx-ratelimit-reset-tokens: 2s";
    assert_eq!(limits(both), [limit("own", None, 5, 1_000), tokens("tokens", 20, 10, 2_000)]);
}

#[test]
fn a_cached_response_states_nothing() {
    assert_eq!(limits("Age: 3\nRateLimit: \"burst\";r=5;t=3"), []);
    assert_eq!(limits("Age: x\nRateLimit: \"burst\";r=5;t=3"), []);
    assert_eq!(limits("Age: 0\nRateLimit: \"burst\";r=5;t=3").len(), 1);
}

#[test]
fn the_conventional_fields_stand_in_for_implausible_ones() {
    let both = "RateLimit: \"own\";r=5;t=99999999\nX-RateLimit-Remaining: 5\nX-RateLimit-Reset: 9";
    assert_eq!(limits(both), [limit("", None, 5, 9_000)]);
}

#[test]
fn malformed_and_implausible_fields_are_ignored() {
    for lines in [
        "RateLimit: \"burst\";r=-5;t=3",
        "RateLimit: \"burst\";r=5;t=-3",
        "RateLimit: \"burst\";r=5.5;t=3",
        "RateLimit: \"burst\";r=5;t=99999999",
        "RateLimit: \"burst;r=5;t=3",
        "RateLimit: burst",
        "RateLimit: 5",
        "RateLimit: limit=10, remaining=5",
        "RateLimit: limit=10, remaining=-1, reset=5",
        "RateLimit-Remaining: 5",
        "X-RateLimit-Remaining: many\nX-RateLimit-Reset: 3",
        "X-RateLimit-Remaining: 5\nX-RateLimit-Reset: soon",
        "X-RateLimit-Remaining: 5\nX-RateLimit-Reset: 99999999",
        "X-RateLimit-Remaining: 5\nX-RateLimit-Remaining: 6\nX-RateLimit-Reset: 3",
        "x-ratelimit-remaining-requests: 5\nx-ratelimit-reset-requests: 5 minutes",
        "anthropic-ratelimit-requests-remaining: 5\nanthropic-ratelimit-requests-reset: tomorrow",
        "RateLimit: limit=10, remaining=5, reset=99999999",
        "RateLimit-Policy: \"burst\";q=9;w=99999999\nRateLimit: \"burst\";r=5",
        "X-RateLimit-Remaining: 5\nX-RateLimit-Reset: 1900000000",
        "x-ratelimit-remaining-requests: 5\nx-ratelimit-reset-requests: 99999h",
        "anthropic-ratelimit-requests-remaining: 5\nanthropic-ratelimit-requests-reset: 2099-01-01T00:00:00Z",
    ] {
        assert_eq!(limits(lines), [], "{lines}");
    }
}

/// An RFC 3339 timestamp.
fn timestamp(seconds: u64) -> String {
    let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|month| date[8..].starts_with(month)).unwrap() + 1;
    format!("{}-{month:02}-{}T{}Z", &date[12..16], &date[5..7], &date[17..25])
}

proptest! {
    /// Each form in which servers state limits, with the name of the limit.
    #[test]
    fn every_form_reads_what_a_server_means(
        quota in 1_u64..1_000_000, remaining in 0_u64..1_000_000, window in 1_u64..31 * 86_400,
    ) {
        let epoch = 1_795_000_000 + window;
        let (hours, minutes, seconds) = (window / 3_600, window / 60 % 60, window % 60);
        let until = timestamp(epoch);
        for (name, lines) in [
            ("a", format!("RateLimit-Policy: \"a\";q={quota};w=9\nRateLimit: \"a\";r={remaining};t={window}")),
            ("a", format!("RateLimit-Policy: \"a\";q={quota};w=9\nRateLimit: \"a\";a={remaining};w={window}")),
            ("", format!("RateLimit: limit={quota}, remaining={remaining}, reset={window}")),
            ("", format!("RateLimit-Limit: {quota}\nRateLimit-Remaining: {remaining}\nRateLimit-Reset: {window}")),
            ("", format!("RateLimit-Limit: {quota}\nRateLimit-Remaining: {remaining}\nRateLimit-Reset: {epoch}")),
            ("", format!("X-RateLimit-Limit: {quota}\nX-RateLimit-Remaining: {remaining}\nX-RateLimit-Reset: {window}")),
            ("", format!("X-RateLimit-Limit: {quota}\nX-RateLimit-Remaining: {remaining}\nX-RateLimit-Reset: {epoch}")),
            ("b", format!("X-RateLimit-Limit: {quota}\nX-RateLimit-Remaining: {remaining}\nX-RateLimit-Bucket: b
                X-RateLimit-Reset: {epoch}\nX-RateLimit-Reset-After: {window}")),
            ("requests", format!("x-ratelimit-limit-requests: {quota}\nx-ratelimit-remaining-requests: {remaining}
                x-ratelimit-reset-requests: {hours}h{minutes}m{seconds}s")),
            ("requests", format!("anthropic-ratelimit-requests-limit: {quota}
                anthropic-ratelimit-requests-remaining: {remaining}\nanthropic-ratelimit-requests-reset: {until}")),
        ] {
            prop_assert_eq!(limits(&lines), [limit(name, quota, remaining, window * 1_000)], "{}", lines);
        }
    }

    #[test]
    fn the_present_draft_reads_what_a_server_means(
        name in "[ -~]{1,20}", quota in 1_u64..1_000_000, remaining in 0_u64..1_000_000, window in 1_u64..2_000_000,
    ) {
        let quoted = name.replace('\\', "\\\\").replace('"', "\\\"");
        let lines = format!("RateLimit-Policy: \"{quoted}\";q={quota};w=9\nRateLimit: \"{quoted}\";r={remaining};t={window}");
        prop_assert_eq!(limits(&lines), [limit(&name, quota, remaining, window * 1_000)]);
    }
}
