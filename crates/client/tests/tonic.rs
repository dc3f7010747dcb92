//! tonic's generated clients through the layer, against a real tonic server.

use std::collections::VecDeque;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::{self, Empty};
use tidegate_client::{BoxError, ClientLayer, Deadline, DeadlineExceeded, HostSnapshot, ReplayBody};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_types::{ErrorDetails, StatusExt};
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt};

const NAME: &str = "health.internal";

/// A service that refuses the first calls with these statuses, and records all requests.
#[derive(Clone, Default)]
struct Refusing {
    statuses: Arc<Mutex<VecDeque<Status>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    is_silent: bool,
}

#[derive(Clone, Debug)]
struct Seen {
    at: Instant,
    service: String,
    timeout: Option<Duration>,
}

#[tonic::async_trait]
impl Health for Refusing {
    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let timeout = request.metadata().get("grpc-timeout").map(|value| micros(value.to_str().unwrap()));
        let seen = Seen { at: Instant::now(), service: request.into_inner().service, timeout };
        self.seen.lock().unwrap().push(seen);
        if self.is_silent {
            std::future::pending::<()>().await;
        }
        match self.statuses.lock().unwrap().pop_front() {
            Some(status) => Err(status),
            None => Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() })),
        }
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(stream::empty()))
    }
}

/// A timeout in milliseconds or microseconds.
fn micros(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.len() - 1);
    let number = number.parse().unwrap();
    match unit {
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        _ => panic!("{text}"),
    }
}

/// A status with this `RetryInfo`.
fn refusal(code: Code, wait: Duration) -> Status {
    Status::with_error_details(code, "come back later", ErrorDetails::with_retry_info(Some(wait)))
}

impl Refusing {
    fn with(statuses: impl IntoIterator<Item = Status>) -> Refusing {
        Refusing { statuses: Arc::new(Mutex::new(statuses.into_iter().collect())), ..Refusing::default() }
    }

    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::builder().add_service(HealthServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        address
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

type Client = HealthClient<BoxCloneSyncService<http::Request<Body>, http::Response<Body>, BoxError>>;

/// A generated client through a layer without a pace, so that only retries delay calls.
fn client(address: SocketAddr) -> (Client, ClientLayer) {
    let layer = ClientLayer::new().without_pace().host(NAME).random(|| 0.0);
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .map_request(|request: http::Request<ReplayBody<Body>>| request.map(Body::new))
        .service(channel);
    (HealthClient::new(BoxCloneSyncService::new(service)), layer)
}

fn known(layer: &ClientLayer) -> HostSnapshot {
    layer.snapshot()[NAME].clone()
}

fn question(timeout: Option<Duration>) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest { service: "search".to_owned() });
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    request
}

