//! Clients and upstreams that disconnect in the middle: every slot is released, and costs that may have been incurred
//! stay reserved.

use std::io::{Read, Write};

use crate::gateway::peers::{Gateway, Upstream};
use crate::support::until;

const RULES: &str = "
rules:
  - { id: slots, key: address, limit: concurrent 10 ttl 1min }
  - { id: tokens, key: address, limits: [{ limit: fixed 1000/h, cost: 100, reserve: 1min }] }
";

/// An upstream that sends the beginning of a response, and then waits until the gateway disconnects.
fn stuck(beginning: &'static str) -> Upstream {
    Upstream::start(move |taken| {
        taken.head()?;
        taken.write(beginning)?;
        taken.until_closed();
        taken.close()
    })
}

fn left(gateway: &Gateway) -> [u64; 2] {
    [gateway.left("slots", "/"), gateway.left("tokens", "/")]
}

fn until_left(gateway: &Gateway, expected: [u64; 2]) {
    until(&format!("{expected:?}"), || (left(gateway) == expected).then_some(()));
}

#[test]
fn before_the_head_has_ended() {
    let upstream = stuck("");
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[]);
    let mut stream = gateway.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: ").unwrap();
    drop(stream);
    assert_eq!(left(&gateway), [10, 1_000]);
    assert_eq!(upstream.heads().len(), 0);
}

#[test]
fn while_the_upstream_thinks() {
    let upstream = stuck("");
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[]);
    let mut stream = gateway.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until_left(&gateway, [9, 900]);
    until("the request", || (upstream.heads().len() == 1).then_some(()));
    drop(stream);
    // The upstream has received the request, and may still execute it.
    until_left(&gateway, [10, 900]);
}

#[test]
fn in_the_middle_of_the_request() {
    let upstream = stuck("");
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[]);
    let mut stream = gateway.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nthe beginning").unwrap();
    until("the request", || (upstream.heads().len() == 1).then_some(()));
    assert_eq!(left(&gateway), [9, 900]);
    drop(stream);
    until_left(&gateway, [10, 900]);
}

#[test]
fn in_the_middle_of_the_response() {
    for (head, more) in [("Content-Length: 1000", ""), ("Transfer-Encoding: chunked", "5\r\n")] {
        let beginning: &'static str = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{more}hello").leak();
        let upstream = stuck(beginning);
        let gateway = Gateway::start(RULES, &[&upstream.url()], &[]);
        let mut stream = gateway.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"hello") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
        assert_eq!(left(&gateway), [9, 900]);
        drop(stream);
        // The upstream has responded without a cost, so the estimate stays.
        until_left(&gateway, [10, 900]);
    }
}

#[test]
fn an_upstream_in_the_middle_of_its_response() {
    for (head, more) in [("Content-Length: 1000", ""), ("Transfer-Encoding: chunked", "5\r\n")] {
        let upstream = Upstream::start(move |taken| {
            taken.head()?;
            taken.write(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{more}hello"))?;
            taken.close()
        });
        let gateway = Gateway::start(RULES, &[&upstream.url()], &[]);
        let got = gateway.raw(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        // The response is aborted, and not ended as if it were complete.
        assert!(!got.ends_with("0\r\n\r\n") && got.len() < 1_000, "{got}");
        until_left(&gateway, [10, 900]);
    }
}

#[test]
fn over_http2_too() {
    let upstream = stuck("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhello");
    let gateway = Gateway::start(RULES, &[&upstream.url()], &[]);
    let mut client = std::process::Command::new("curl");
    client.args(["-sN", "--http2-prior-knowledge", "--max-time", "60", &gateway.url("/")]);
    let mut client = crate::support::Process(client.stdout(std::process::Stdio::piped()).spawn().unwrap());
    let mut seen = [0; 5];
    client.0.stdout.take().unwrap().read_exact(&mut seen).unwrap();
    assert_eq!(left(&gateway), [9, 900]);
    drop(client);
    until_left(&gateway, [10, 900]);
}
