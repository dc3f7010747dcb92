//! `CL.THROTTLE` on the wire. A table next to the code specifies its replies by time; here time is real, so waits are
//! only checked against bounds.

use crate::resp::support::{Server, error, run};

#[test]
fn five_integers_answer() {
    let server = Server::start();
    let mut client = server.client();
    let first: Vec<i64> = run(&mut client, "CL.THROTTLE user123 15 30 3600 1").unwrap();
    assert_eq!(first, [0, 16, 15, -1, 120]);
    let second: Vec<i64> = run(&mut client, "cl.throttle user123 15 30 3600").unwrap();
    assert_eq!(second[..4], [0, 16, 14, -1]);
    let other: Vec<i64> = run(&mut client, "CL.THROTTLE user124 15 30 3600 16").unwrap();
    assert_eq!(other[..4], [0, 16, 0, -1]);
    let denied: Vec<i64> = run(&mut client, "CL.THROTTLE user124 15 30 3600").unwrap();
    assert_eq!(denied[..3], [1, 16, 0]);
    assert!((1..=120).contains(&denied[3]) && denied[4] > 1_000, "{denied:?}");
    let never: Vec<i64> = run(&mut client, "CL.THROTTLE user124 15 30 3600 17").unwrap();
    assert_eq!(never[..4], [1, 16, 0, -1]);
    let peeked: Vec<i64> = run(&mut client, "CL.THROTTLE user125 15 30 3600 0").unwrap();
    assert_eq!(peeked, [0, 16, 16, -1, 0]);
}

#[test]
fn numbers_are_read_as_redis_cell_reads_them() {
    let server = Server::start();
    let mut client = server.client();
    for words in ["CL.THROTTLE a +15 30 3600 1", "CL.THROTTLE b 0015 +30 03600 01"] {
        let answer: Vec<i64> = run(&mut client, words).unwrap();
        assert_eq!(answer, [0, 16, 15, -1, 120], "{words}");
    }
    for words in
        ["CL.THROTTLE a ++15 30 60", "CL.THROTTLE a +-15 30 60", "CL.THROTTLE a + 30 60", "CL.THROTTLE a 1_0 30 60"]
    {
        assert!(error(&mut client, words).contains("max_burst"), "{words}");
    }
}

#[test]
fn keys_are_any_bytes() {
    let server = Server::start();
    let mut client = server.client();
    for key in [&b""[..], b"\0\xff\r\n", &[b'k'; 10_000]] {
        let mut throttle = redis::cmd("CL.THROTTLE");
        throttle.arg(key).arg(0).arg(1).arg(3600);
        let limited: Vec<Vec<i64>> = (0..2).map(|_| throttle.query(&mut client).unwrap()).collect();
        assert_eq!((limited[0][0], limited[1][0]), (0, 1));
    }
}

#[test]
fn a_limit_that_changes_keeps_what_was_spent() {
    let server = Server::start();
    let mut client = server.client();
    let _: Vec<i64> = run(&mut client, "CL.THROTTLE k 9 10 86400 10").unwrap();
    let raised: Vec<i64> = run(&mut client, "CL.THROTTLE k 99 100 86400").unwrap();
    assert_eq!(raised[..4], [0, 100, 89, -1]);
}

#[test]
fn invalid_arguments_get_an_error() {
    let server = Server::start();
    let mut client = server.client();
    for words in ["CL.THROTTLE", "CL.THROTTLE k", "CL.THROTTLE k 1 2", "CL.THROTTLE k 1 2 3 4 5"] {
        assert!(error(&mut client, words).contains("wrong number of arguments for 'cl.throttle' command"), "{words}");
    }
    for (words, what) in [
        ("CL.THROTTLE k x 30 60", "max_burst"),
        ("CL.THROTTLE k -1 30 60", "max_burst"),
        ("CL.THROTTLE k 1.5 30 60", "max_burst"),
        ("CL.THROTTLE k 1 0 60", "count"),
        ("CL.THROTTLE k 1 -3 60", "count"),
        ("CL.THROTTLE k 1 30 0", "period"),
        ("CL.THROTTLE k 1 30 9223372036854775808", "period"),
        ("CL.THROTTLE k 1 30 60 -1", "quantity"),
        ("CL.THROTTLE k 1 30 60 one", "quantity"),
    ] {
        let error = error(&mut client, words);
        assert!(error.contains("value is not an integer or out of range") && error.contains(what), "{words}: {error}");
    }
    for (words, why) in [
        ("CL.THROTTLE k 9223372036854775807 1 1", "cannot be counted exactly"),
        ("CL.THROTTLE k 1 9223372036854775807 1", "too fine to count exactly"),
        ("CL.THROTTLE k 1 1 9223372036854775807", "a period of 9223372036854775807 seconds is longer than 366day"),
    ] {
        let error = error(&mut client, words);
        assert!(error.contains(why), "{words}: {error}");
    }
    server.assert_serves();
}

