//! Request bodies that rules read: the estimates in them, and the bytes that the service receives.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use tidegate_tower::RequestBody;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::language_model::{QUESTION, RULES, answer, ask, layer, question, spent};
use crate::support::{ChannelBody, channel_body, is_pending, left, limiter};

/// JSON parsers differ in which of these fields they find. No parser finds more than is charged.
#[tokio::test]
async fn a_body_that_can_be_read_in_two_ways_costs_the_most_that_any_reader_finds() {
    let padding = format!("{{\"max_tokens\": 1, \"text\": \"{}\", \"max_tokens\": 9000}}", "x".repeat(70_000));
    let utf16: Vec<u8> = "{\"max_tokens\": 5000}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let asked = |body: &[u8]| Request::post("/").body(Full::new(Bytes::copy_from_slice(body))).unwrap();
    let mut wrong = Vec::new();
    for (body, tokens) in [
        (&b"{\"max_tokens\": 5000}{\"max_tokens\": 1}"[..], 5_000),
        (b"{\"max_tokens\": 1}\n{\"max_tokens\": 5000}", 5_000),
        (b"{\"max_tokens\": 5000} x {\"max_tokens\": 1}", 5_000),
        (b"{\"max_tokens\": 5000, \"max_tokens\": 1}", 5_000),
        (b"{\"max_tokens\": 5000, \"max\\u005ftokens\": 1}", 5_000),
        (b"{\"max\\u005ftokens\": 5000}", 5_000),
        // Go and .NET find these too.
        (b"{\"max_tokens\": 1, \"MAX_tokens\": 5000}", 5_000),
        (b"{\"max_to\xe2\x84\xaaens\": 5000}", 5_000),
        // Some parsers find none, and use their default.
        (b"{\"max_tokens\": 1, \"max_tokens\": null}", 1_000),
        (b"{\"max_tokens\": 1}{}", 1_000),
        (b"{\"max_tokens\": 1} x", 1_000),
        (b"{\"max_tokens\": 1, /* */ \"max_tokens\": 5000}", 1_000),
        (padding.as_bytes(), 1_000),
        (b"{\"max_tokens\": \"5000\"}", 5_000),
        (b"{\"max_tokens\": \" +5_000 tokens\"}", 5_000),
        (b"{\"max_tokens\": \"0x1388\"}", 5_000),
        (b"{\"max_tokens\": \"5\"}", 1_000),
        (b"{\"max_tokens\": 5e3}", 5_000),
        (b"{\"max_tokens\": 4999.5}", 5_000),
        (b"{\"max_tokens\": 1, \"x\": NaN, \"max_tokens\": 5000}", 5_000),
        (b"\xef\xbb\xbf{\"max_tokens\": 5000}", 5_000),
        (&utf16, 5_000),
    ] {
        let limiter = limiter(RULES);
        let (_tell, response) = answer("application/json");
        let _response = ask(&limiter, asked(body), response).await;
        if spent(&limiter)[1] != tokens {
            wrong.push(format!("{} for {}", spent(&limiter)[1], String::from_utf8_lossy(&body[..body.len().min(60)])));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Larger than any limit.
    for number in ["1e400", "1e99999999999", &format!("5000.{}", "0".repeat(100))] {
        let limiter = limiter(RULES);
        let (_tell, response) = answer("application/json");
        let response = ask(&limiter, asked(format!("{{\"max_tokens\": {number}}}").as_bytes()), response).await;
        assert_eq!((response.status(), spent(&limiter)), (StatusCode::PAYLOAD_TOO_LARGE, [0; 4]), "{number}");
    }
}

#[tokio::test]
async fn bodies_without_an_estimate_cost_the_rules_otherwise() {
    for (text, encoding, tokens) in [
        (QUESTION, None, 400),
        (QUESTION, Some("identity"), 400),
        (QUESTION, Some("gzip"), 1_000),
        ("", None, 1_000),
        ("{}", None, 1_000),
        ("max_tokens=5", None, 1_000),
        ("[{\"max_tokens\": 5}]", None, 1_000),
        ("{\"max_tokens\": \"5\"}", None, 1_000),
        ("{\"max_tokens\": 5, \"max_tokens\": 6}", None, 6),
        ("{\"max_tokens\": 5", None, 1_000),
        ("{\"max_tokens\": 5} trailing", None, 1_000),
    ] {
        let limiter = limiter(RULES);
        let mut question = question(text);
        if let Some(encoding) = encoding {
            question.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        }
        let (_tell, response) = answer("application/json");
        let _response = ask(&limiter, question, response).await;
        assert_eq!(spent(&limiter)[1], tokens, "{text} {encoding:?}");
    }
}

/// A body of pieces and trailers, with an exact size, that counts how often it is polled.
struct Pieces {
    pieces: Vec<Option<Result<Frame<Bytes>, &'static str>>>,
    next: usize,
    size: SizeHint,
    polls: Arc<AtomicUsize>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let next = self.next;
        self.next += 1;
        match self.pieces.get_mut(next).and_then(Option::take) {
            // Each piece but the first is pending when it is first polled.
            Some(piece) if next % 2 == 1 => {
                self.pieces.insert(next + 1, Some(piece));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            piece => Poll::Ready(piece),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

fn pieces(all: Vec<Result<Frame<Bytes>, &'static str>>) -> (Pieces, Arc<AtomicUsize>) {
    let data = all.iter().filter_map(|piece| piece.as_ref().ok()?.data_ref()).map(|data| data.len() as u64);
    let (size, polls) = (SizeHint::with_exact(data.sum()), Arc::new(AtomicUsize::new(0)));
    (Pieces { pieces: all.into_iter().map(Some).collect(), next: 0, size, polls: Arc::clone(&polls) }, polls)
}

fn data(bytes: impl Into<Bytes>) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(bytes.into()))
}

/// A body as the service reads it: bytes, trailers, error, and announced size.
type Read = (Vec<u8>, Option<HeaderMap>, Option<&'static str>, SizeHint);

async fn read(mut body: RequestBody<Pieces>) -> Read {
    let (mut bytes, mut trailers, size) = (Vec::new(), None, body.size_hint());
    loop {
        match body.frame().await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => bytes.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
            Some(Err(error)) => return (bytes, trailers, Some(error), size),
            None => return (bytes, trailers, None, size),
        }
    }
}

async fn read_through(body: Pieces, most: usize) -> (Read, u64) {
    let limiter = limiter(RULES);
    let (tell, told) = tokio::sync::oneshot::channel();
    let tell = Arc::new(Mutex::new(Some(tell)));
    let service = service_fn(move |request: Request<RequestBody<Pieces>>| {
        let tell = Arc::clone(&tell);
        async move {
            let heard = read(request.into_body()).await;
            let _ = tell.lock().unwrap().take().unwrap().send(heard);
            std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
        }
    });
    let request = Request::post("/").body(body).unwrap();
    let mut response = Box::pin(layer(&limiter).max_bytes(most).layer(service).oneshot(request));
    let heard = tokio::select! {
        heard = told => heard.unwrap(),
        _ = &mut response => unreachable!("the service never answers"),
    };
    (heard, spent(&limiter)[1])
}

#[tokio::test]
async fn the_service_gets_the_body_byte_for_byte_however_much_of_it_was_inspected() {
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "abc".parse().unwrap())]);
    let mut text = QUESTION.to_owned();
    text.extend(std::iter::repeat_n(' ', 5_000));
    for cut in [1, 3, 10, 64, 700, 10_000] {
        for most in [0, 1, QUESTION.len() - 1, QUESTION.len(), 65_536] {
            let chunks = text.as_bytes().chunks(cut).map(|chunk| data(chunk.to_vec()));
            let (body, _) = pieces(chunks.chain([Ok(Frame::trailers(trailers.clone()))]).collect());
            let ((bytes, heard_trailers, error, size), tokens) = read_through(body, most).await;
            assert_eq!(bytes, text.as_bytes());
            assert_eq!((heard_trailers.as_ref(), error), (Some(&trailers), None));
            assert_eq!(size.exact().or(size.upper()), Some(size.lower()));
            assert_eq!(tokens, if most < text.len() { 1_000 } else { 400 }, "{cut} {most}");
        }
    }
}

