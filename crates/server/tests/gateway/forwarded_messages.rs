//! Forwarded requests and responses: curl on one side, nginx on the other.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::gateway::peers::{Gateway, NO_RULES, Nginx, Upstream, curl};
use crate::support::until;

const STATIC: &str = "server { listen 127.0.0.1:PORT; root .; keepalive_requests 100000;
  location /echo { return 200 \"$request_method $request_uri $host\"; }
  location /moved { return 302 /elsewhere; } }";

#[test]
fn requests_reach_the_upstream_and_responses_the_client() {
    let nginx = Nginx::start(STATIC, &[("file.txt", "the contents of a file")]);
    let rules = "rules: [{ id: everyone, key: address, limit: 1000/h burst 1000 }]";
    let gateway = Gateway::start(rules, &[&nginx.url()], &[]);
    let got = gateway.curl("/file.txt", &[]);
    assert_eq!((got.status, got.body.as_str()), (200, "the contents of a file"));
    assert_eq!(got.header("x-ratelimit-remaining"), Some("999"));
    assert!(got.header("server").unwrap().starts_with("nginx"), "{got:?}");
    // A HEAD request returns the same head.
    let head = gateway.curl("/file.txt", &["-I"]);
    assert_eq!((head.status, head.header("content-length"), head.body.as_str()), (200, Some("22"), ""));
    // A range, a redirect, and an unmodified file.
    let part = gateway.curl("/file.txt", &["-r", "4-11"]);
    assert_eq!((part.status, part.body.as_str()), (206, "contents"));
    assert!(gateway.curl("/moved", &[]).header("location").unwrap().ends_with("/elsewhere"));
    let tag = got.header("etag").unwrap().to_owned();
    let unchanged = gateway.curl("/file.txt", &["-H", &format!("If-None-Match: {tag}")]);
    assert_eq!((unchanged.status, unchanged.body.as_str()), (304, ""));
    assert_eq!(gateway.curl("/echo?a=b", &["-X", "DELETE", "-H", "Host: me"]).body, "DELETE /echo?a=b me");
    assert_eq!(gateway.curl("/nothing", &[]).status, 404);
}

#[test]
fn gateway_decisions_are_counted_as_at_every_listener() {
    let upstream = Upstream::saying("hello");
    let rules = "rules: [{ id: few, key: address, limit: log 2/h }]";
    let gateway = Gateway::start(rules, &[&upstream.url()], &["--admin-open-metrics", "true"]);
    for status in [200, 200, 429, 429] {
        let got = gateway.curl("/", &[]);
        assert_eq!(got.status, status, "{got:?}");
        if status == 429 {
            assert_eq!(got.header("content-type"), Some("application/problem+json"));
            assert!(got.header("retry-after").is_some() && got.body.contains("few"), "{got:?}");
        }
    }
    assert_eq!(upstream.heads().len(), 2, "what is denied does not reach the upstream");
    let (_, admin) = gateway.server.banner.split_once("\n  Admin ").unwrap();
    let url = format!("{}/metrics", admin.lines().next().unwrap().trim());
    let metrics = curl(&url, &[]).body;
    let counts: Vec<&str> = metrics.lines().filter(|line| line.contains("few") || line.contains("gateway")).collect();
    let counted = |parts: &[&str]| counts.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(counted(&["few", "allow", " 2"]) && counted(&["few", "den", " 2"]) && counted(&["gateway"]), "{metrics}");
}