#[test]
fn a_period_may_have_a_fraction() {
    let server = Server::start();
    let mut client = server.client();
    // One in 3600 s in both cases.
    for words in ["CL.THROTTLE a 15 30 108000.0 1", "CL.THROTTLE b 15 1 3600.000000 1"] {
        let answer: Vec<i64> = run(&mut client, words).unwrap();
        assert_eq!(answer, [0, 16, 15, -1, 3_600], "{words}");
    }
    let half: Vec<i64> = run(&mut client, "CL.THROTTLE c 3 1 0.5 4").unwrap();
    assert_eq!(half, [0, 4, 0, -1, 2]);
    for period in ["0.0", ".5", "5.", "0.0000001", "-0.5", "+0.5", "1e3", "0,5", "nan", "1.2.3"] {
        let error = error(&mut client, &format!("CL.THROTTLE d 3 1 {period}"));
        assert!(error.contains("period is a number of seconds above 0"), "{period}: {error}");
    }
    let error = error(&mut client, "CL.THROTTLE d 3 1 31622400.5");
    assert!(error.contains("a period of 31622400.5 seconds is longer than 366day"), "{error}");
}

/// The replies are those of throttlecrab's documentation, except for the fourth, which counts the burst's time twice
/// there.
#[test]
fn throttle_answers_as_throttlecrab_does() {
    let server = Server::start();
    let mut client = server.client();
    let first: Vec<i64> = run(&mut client, "THROTTLE user:123 10 100 360000").unwrap();
    assert_eq!(first, [1, 10, 9, 3_600, 0]);
    let all: Vec<i64> = run(&mut client, "throttle user:123 10 100 360000 9").unwrap();
    assert_eq!((&all[..3], all[4]), (&[1, 10, 0][..], 0));
    let denied: Vec<i64> = run(&mut client, "THROTTLE user:123 10 100 360000").unwrap();
    assert_eq!(denied[..3], [0, 10, 0]);
    assert!((1..=3_600).contains(&denied[4]), "{denied:?}");
    let never: Vec<i64> = run(&mut client, "THROTTLE user:123 10 100 360000 11").unwrap();
    assert_eq!((never[0], never[4]), (0, -1));
    // The same key, with the limit in the notation of redis-cell's command.
    let cell: Vec<i64> = run(&mut client, "CL.THROTTLE user:123 9 100 360000 0").unwrap();
    assert_eq!(cell[..3], [0, 10, 0]);
    for (words, why) in [
        ("THROTTLE k 1 2", "wrong number of arguments for 'throttle' command"),
        ("THROTTLE k 1 2 3 4 5", "wrong number of arguments for 'throttle' command"),
        ("THROTTLE k 0 1 1", "max_burst must be a whole number, 1 or more"),
    ] {
        let error = error(&mut client, words);
        assert!(error.contains(why), "{words}: {error}");
    }
}

#[test]
fn clients_are_told_where_the_keys_are() {
    let server = Server::start();
    let mut client = server.client();
    let mut keys = |words: &str| run::<Vec<String>>(&mut client, &format!("COMMAND GETKEYS {words}")).unwrap();
    assert_eq!(keys("CL.THROTTLE k 15 30 3600"), ["k"]);
    assert_eq!(keys("DEL a b c"), ["a", "b", "c"]);
    let info: Vec<Vec<redis::Value>> = run(&mut client, "COMMAND INFO cl.throttle del ping").unwrap();
    for (entry, wanted) in info.iter().zip([[1, 1, 1], [1, -1, 1], [0, 0, 0]]) {
        assert_eq!(entry[3..6], wanted.map(redis::Value::Int));
    }
}

#[test]
fn a_key_starts_afresh_once_it_is_deleted() {
    let server = Server::start();
    let mut client = server.client();
    for key in ["a", "b", "c"] {
        let _: Vec<i64> = run(&mut client, &format!("CL.THROTTLE {key} 0 1 86400")).unwrap();
    }
    assert_eq!(run::<i64>(&mut client, "DEL a nobody b a").unwrap(), 2);
    assert_eq!(run::<i64>(&mut client, "TG.RESET RULE @cl.throttle c").unwrap(), 1);
    assert_eq!(run::<i64>(&mut client, "TG.RESET RULE @cl.throttle c").unwrap(), 0);
    for key in ["a", "b", "c"] {
        let answer: Vec<i64> = run(&mut client, &format!("CL.THROTTLE {key} 0 1 86400")).unwrap();
        assert_eq!(answer[0], 0, "{key}");
    }
    assert!(error(&mut client, "DEL").contains("wrong number of arguments for 'del' command"));
    assert!(error(&mut client, "TG.RESET RULE @cl.throttle a b").contains("1 part"));
}