#[tokio::test]
async fn no_more_is_read_than_is_allowed_or_needed() {
    for (chunks, most, chunks_read) in [
        // Ten bytes per chunk: ten chunks are read.
        (vec![vec![b' '; 10]; 100], 100, 10),
        // A second object may follow the first.
        (vec![b"{\"max_tokens\": 5}".to_vec(), vec![b' '; 10], vec![b'x'; 10], vec![b'x'; 10]], 65_536, 3),
        (vec![b"not JSON, a film".to_vec(), vec![b'x'; 10], vec![b'x'; 10]], 65_536, 1),
    ] {
        let limiter = limiter(RULES);
        let (body, polls) = pieces(chunks.into_iter().map(data).collect());
        let service = service_fn(|_: Request<RequestBody<Pieces>>| async {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        });
        let request = Request::post("/").body(body).unwrap();
        // The service does not read the body either.
        layer(&limiter).max_bytes(most).layer(service).oneshot(request).await.unwrap();
        // Each chunk but the first is polled twice.
        assert_eq!(polls.load(Ordering::Relaxed), 2 * chunks_read - 1);
    }
}

#[tokio::test]
async fn a_body_that_fails_during_inspection_fails_in_the_service() {
    let (body, _) = pieces(vec![data("{\"max_tokens\": 5, "), Err("gone")]);
    let ((bytes, trailers, error, _), tokens) = read_through(body, 65_536).await;
    assert_eq!((&bytes[..], trailers, error), (&b"{\"max_tokens\": 5, "[..], None, Some("gone")));
    // The field might have been repeated after the error.
    assert_eq!(tokens, 1_000);
}

#[tokio::test]
async fn a_client_that_disconnects_during_inspection_is_charged_nothing() {
    let limiter = limiter(RULES);
    let (tell, body) = channel_body();
    tell.send(Ok(Bytes::from_static(b"{\"max_tokens\": 400, "))).unwrap();
    let service = service_fn(|_: Request<RequestBody<ChannelBody>>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
    });
    let mut response = Box::pin(layer(&limiter).layer(service).oneshot(Request::post("/").body(body).unwrap()));
    assert!(is_pending(&mut response).await);
    assert_eq!(spent(&limiter), [0; 4]);
    drop(response);
    assert!(tell.is_closed());
    assert_eq!(spent(&limiter), [0; 4]);
}

#[tokio::test]
async fn bodies_that_no_rule_charges_by_are_not_read() {
    let limiter = limiter(
        "
rules:
  - { id: model, match: { path: /v1/** }, limit: 9/h, cost: body:n }
",
    );
    let (body, polls) = pieces(vec![data("{\"n\": 5}")]);
    let service = service_fn(|_: Request<RequestBody<Pieces>>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
    });
    let mut service = layer(&limiter).layer(service);
    service.ready().await.unwrap().call(Request::post("/upload").body(body).unwrap()).await.unwrap();
    assert_eq!(polls.load(Ordering::Relaxed), 0);
    let (body, _) = pieces(vec![data("{\"n\": 5}")]);
    service.ready().await.unwrap().call(Request::post("/v1/chat").body(body).unwrap()).await.unwrap();
    assert_eq!(left(limiter.store(), "model", "9/h"), 4);
}
