//! The servers that are measured, each in a separate thread on the first core.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tidegate::engine::Engine;
use tidegate::rls::{RlsServer, Settings};
use tidegate_bench::machine::pin_to_core;
use tidegate_core::MemoryStore;
use tidegate_rules::{Limiter, RuleSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[derive(Clone, Copy)]
pub enum Kind {
    Ours,
    Tonic,
    Hyper,
    Inline,
}

/// Starts a server that lives as long as this program. Returns its address.
pub fn start(kind: Kind) -> SocketAddr {
    on_first_core(move |listener| async move {
        match kind {
            Kind::Ours => ours(listener).await,
            Kind::Tonic => tonic_constant(listener).await,
            Kind::Hyper => each(listener, hyper_constant).await,
            Kind::Inline => each(listener, inline_constant).await,
        }
    })
}

pub fn start_echo() -> SocketAddr {
    on_first_core(|listener| each(listener, echo))
}

fn on_first_core<F: Future<Output = ()>>(serve: impl FnOnce(TcpListener) -> F + Send + 'static) -> SocketAddr {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        pin_to_core(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            tell.send(listener.local_addr().expect("an address")).expect("somebody waits");
            serve(listener).await;
        });
    });
    told.recv().expect("a server")
}

async fn each<F: Future<Output = ()> + Send + 'static>(listener: TcpListener, serve: impl Fn(TcpStream) -> F) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        tokio::spawn(serve(stream));
    }
}

async fn ours(listener: TcpListener) {
    let text = "
domain: bench
descriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 1000000 } }]
";
    let rules = RuleSet::parse("bench.yaml", text).expect("rules").rules;
    let engine = Arc::new(Engine::new(Limiter::new(rules, MemoryStore::new().into())));
    let server = RlsServer::open(engine, Settings::default()).await;
    each(listener, move |stream| server.clone().serve_connection(stream, CancellationToken::new())).await;
}

async fn echo(mut stream: TcpStream) {
    let mut message = [0; 60];
    while stream.read_exact(&mut message).await.is_ok() {
        stream.write_all(&message).await.expect("an open connection");
    }
}

/// A constant response with the same numbers as Tidegate's.
fn constant() -> RateLimitResponse {
    let status = DescriptorStatus {
        code: 1,
        current_limit: Some(RateLimit { name: String::new(), requests_per_unit: 1_000_000, unit: 3 }),
        limit_remaining: 999_999,
        duration_until_reset: Some(Duration { seconds: 1_800, nanos: 123_456_000 }),
        quota: None,
    };
    RateLimitResponse { overall_code: 1, statuses: vec![status], ..RateLimitResponse::default() }
}

struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, tonic::Status> {
        assert_eq!(request.get_ref().domain, "bench");
        Ok(tonic::Response::new(constant()))
    }
}

async fn tonic_constant(listener: TcpListener) {
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(Constant));
    server.serve_with_incoming(incoming).await.expect("a server");
}

async fn hyper_constant(stream: TcpStream) {
    // Clients disconnect at the end of a round.
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service_fn(answer)).await;
}

async fn inline_constant(stream: TcpStream) {
    let inline = Inline::default();
    let builder = http2::Builder::new(inline.clone());
    inline.drive(builder.serve_connection(TokioIo::new(stream), service_fn(answer))).await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let message = RateLimitRequest::decode(&body[5..]).expect("a message");
    assert_eq!(message.domain, "bench");
    let answer = constant();
    let mut bytes = BytesMut::with_capacity(5 + answer.encoded_len());
    bytes.put_u8(0);
    bytes.put_u32(answer.encoded_len() as u32);
    answer.encode(&mut bytes).expect("room");
    let mut response = Response::new(Answer::Message(bytes.freeze()));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

enum Answer {
    Message(Bytes),
    Trailers,
    Done,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (frame, rest) = match &mut *self {
            Answer::Message(bytes) => (Frame::data(std::mem::take(bytes)), Answer::Trailers),
            Answer::Trailers => {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                (Frame::trailers(trailers), Answer::Done)
            }
            Answer::Done => return Poll::Ready(None),
        };
        *self = rest;
        Poll::Ready(Some(Ok(frame)))
    }
}

/// Collects requests and runs them on the connection's own task, like Tidegate's listener.
#[derive(Clone, Default)]
struct Inline(Arc<Mutex<Vec<Task>>>);

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Inline {
    fn execute(&self, future: F) {
        self.0.lock().expect("nobody panics").push(Box::pin(future));
    }
}

impl Inline {
    async fn drive(&self, connection: impl Future) {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            loop {
                if connection.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                let taken = std::mem::take(&mut *self.0.lock().expect("nobody panics"));
                if taken.is_empty() {
                    return Poll::Pending;
                }
                for mut request in taken {
                    if request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                        tokio::spawn(request);
                    }
                }
            }
        })
        .await;
    }
}