#[test]
fn bodies_of_any_size_pass_in_both_directions_in_constant_memory() {
    const SIZE: usize = 256 << 20;
    // Reads the body to its end, then sends a response of the same size.
    let upstream = Upstream::start(|taken| {
        let length = taken.body_length()?;
        taken.write(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"))?;
        let block = "x".repeat(1 << 16);
        for _ in 0..length >> 16 {
            taken.write(&block)?;
        }
        Ok(())
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
    gateway.curl("/", &["-d", &"x".repeat(1 << 16)]);
    let before = resident(gateway.server.pid());
    for more in [&[][..], &["-H", "Transfer-Encoding: chunked"]] {
        let mut command = Command::new("curl");
        command.args(["-s", "--max-time", "120", "-T", "-", "-o", "/dev/null", "-w", "%{http_code} %{size_download}"]);
        command.args(["-H", "Expect:"]).args(more).arg(gateway.url("/")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        let block = vec![b'x'; 1 << 20];
        for _ in 0..SIZE >> 20 {
            stdin.write_all(&block).unwrap();
        }
        drop(stdin);
        let output = process.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("200 {SIZE}"));
    }
    let after = resident(gateway.server.pid());
    assert!(after < before + (32 << 20), "from {before} to {after} bytes");
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

#[test]
fn a_stream_passes_as_it_comes() {
    let upstream = Upstream::start(|taken| {
        taken.head()?;
        taken.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nfirst\r\n\r\n")?;
        // Sends the rest only after the client has read the beginning and sent a confirmation.
        taken.request()?;
        taken.write("8\r\nsecond\r\n\r\n0\r\n\r\n")
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
    let mut stream = gateway.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 1_024];
    while !String::from_utf8_lossy(&seen).contains("first") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
    }
    // To the upstream, the rest of the same body looks like the request that it waits for.
    let more = "GET /more HTTP/1.1\r\nHost: a\r\n\r\n";
    write!(stream, "{:x}\r\n{more}\r\n0\r\n\r\n", more.len()).unwrap();
    while !String::from_utf8_lossy(&seen).contains("second") {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
    }
}

#[test]
fn trailers_pass() {
    let upstream = Upstream::start(|taken| {
        taken.request()?;
        taken.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 5\r\n\r\n")
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &[]);
    let got = gateway.raw(b"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close\r\n\r\n");
    assert!(got.contains("hello\r\n0\r\nx-sum: 5\r\n\r\n"), "{got}");
    assert!(upstream.last().contains("te: trailers\r\n"), "{}", upstream.last());
}

/// An upstream may merge trailers into its headers. None is forwarded, because rules and the header sanitizer do not
/// see them.
#[test]
fn trailers_of_requests_are_left_out() {
    let (send, received) = std::sync::mpsc::channel();
    let send = std::sync::Mutex::new(send);
    let upstream = Upstream::start(move |taken| {
        taken.head()?;
        let mut rest = String::new();
        while !rest.ends_with("0\r\n\r\n") {
            rest.push_str(&taken.line()?);
        }
        send.lock().unwrap().send(rest).unwrap();
        taken.answer("ok")
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &["--auth-user-header", "X-User"]);
    let got = gateway.raw(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-User\r\nConnection: close\r\n\r\n\
          5\r\nhello\r\n0\r\nX-User: admin\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n",
    );
    assert!(got.starts_with("HTTP/1.1 200 "), "{got}");
    assert_eq!(received.recv().unwrap(), "5\r\nhello\r\n0\r\n\r\n");
    assert!(!upstream.last().to_ascii_lowercase().contains("\r\ntrailer:"), "{}", upstream.last());
}

#[test]
fn a_body_whose_length_is_its_cost_has_to_say_it() {
    let upstream = Upstream::echo();
    let rules = "rules: [{ id: bytes, limit: log 1000/day, cost: header:Content-Length }]";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    for protocol in ["--http1.1", "--http2-prior-knowledge"] {
        let sent = gateway.curl("/", &[protocol, "-d", "hello"]);
        assert_eq!((sent.status, sent.body.as_str()), (200, "hello"));
        // HTTP/2 has no chunked coding: a body without a length is simply unmeasured.
        let unmeasured = ["-H", "Transfer-Encoding: chunked", "-H", "Content-Length:"];
        let refused = gateway.curl("/", &[&[protocol, "-d", "hello"], &unmeasured[..]].concat());
        assert_eq!((refused.status, refused.json()["title"].as_str()), (411, Some("Length Required")), "{refused:?}");
    }
    assert_eq!(gateway.left("bytes", "/"), 990);
}

/// A response before the end of the body must not reset the stream: some clients would lose the response.
#[tokio::test]
async fn a_client_of_http2_may_end_a_body_that_was_refused() {
    let upstream = Upstream::echo();
    let rules = "rules: [{ id: few, key: address, limit: log 1/h }]";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    for address in [gateway.address, gateway.server.address] {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut ask = async |has_body: bool| {
            let request = http::Request::post(format!("http://{address}/")).body(()).unwrap();
            client = client.clone().ready().await.unwrap();
            let (response, sending) = client.send_request(request, !has_body).unwrap();
            let (head, mut body) = response.await.unwrap().into_parts();
            while let Some(data) = body.data().await {
                data.unwrap();
            }
            (head.status.as_u16(), sending)
        };
        ask(false).await;
        let (status, mut sending) = ask(true).await;
        assert!(status >= 400, "{status}");
        // A reset would have arrived before the next response.
        ask(false).await;
        let reset = std::future::poll_fn(|cx| std::task::Poll::Ready(sending.poll_reset(cx))).await;
        assert!(reset.is_pending(), "{reset:?}");
        sending.send_data(bytes::Bytes::from_static(b"hello"), true).unwrap();
        assert_ne!(ask(false).await.0, 200, "the connection goes on");
    }
}

#[test]
fn a_client_that_asks_whether_to_go_on_is_told_only_when_its_body_is_wanted() {
    let upstream = Upstream::echo();
    let rules = "rules: [{ id: few, key: address, limit: log 1/h }]";
    let gateway = Gateway::start(rules, &[&upstream.url()], &[]);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
    let mut stream = gateway.connect();
    stream.write_all(head.as_bytes()).unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(std::str::from_utf8(&interim), Ok("HTTP/1.1 100 Continue\r\n\r\n"));
    stream.write_all(b"hello").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
    assert!(!upstream.last().to_ascii_lowercase().contains("expect"), "{}", upstream.last());
    // A denied client need not send the body.
    let denied = gateway.raw(head.as_bytes());
    assert!(denied.starts_with("HTTP/1.1 429"), "{denied}");
    assert_eq!(upstream.heads().len(), 1);
}

#[test]
fn http2_is_spoken_on_either_side() {
    let nginx = Nginx::start(
        "server { listen 127.0.0.1:PORT http2; location / { return 200 \"$server_protocol $request_uri $host\"; } }",
        &[],
    );
    let plain = Nginx::start(STATIC, &[]);
    let both = Gateway::start(NO_RULES, &[&format!("h2c://{}", nginx.address)], &[]);
    let prior = ["--http2-prior-knowledge", "-H", "Host: me"];
    assert_eq!(both.curl("/a?b", &prior).body, "HTTP/2.0 /a?b me");
    assert_eq!(both.curl("/a?b", &["-H", "Host: me"]).body, "HTTP/2.0 /a?b me");
    let inwards = Gateway::start(NO_RULES, &[&plain.url()], &[]);
    let got = inwards.curl("/echo?a=b", &prior);
    assert_eq!((got.head.starts_with("http/2 200"), got.body.as_str()), (true, "GET /echo?a=b me"));
}

#[test]
fn both_sides_may_be_encrypted() {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "somebody who signs");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    let tls = "listen 127.0.0.1:PORT ssl MORE; ssl_certificate server.pem; ssl_certificate_key key.pem;";
    for (more, spoken) in [("http2", "HTTP/2.0"), ("", "HTTP/1.1")] {
        let server = format!(
            "server {{ {} location / {{ return 200 \"$server_protocol $http_x_forwarded_proto\"; }} }}",
            tls.replace("MORE", more)
        );
        let nginx = Nginx::start(&server, &[("server.pem", &certificate), ("key.pem", &key)]);
        let files =
            [("rules.yaml", NO_RULES), ("ca.pem", &authority.pem()), ("server.pem", &certificate), ("key.pem", &key)];
        let upstream = format!("https://{}", nginx.address);
        let args = ["--gateway-tls", "on", "--tls-certificate", "server.pem", "--tls-key", "key.pem"];
        let trusting = Gateway::with_files(&files, &[&upstream], &[&args[..], &["--gateway-ca", "ca.pem"]].concat());
        let ca = trusting.server.path("ca.pem");
        let ask =
            |gateway: &Gateway| curl(&format!("https://{}/", gateway.address), &["--cacert", ca.to_str().unwrap()]);
        let got = ask(&trusting);
        assert_eq!((got.head.starts_with("http/2 200"), got.body), (true, format!("{spoken} https")));
        // No authority that browsers trust has signed the certificate.
        let doubting = Gateway::with_files(&files, &[&upstream], &args);
        assert_eq!(ask(&doubting).status, 502);
    }
}

#[test]
fn connections_to_upstreams_are_used_again() {
    let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begin, end) = (Arc::clone(&begun), Arc::clone(&ended));
    let upstream = Upstream::start(move |taken| {
        begin.fetch_add(1, Ordering::SeqCst);
        let mut serve = || {
            loop {
                taken.request()?;
                taken.answer("hello")?;
            }
        };
        let served = serve();
        end.fetch_add(1, Ordering::SeqCst);
        served
    });
    let gateway = Gateway::start(NO_RULES, &[&upstream.url()], &["--gateway-pool-idle-time", "5s"]);
    for _ in 0..10 {
        assert_eq!(gateway.curl("/", &[]).body, "hello");
    }
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    // A connection that is idle for too long is closed.
    until("the end of the idle connection", || (ended.load(Ordering::SeqCst) == 1).then_some(()));
    assert_eq!(gateway.curl("/", &[]).body, "hello");
    assert_eq!(begun.load(Ordering::SeqCst), 2);
}
