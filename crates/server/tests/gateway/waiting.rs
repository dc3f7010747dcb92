//! How long clients are waited for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;

use crate::peers::{Gateway, NO_RULES, Upstream};

const SOON: &[&str] = &["--limits-header-time", "200ms"];

/// All that comes until the gateway closes.
fn until_closed(mut stream: TcpStream) -> String {
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    all
}

#[test]
fn a_head_that_does_not_end_and_a_next_one_that_does_not_come_are_not_waited_for() {
    let upstream = Upstream::saying("ok");
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], SOON);
    let (mut slow, silent, mut kept) = (gateway.connect(), gateway.connect(), gateway.connect());
    slow.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
    kept.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(until_closed(slow), "");
    assert_eq!(until_closed(silent), "");
    let answer = until_closed(kept);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
}

#[test]
fn a_request_that_is_under_way_has_all_the_time_that_its_upstream_has() {
    let (go_on, told) = mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    let upstream = Upstream::start(move |taken| {
        taken.request()?;
        let _ = told.lock().unwrap().recv();
        taken.answer("at last")
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], SOON);
    let mut patient = gateway.connect();
    patient.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    // Two that came later were waited for as long as anyone is.
    for _ in 0..2 {
        assert_eq!(until_closed(gateway.connect()), "");
    }
    go_on.send(()).unwrap();
    let answer = until_closed(patient);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("at last"), "{answer}");
}
