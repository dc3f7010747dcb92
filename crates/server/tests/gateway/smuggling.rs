//! Requests that two parsers could read in two ways, as raw bytes.

use crate::peers::{Gateway, NO_RULES, Upstream};

/// What the gateway answers to these bytes, and the heads that the upstream saw.
fn sent(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
    let upstream = Upstream::echo();
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
    let answer = gateway.raw(bytes);
    let lines = answer.lines().filter(|line| line.starts_with("HTTP/1."));
    (lines.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect(), upstream.heads())
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    let shapes: [(&str, &[u8]); 14] = [
        ("two lengths", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
        ("two lengths in one", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 6\r\n\r\nhello!"),
        ("a length with a sign", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\nhello"),
        ("a length that is none", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\nhello"),
        (
            "a coding that is not the last",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        ),
        ("an unknown coding", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("a coding in HTTP/1.0", b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("a folded line", b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: one\r\n two\r\n\r\n"),
        ("a space before the colon", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
        ("a bare carriage return", b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\rX-B: 2\r\n\r\n"),
        ("a zero in a value", b"GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\0\r\n\r\n"),
        ("a space in the target", b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n"),
        ("no host", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"),
    ];
    for (shape, bytes) in shapes {
        let (answers, seen) = sent(bytes);
        assert_eq!((answers, seen), (vec!["400".to_owned()], Vec::<String>::new()), "{shape}");
    }
}

#[test]
fn a_length_beside_chunks_is_dropped_and_nothing_can_follow() {
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for fields in ["Content-Length: 6\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 6"]
    {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n0\r\n\r\n{smuggled}");
        let (answers, seen) = sent(request.as_bytes());
        assert_eq!(answers, ["200"], "the connection ends with the response");
        assert_eq!(seen.len(), 1, "{seen:?}");
        let head = seen[0].to_ascii_lowercase();
        assert!(!head.contains("content-length") || !head.contains("transfer-encoding"), "{head}");
        assert!(!head.contains("content-length: 6"), "{head}");
    }
}

#[test]
fn chunks_are_read_strictly_and_written_anew() {
    for chunks in ["5;x=1\r\nhello\r\n0\r\n\r\n", "05\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n"] {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        let (answers, seen) = sent(format!("{head}{chunks}").as_bytes());
        assert_eq!((answers, seen.len()), (vec!["200".to_owned()], 1), "{chunks}");
    }
    for chunks in [
        "5\r\nhelloX\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello",
        "-5\r\nhello\r\n0\r\n\r\n",
    ] {
        let upstream = Upstream::echo();
        let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let answer = gateway.raw(format!("{head}{chunks}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        assert!(!answer.contains(" 200 "), "{chunks}: {answer}");
        assert!(!upstream.heads().iter().any(|head| head.contains("smuggled")), "{chunks}");
    }
}

#[test]
fn a_gateway_connects_to_nothing_else() {
    let (answers, seen) = sent(b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\nConnection: close\r\n\r\n");
    assert_eq!((answers, seen.len()), (vec!["405".to_owned()], 0));
}

#[test]
fn an_upstream_that_speaks_nonsense_is_not_believed() {
    let shapes = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
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
