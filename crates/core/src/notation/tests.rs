use proptest::prelude::*;

use super::*;
use crate::limit::{Algorithm, Limit, Rate};
use crate::time::Micros;

fn limit(text: &str) -> Limit {
    text.parse().unwrap_or_else(|error: NotationError| panic!("{}", error.pointer()))
}

#[test]
fn printed_limits_are_those_that_were_written() {
    for text in [
        "10/s",
        "1000/h",
        "300/3h",
        "5/day",
        "20/s burst 50",
        "1/month",
        "10000000/s",
        "3/100ms",
        "7/us",
        "9/2week",
        "20/s burst 0",
        "gcra 100/min burst 10",
        "meter 10/s burst 20",
        "shaper 10/s queue 50",
        "fixed 1000/day",
        "fixed 0/s",
        "fixed 1000/month calendar",
        "fixed 1/week calendar",
        "sliding 300/min",
        "sliding 300/min parts 6",
        "log 5/min",
        "concurrent 10 ttl 30s",
        "concurrent 0 ttl 1min",
    ] {
        assert_eq!(limit(text).to_string(), text);
    }
}

#[test]
fn other_spellings_mean_the_same() {
    for (text, same) in [
        ("token-bucket 10/s", "10/s"),
        ("10/second", "10/s"),
        ("10/1s", "10/s"),
        ("10/1000ms", "10/s"),
        ("60/60s", "60/min"),
        ("1_000/H", "1000/h"),
        ("  20/s\tburst   50 ", "20/s burst 50"),
        ("20/s BURST 50", "20/s burst 50"),
        ("10/s burst 10", "10/s"),
        ("5/24h", "5/day"),
        ("GCRA 5/m", "gcra 5/min"),
        ("concurrent 10", "concurrent 10 ttl 1min"),
    ] {
        assert_eq!(limit(text), limit(same), "{text}");
        assert_eq!(limit(text).to_string(), same, "{text}");
    }
}

#[test]
fn a_rate_without_a_burst_has_the_burst_of_one_period() {
    let Algorithm::TokenBucket(bucket) = *limit("300/3h").algorithm() else { panic!("not a token bucket") };
    assert_eq!(bucket.capacity(), 300);
    assert_eq!(bucket.refill(), Rate::new(300, Micros::from_secs(3 * 3_600)).unwrap());
}

#[test]
fn errors_point_at_the_characters_at_fault() {
    for (text, column, culprit, says) in [
        ("", 1, "", "an empty limit"),
        ("   ", 1, "", "an empty limit"),
        ("10", 1, "10", "a number, a slash and a period"),
        ("10/", 4, "", "a unit of time is missing"),
        ("10/3", 5, "", "a unit of time is missing"),
        ("/s", 1, "", "a number is missing"),
        ("10/q", 4, "q", "write ms, s, min"),
        ("10/secnd", 4, "secnd", "did you mean `second`?"),
        ("1O/s", 2, "O", "not a digit"),
        ("1é/s", 2, "é", "not a digit"),
        ("1.5/s", 2, ".", "not a digit"),
        ("-1/s", 1, "-1/s", "neither a rate"),
        ("20/s brust 50", 6, "brust", "did you mean `burst`?"),
        ("20/s burst", 11, "", "something is missing"),
        ("20/s burst x", 12, "x", "not a digit"),
        ("20/s burst 50 more", 15, "more", "nothing may follow"),
        ("20/s 50", 6, "50", "only `burst` may follow"),
        ("gcar 5/s", 1, "gcar", "did you mean `gcra`?"),
        ("frobnicate 5/s", 1, "frobnicate", "token-bucket, gcra"),
        ("99999999999999999999/s", 1, "99999999999999999999", "too large"),
        ("0/s", 1, "0/s", "never refills"),
        ("1/0s", 1, "1/0s", "the period is 0"),
        ("1/99999999999999999999s", 3, "99999999999999999999", "too large"),
        ("1/9999999999year", 1, "1/9999999999year", "longer than"),
        ("1/s burst 9007199254740992", 11, "9007199254740992", "give at most"),
        ("10007/month", 1, "10007/month", "give at most"),
        ("fixed 5/0s", 7, "5/0s", "shorter than"),
        ("fixed 5/2week calendar", 7, "5/2week", "the calendar has"),
        ("fixed 5/h calendar", 7, "5/h", "the calendar has"),
        ("fixed 5/h calender", 11, "calender", "did you mean `calendar`?"),
        ("sliding 5/min parts 7", 21, "7", "equal parts"),
        ("sliding 5/min parts 0", 21, "0", "equal parts"),
        ("log 2000000/min", 5, "2000000/min", "sliding window counter"),
        ("concurrent", 11, "", "a number of slots"),
        ("concurrent 5 ttl 0s", 18, "0s", "does not work"),
        ("concurrent 5 tll 10s", 14, "tll", "did you mean `ttl`?"),
    ] {
        let error = text.parse::<Limit>().expect_err(text);
        assert_eq!((error.column(), error.culprit()), (column, culprit), "{text}: {error}");
        assert!(error.problem().contains(says), "{text}: {error}");
    }
}

#[test]
fn the_pointer_stands_under_the_fault() {
    let error = "20/s brust 50".parse::<Limit>().unwrap_err();
    assert_eq!(error.pointer(), "20/s brust 50\n     ^^^^^ not understood: did you mean `burst`?");
    let error = "µ 5/s".parse::<Limit>().unwrap_err();
    assert!(error.pointer().starts_with("µ 5/s\n^ "), "{}", error.pointer());
}

proptest! {
    #[test]
    fn any_text_is_a_limit_or_an_error_that_points_into_it(text in "\\PC{0,40}") {
        match text.parse::<Limit>() {
            Ok(limit) => prop_assert_eq!(limit.to_string().parse::<Limit>().unwrap(), limit),
            Err(error) => {
                prop_assert!(error.column() <= text.chars().count() + 1);
                prop_assert!(!error.pointer().is_empty() && !error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn any_text_made_of_limit_words_is_a_limit_or_an_error(
        words in prop::collection::vec(
            prop::sample::select(vec!["gcra", "fixed", "sliding", "log", "concurrent", "shaper", "burst", "queue", "ttl",
                "parts", "calendar", "5/s", "300/3h", "0/min", "7/month", "1_0", "30s", "9", "0", "/", "é/µs", "18446744073709551615/us"]),
            0..5,
        )
    ) {
        let text = words.join(" ");
        if let Ok(limit) = text.parse::<Limit>() {
            prop_assert_eq!(limit.to_string().parse::<Limit>().unwrap(), limit);
        }
    }

    #[test]
    fn every_rate_parses_back_to_itself(tokens in 1..u64::from(u32::MAX), micros in 1..31_622_400_000_000_u64) {
        let rate = Rate::new(tokens, Micros::new(micros)).unwrap();
        prop_assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
    }
}
