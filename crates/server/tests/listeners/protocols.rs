//! Requests over HTTP/2 and gRPC, and through the middleware in this process.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;

use bytes::Bytes;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use http::{Request, Response, Version};
use http_body_util::Full;
use tidegate_rules::{PathPolicy, RuleSet};
use tidegate_tower::RateLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

use crate::listeners::requests::{Verdict, Written};

/// A request as libraries build it. The target, if it is a whole URI, names the authority.
pub(crate) fn built<B>(request: &Written, headers: &[(&str, &str)], version: Version, body: B) -> Request<B> {
    let Written { method, target, host, .. } = request;
    let uri = if target.starts_with('/') { format!("http://{host}{target}") } else { (*target).to_owned() };
    let builder = Request::builder().method(*method).uri(uri).version(version);
    headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(body).unwrap()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Sends a request over an HTTP/2 connection of its own. Returns the status.
pub(crate) fn http2(to: SocketAddr, request: Request<()>) -> u16 {
    run(async {
        let stream = tokio::net::TcpStream::connect(to).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
        response.await.unwrap().status().as_u16()
    })
}

/// Asks Envoy's service about one descriptor.
pub(crate) fn grpc(to: SocketAddr, entries: Vec<(String, String)>) -> Verdict {
    let entries = entries.into_iter().map(|(key, value)| Entry { key, value }).collect();
    let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: "tidegate".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
    let response = run(async {
        let mut client = RateLimitServiceClient::connect(format!("http://{to}")).await.unwrap();
        client.should_rate_limit(request).await.unwrap().into_inner()
    });
    match response.overall_code() {
        Code::Ok => Verdict::Allow,
        Code::OverLimit => Verdict::Deny,
        Code::Unknown => panic!("{response:?}"),
    }
}

/// The middleware by the same rules, in front of a service that answers every request with 200.
pub(crate) struct Middleware {
    layer: RateLimitLayer,
}

impl Middleware {
    pub(crate) fn new(rules: &str) -> Middleware {
        let rules = RuleSet::parse("rules.yaml", rules).unwrap_or_else(|findings| panic!("{findings}")).rules;
        Middleware { layer: RateLimitLayer::rules(rules).paths(PathPolicy::AsIs) }
    }

    /// The status of the response.
    pub(crate) fn ask(&self, request: Request<Full<Bytes>>) -> u16 {
        let answer = |_: Request<Full<Bytes>>| async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::new()))) };
        let service = service_fn(answer);
        run(self.layer.layer(service).oneshot(request)).unwrap().status().as_u16()
    }
}