#[tokio::test]
async fn a_refused_call_is_retried_after_the_time_that_the_service_names() {
    for code in [Code::ResourceExhausted, Code::Unavailable] {
        let hint = Duration::from_millis(150);
        let service = Refusing::with([refusal(code, hint), refusal(code, hint)]);
        let (mut client, layer) = client(service.start().await);
        let answer = client.check(question(None)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{code:?}");
        let seen = service.seen();
        assert!(seen.iter().all(|seen| seen.service == "search" && seen.timeout.is_none()), "{seen:?}");
        assert!(seen.windows(2).all(|pair| pair[1].at - pair[0].at >= hint), "{seen:?}");
        let known = known(&layer);
        assert_eq!((seen.len(), known.calls, known.retries, known.retry_waited), (3, 1, 2, hint * 2), "{code:?}");
    }
}

#[tokio::test]
async fn a_retry_states_the_time_that_is_left() {
    let (hint, timeout) = (Duration::from_millis(150), Duration::from_secs(60));
    let service = Refusing::with([refusal(Code::Unavailable, hint)]);
    let (mut client, _) = client(service.start().await);
    client.check(question(Some(timeout))).await.unwrap();
    let stated: Vec<Duration> = service.seen().iter().filter_map(|seen| seen.timeout).collect();
    assert_eq!(stated.len(), 2);
    assert_eq!(stated[0], timeout);
    assert!(stated[1] <= timeout - hint && !stated[1].is_zero(), "{stated:?}");
}

#[tokio::test]
async fn a_call_whose_deadline_cannot_be_met_returns_at_once() {
    for code in [Code::ResourceExhausted, Code::Unavailable] {
        let service = Refusing::with([refusal(code, Duration::from_secs(25))]);
        let (mut client, layer) = client(service.start().await);
        let status = client.check(question(Some(Duration::from_secs(20)))).await.unwrap_err();
        let hint = status.get_details_retry_info().and_then(|info| info.retry_delay);
        assert_eq!((status.code(), hint), (code, Some(Duration::from_secs(25))), "the refusal itself, not a timeout");
        let known = known(&layer);
        assert_eq!((service.seen().len(), known.retries, known.retry_waited), (1, 0, Duration::ZERO));
    }
}

#[tokio::test]
async fn the_deadline_ends_a_call_that_is_not_answered() {
    let service = Refusing { is_silent: true, ..Refusing::default() };
    let (mut client, _) = client(service.start().await);
    let mut hurried = question(None);
    hurried.extensions_mut().insert(Deadline(Instant::now() + Duration::from_millis(50)));
    let status = client.check(hurried).await.unwrap_err();
    let source = status.source().unwrap();
    assert!(source.is::<DeadlineExceeded>(), "{source}");
}

#[tokio::test]
async fn a_call_that_must_not_be_repeated_is_sent_once() {
    let mut forbidden = refusal(Code::Unavailable, Duration::ZERO);
    forbidden.metadata_mut().insert("grpc-retry-pushback-ms", MetadataValue::from_static("-1"));
    for status in [Status::unavailable("no time is named"), forbidden, Status::internal("a fault")] {
        let (code, service) = (status.code(), Refusing::with([status]));
        let (mut client, _) = client(service.start().await);
        assert_eq!(client.check(question(None)).await.unwrap_err().code(), code);
        assert_eq!(service.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_connection_that_was_refused_is_tried_again() {
    // Bound, so that nobody else listens there.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let (mut client, layer) = client(silent.local_addr().unwrap());
    assert!(client.check(question(None)).await.is_err());
    assert_eq!(known(&layer).retries, 2);
}

/// hyper-util's client marks errors of connections that its connector could not make, for any reason.
#[cfg(feature = "hyper-util")]
#[tokio::test]
async fn a_connection_that_hyper_util_could_not_make_is_tried_again() {
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::net::TcpStream;

    let failing = tower::service_fn(|_: http::Uri| {
        std::future::ready(Err::<TokioIo<TcpStream>, _>(std::io::Error::other("no address for this name")))
    });
    let layer = ClientLayer::new().random(|| 0.0);
    let http = Client::builder(TokioExecutor::new()).build::<_, ReplayBody<Full<Bytes>>>(failing);
    let client = ServiceBuilder::new().layer(layer.clone()).service(http);
    let request = http::Request::post("http://nowhere.internal/").body(Full::from("hello")).unwrap();
    assert!(client.oneshot(request).await.is_err());
    assert_eq!(layer.snapshot()["nowhere.internal"].retries, 2);
}

/// A connection that takes a request and then breaks with this error.
#[cfg(feature = "hyper-util")]
struct Breaking {
    kind: std::io::ErrorKind,
    has_written: bool,
    reader: Option<std::task::Waker>,
}

#[cfg(feature = "hyper-util")]
mod breaking {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use hyper_util::client::legacy::connect::{Connected, Connection};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::Breaking;

    impl AsyncRead for Breaking {
        fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if self.has_written {
                return Poll::Ready(Err(self.kind.into()));
            }
            self.reader = Some(context.waker().clone());
            Poll::Pending
        }
    }

    impl AsyncWrite for Breaking {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.has_written = true;
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Connection for Breaking {
        fn connected(&self) -> Connected {
            Connected::new()
        }
    }
}

/// The system ends established connections with errors of `connect` too.
#[cfg(feature = "hyper-util")]
#[tokio::test]
async fn a_request_that_was_delivered_is_not_sent_again_whatever_ends_its_connection() {
    use std::io::ErrorKind;

    use bytes::Bytes;
    use http_body_util::Full;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    for kind in [ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable, ErrorKind::ConnectionRefused] {
        let connector = tower::service_fn(move |_: http::Uri| {
            let connection = Breaking { kind, has_written: false, reader: None };
            std::future::ready(Ok::<_, std::io::Error>(TokioIo::new(connection)))
        });
        let layer = ClientLayer::new().random(|| 0.0);
        let http = Client::builder(TokioExecutor::new()).build::<_, ReplayBody<Full<Bytes>>>(connector);
        let client = ServiceBuilder::new().layer(layer.clone()).service(http);
        let request = http::Request::post("http://far.internal/").body(Full::from("hello")).unwrap();
        assert!(client.oneshot(request).await.is_err());
        assert_eq!(layer.snapshot()["far.internal"].retries, 0, "{kind:?}");
    }
}

/// tonic's channel knows of connections that it could not make, for whatever reason.
#[cfg(feature = "tonic")]
#[tokio::test]
async fn a_connection_that_tonic_could_not_make_is_tried_again() {
    let failing = tower::service_fn(|_: http::Uri| {
        let unreachable = std::io::Error::from(std::io::ErrorKind::HostUnreachable);
        std::future::ready(Err::<hyper_util::rt::TokioIo<tokio::net::TcpStream>, _>(unreachable))
    });
    let layer = ClientLayer::new().without_pace().host(NAME).random(|| 0.0);
    let channel = Channel::from_static("http://nowhere.internal").connect_with_connector_lazy(failing);
    let service = ServiceBuilder::new()
        .layer(layer.clone())
        .map_request(|request: http::Request<ReplayBody<Body>>| request.map(Body::new))
        .service(channel);
    let mut client = HealthClient::new(BoxCloneSyncService::new(service));
    assert!(client.check(question(None)).await.is_err());
    assert_eq!(known(&layer).retries, 2);
}
