//! Malformed and hostile requests.

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use tidegate::rls::Settings;
use tidegate_core::contract::seed::seed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::support::{Served, request, told, with_limit};

const ONE: &str = "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: year, requests_per_unit: 1000000 } }]\n";

#[tokio::test]
async fn empty_requests_are_errors() {
    let served = Served::with(ONE, Settings { most_descriptors: 3, most_bytes: 1_000, ..Settings::default() }).await;
    let refused = async |request| served.refused(request).await;
    assert_eq!(refused(request("", &["k=1"])).await.0, Code::InvalidArgument);
    assert_eq!(refused(request("d", &[])).await.0, Code::InvalidArgument);
    let (code, reason) = refused(request("d", &["k=1"; 4])).await;
    assert_eq!((code, reason.contains("at most 3")), (Code::InvalidArgument, true), "{reason}");
    let without_unit = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![with_limit("k=1", 1, RateLimitUnit::Unknown)],
        hits_addend: 0,
    };
    assert_eq!(refused(without_unit).await.0, Code::InvalidArgument);
    let large = format!("k={}", "x".repeat(2_000));
    assert_eq!(refused(request("d", &[&large])).await.0, Code::ResourceExhausted);
    // Nothing was charged, and other requests are served.
    assert_eq!(told(&served.ask(request("d", &["k=1", "="])).await), "OK: OK 999999, OK 0");
}

/// The bytes that a peer receives after sending `bytes`, until the server closes the connection or is silent.
async fn sent(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

#[tokio::test]
async fn garbage_ends_its_own_connection_and_no_other() {
    let served = Served::new(ONE).await;
    let mut client = served.client().await;
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut headers_on_stream_0 = PREFACE.to_vec();
    headers_on_stream_0.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 4, 0, 0, 0, 0, 0x82]);
    let mut huge_frame = PREFACE.to_vec();
    huge_frame.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]);
    let mut bad_hpack = PREFACE.to_vec();
    bad_hpack.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 2, 1, 5, 0, 0, 0, 1, 0xff, 0xff]);
    let mut dice = fastrand::Rng::with_seed(seed(9));
    let noise: Vec<u8> = std::iter::repeat_with(|| dice.u8(..)).take(10_000).collect();
    let mut noise_behind_preface = PREFACE.to_vec();
    noise_behind_preface.extend_from_slice(&noise);
    for bytes in [
        &b""[..],
        b"PRI",
        PREFACE,
        b"GET",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &[b'a'; 100_000],
        &noise,
        &noise_behind_preface,
        &headers_on_stream_0,
        &huge_frame,
        &bad_hpack,
    ] {
        sent(&served, bytes).await;
        assert!(client.should_rate_limit(request("d", &["k=1"])).await.is_ok());
    }
}

#[tokio::test]
async fn messages_that_are_no_messages_are_told_so() {
    use http_body_util::{BodyExt, Full};
    let served = Served::new(ONE).await;
    let stream = TcpStream::connect(served.address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut status = async |path: &str, content: &str, body: &[u8]| {
        let request = http::Request::post(format!("http://{}{path}", served.address))
            .header("content-type", content)
            .body(Full::new(bytes::Bytes::copy_from_slice(body)))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let code = response.headers().get("grpc-status").map(|code| code.to_str().unwrap().to_owned());
        let http = response.status().as_u16();
        let trailers = response.into_body().collect().await.unwrap().trailers().cloned();
        let in_trailers = trailers.and_then(|trailers| Some(trailers.get("grpc-status")?.to_str().ok()?.to_owned()));
        (http, code.or(in_trailers))
    };
    let call = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let code = |code: Code| (200, Some(i32::from(code).to_string()));
    for (body, answer) in [
        (&b""[..], code(Code::InvalidArgument)),
        (b"\0\0\0", code(Code::InvalidArgument)),
        (b"\0\0\0\0\x05abc", code(Code::InvalidArgument)),
        (b"\0\0\0\0\x01abc", code(Code::InvalidArgument)),
        (b"\x01\0\0\0\x03abc", code(Code::Unimplemented)),
        (b"\x07\0\0\0\x03abc", code(Code::InvalidArgument)),
        (b"\0\0\0\0\x03\xff\xff\xff", code(Code::InvalidArgument)),
        (b"\0\0\0\0\0", code(Code::InvalidArgument)),
    ] {
        assert_eq!(status(call, "application/grpc", body).await, answer, "{body:?}");
    }
    let nobody = "/envoy.service.ratelimit.v3.RateLimitService/Nobody";
    assert_eq!(status(nobody, "application/grpc+proto", b"\0\0\0\0\0").await, code(Code::Unimplemented));
    assert_eq!(status("/other.Service/Call", "application/grpc", b"").await, code(Code::Unimplemented));
    assert_eq!(status(call, "text/plain", b"").await, (404, None));
    assert_eq!(status("/", "text/plain", b"").await, (404, None));
}

#[tokio::test]
async fn idle_clients_are_disconnected() {
    let settings = Settings { arrival: Duration::from_millis(50), ..Settings::default() };
    let served = Served::with(ONE, settings).await;
    let ended = async |bytes: &[u8]| {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // The other half stays open: only the server can end the connection.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    assert_eq!(ended(b"").await, b"");
    assert_eq!(ended(b"PRI * HT").await, b"");
    assert!(ended(b"POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n").await.is_empty());
    let slow_body = ended(
        b"POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
    )
    .await;
    assert!(slow_body.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&slow_body));
}

#[tokio::test]
async fn a_thousand_idle_connections_are_no_burden() {
    let served = Served::new(ONE).await;
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        idle.push(TcpStream::connect(served.address).await.unwrap());
    }
    assert_eq!(told(&served.ask(request("d", &["k=1"])).await), "OK: OK 999999");
}

#[tokio::test]
async fn requests_in_flight_are_answered_before_the_listener_closes() {
    let mut served = Served::new(ONE).await;
    let mut client = served.client().await;
    let answers: Vec<_> = (0..50)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.should_rate_limit(request("d", &["k=1"])).await })
        })
        .collect();
    client.should_rate_limit(request("d", &["k=1"])).await.unwrap();
    served.stop.cancel();
    for answer in answers {
        match answer.await.unwrap() {
            Ok(_) => {}
            // The call was rejected, and the status says so.
            Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status}"),
        }
    }
    (&mut served.closed).await.unwrap();
}

#[tokio::test]
async fn a_connection_without_requests_is_told_to_end() {
    let idle = Duration::from_millis(300);
    let served = Served::with(ONE, Settings { idle, ..Settings::default() }).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    // The preface, and empty settings.
    let greeting = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0, 0, 0, 4, 0, 0, 0, 0, 0][..]].concat();
    stream.write_all(&greeting).await.unwrap();
    let mut said = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut said)).await;
    assert!(ended.is_ok(), "it is kept: {said:?}");
    assert_eq!(told(&served.ask(request("d", &["k=1"])).await), "OK: OK 999999");
}

#[tokio::test]
async fn health_is_not_asked_for_over_http_1_where_a_silent_body_would_be_waited_for() {
    let served = Served::new(ONE).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let head = "POST /grpc.health.v1.Health/Check HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\
                Content-Length: 5\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    tokio::time::timeout(Duration::from_secs(60), stream.read_exact(&mut status)).await.unwrap().unwrap();
    assert_eq!(&status, b"HTTP/1.1 404");
}
