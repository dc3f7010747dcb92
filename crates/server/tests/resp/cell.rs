//! `CL.THROTTLE` on the wire. What it answers when is a table beside the code; here time is real, so waits are only compared
//! with what they cannot be.

use crate::support::{Server, error, run};

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
fn what_makes_no_sense_is_told_so() {
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
