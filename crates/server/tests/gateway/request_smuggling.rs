//! Requests that two parsers could interpret differently, as raw bytes.

use std::io::{Read, Write};

use crate::gateway::peers::{Between, Gateway, NO_RULES, Upstream};

impl Between {
    /// The statuses of the responses to these bytes, until the gateway closes the connection, and the heads that the
    /// upstream received.
    fn sent(&self, bytes: &[u8]) -> (Vec<u16>, Vec<String>) {
        let before = self.upstream.heads().len();
        let answer = self.gateway.raw(bytes);
        let lines = answer.split("HTTP/1.").skip(1).filter_map(|line| line.split(' ').nth(1)?.parse().ok());
        (lines.collect(), self.upstream.heads().split_off(before))
    }
}

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn ambiguous_requests_are_refused() {
    let between = Between::start();
    let shapes: [(&str, &[u8]); 30] = [
        ("a length with zeros in front", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 005\r\n\r\nhello"),
        ("two lengths", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
        ("one length twice", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
        ("two lengths in one", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nhello!"),
        ("a length with a sign", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello"),
        ("a length that is none", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello"),
        (
            "a length beside chunks",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunks beside a length",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunks beside a length that is none",
            b"POST / HTTP/1.1\r\nHost: a\r\nTRANSFER-encoding:chunked\r\ncontent-length:x\r\n\r\n0\r\n\r\n",
        ),
        (
            "two codings",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "a coding that is not the last",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        ),
        ("a coding before chunks", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        ("a coding of no name", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n"),
        ("chunks of chunks", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
        ("two hosts, to be kept open", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        ("no host, to be kept open", b"GET / HTTP/1.1\r\n\r\n"),
        ("an unknown coding", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("a coding in HTTP/1.0", b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("a folded line", b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: one\r\n two\r\n\r\n"),
        ("a space before the colon", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        ("a bare carriage return", b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\rX-B: 2\r\n\r\n"),
        ("a bare line feed", b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\nX-B: 2\r\n\r\n"),
        ("nothing but bare line feeds", b"GET / HTTP/1.1\nHost: a\n\n"),
        ("a head that ends with a bare line feed", b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
        ("a zero in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\0\r\n\r\n"),
        ("a zero in a name", b"GET / HTTP/1.1\r\nHost: a\r\nX\0A: 1\r\n\r\n"),
        ("a space in the target", b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n"),
        ("two hosts beside a target's", b"GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n"),
        ("no host", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"),
    ];
    for (shape, bytes) in shapes {
        assert_eq!(between.sent(bytes), (vec![400], Vec::new()), "{shape}");
        // Requests after it are refused too, and requests before it are unaffected.
        let followed = [bytes, SMUGGLED.as_bytes()].concat();
        let (answers, seen) = between.sent(&followed);
        assert_eq!((answers, seen), (vec![400], Vec::new()), "{shape}, followed");
        let first = b"POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        let (answers, seen) = between.sent(&[&first[..], bytes].concat());
        assert_eq!((answers, seen.len()), (vec![200, 400], 1), "{shape}, following");
        assert!(seen[0].starts_with("POST /first "), "{shape}: {seen:?}");
    }
}

#[test]
fn a_request_in_pieces_is_decided_as_a_whole() {
    let between = Between::start();
    let request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    for cut in [20, 40, 50, 60, request.len() - 7, request.len() - 6] {
        let mut stream = between.gateway.connect();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&request[..cut]).unwrap();
        // A response on another connection shows that these bytes have been read.
        assert_eq!(between.gateway.curl("/other", &[]).status, 200);
        stream.write_all(&request[cut..]).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("framing of the request is ambiguous"),
            "{cut}: {answer}"
        );
    }
    assert!(between.upstream.heads().iter().all(|head| head.starts_with("GET /other ")));
}

/// The lines of a head with this name, as received by the upstream.
fn lines<'h>(head: &'h str, name: &str) -> Vec<&'h str> {
    let named = |line: &&str| line.split_once(':').is_some_and(|(known, _)| known.eq_ignore_ascii_case(name));
    head.lines().filter(named).collect()
}

#[test]
fn unambiguous_requests_are_rewritten() {
    let between = Between::start();
    let shapes = [
        ("GET http://b.example/x?y HTTP/1.1\r\nHost: a\r\n", "", "GET /x?y HTTP/1.1", "host: b.example"),
        ("GET http://b.example HTTP/1.1\r\nHost: b.example\r\n", "", "GET / HTTP/1.1", "host: b.example"),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost:a\r\n", "", "GET / HTTP/1.1", "host: a"),
        ("GET http://b.example#x HTTP/1.1\r\nHost: a\r\n", "", "GET / HTTP/1.1", "host: b.example"),
        ("GET http://b.example?x HTTP/1.1\r\nHost: a\r\n", "", "GET /?x HTTP/1.1", "host: b.example"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n", "hello", "POST / HTTP/1.1", "content-length: 5"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \tChunked \r\n",
            "5;x=1\r\nhello\r\n0\r\n\r\n",
            "POST / HTTP/1.1",
            "transfer-encoding: chunked",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n",
            "00000000000000000005 \r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n",
            "POST / HTTP/1.1",
            "transfer-encoding: chunked",
        ),
        ("GET / HTTP/1.0\r\nHost: a\r\n", "", "GET / HTTP/1.1", "host: a"),
    ];
    for (head, body, target, expected) in shapes {
        let request = format!("{head}Connection: close\r\n\r\n{body}{SMUGGLED}");
        let (answers, seen) = between.sent(request.as_bytes());
        assert_eq!((answers, seen.len()), (vec![200], 1), "{head}");
        assert!(seen[0].starts_with(&format!("{target}\r\n")), "{head}: {}", seen[0]);
        let (name, _) = expected.split_once(':').unwrap();
        assert_eq!(lines(&seen[0], name), [expected], "{head}: {}", seen[0]);
        let lengths = lines(&seen[0], "content-length").len() + lines(&seen[0], "transfer-encoding").len();
        assert_eq!((lengths, lines(&seen[0], "host").len()), (usize::from(!body.is_empty()), 1), "{head}: {}", seen[0]);
    }
}

#[test]
fn chunks_that_make_no_sense_end_the_connection() {
    let between = Between::start();
    for chunks in [
        "5\r\nhelloX\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5;x\nhello\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5 5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
    ] {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (answers, _) = between.sent(format!("{head}{chunks}{SMUGGLED}").as_bytes());
        assert!(answers.is_empty() || answers == [400], "{chunks:?}: {answers:?}");
    }
    // An ambiguous end of trailers: everything after it is refused.
    let odd = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\n\r\n\r\n";
    let (answers, _) = between.sent(format!("{odd}{SMUGGLED}").as_bytes());
    assert_eq!(answers.last(), Some(&400));
    // The upstream may receive the beginning of such a request, but nothing after it.
    assert_eq!(between.gateway.curl("/last", &[]).status, 200);
    assert!(between.upstream.last().starts_with("GET /last "));
    assert!(!between.upstream.heads().iter().any(|head| head.contains("smuggled")), "{:?}", between.upstream.heads());
}

#[test]
fn a_gateway_connects_to_nothing_else() {
    let (answers, seen) =
        Between::start().sent(b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\nConnection: close\r\n\r\n");
    assert_eq!((answers, seen.len()), (vec![405], 0));
}

#[test]
fn an_upstream_that_speaks_nonsense_is_not_believed() {
    let shapes = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 20\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\nX-A: one\r\n two\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ];
    for shape in shapes {
        let upstream = Upstream::start(move |taken| {
            taken.request()?;
            taken.write(shape)?;
            taken.close()
        });
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-retries", "0"]);
        let got = gateway.curl("/", &[]);
        assert_eq!((got.status, got.json()["fault"].as_str()), (502, Some("upstream")), "{shape}: {got:?}");
    }
}
