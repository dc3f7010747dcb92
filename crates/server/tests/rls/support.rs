//! A server on a separate socket, and a client generated from Envoy's messages.

use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::UInt64Value;
use tidegate::engine::Engine;
use tidegate::rls::{RlsServer, Settings};
use tidegate::store::AnyStore;
use tidegate_core::MemoryStore;
use tidegate_rules::{Limiter, RuleSet};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// A server that is open until dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) server: RlsServer,
    pub(crate) engine: Arc<Engine>,
    pub(crate) stop: CancellationToken,
    /// Completes once the server has stopped accepting and all connections have ended.
    pub(crate) closed: tokio::task::JoinHandle<()>,
    _stops: DropGuard,
}

impl Served {
    pub(crate) async fn new(rules: &str) -> Served {
        Served::with(rules, Settings::default()).await
    }

    pub(crate) async fn with(rules: &str, settings: Settings) -> Served {
        Served::with_store(rules, settings, MemoryStore::new().into()).await
    }

    pub(crate) async fn with_store(rules: &str, settings: Settings, store: AnyStore) -> Served {
        let rules = RuleSet::parse("limits.yaml", rules).unwrap_or_else(|findings| panic!("{findings}")).rules;
        let engine = Arc::new(Engine::new(Limiter::new(rules, store)));
        let server = RlsServer::open(Arc::clone(&engine), settings).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let closed = tokio::spawn(serve(listener, server.clone(), stop.clone()));
        Served { address, server, engine, _stops: stop.clone().drop_guard(), stop, closed }
    }

    pub(crate) async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::connect(format!("http://{}", self.address)).await.unwrap()
    }

    pub(crate) async fn ask(&self, request: RateLimitRequest) -> RateLimitResponse {
        self.client().await.should_rate_limit(request).await.unwrap().into_inner()
    }

    pub(crate) async fn refused(&self, request: RateLimitRequest) -> (Code, String) {
        let status: Status = self.client().await.should_rate_limit(request).await.unwrap_err();
        (status.code(), status.message().to_owned())
    }
}

async fn serve(listener: TcpListener, server: RlsServer, stop: CancellationToken) {
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = open.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { continue };
        let _ = stream.set_nodelay(true);
        open.spawn(server.clone().serve_connection(stream, stop.clone()));
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// A request with descriptors such as `user=alice path=/`.
pub(crate) fn request(domain: &str, descriptors: &[&str]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(|asked| descriptor(asked)).collect(),
        hits_addend: 0,
    }
}

pub(crate) fn descriptor(asked: &str) -> RateLimitDescriptor {
    let entry = |entry: &str| {
        let (key, value) = entry.split_once('=').unwrap();
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    RateLimitDescriptor { entries: asked.split_whitespace().map(entry).collect(), ..RateLimitDescriptor::default() }
}

pub(crate) fn with_hits(asked: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(asked) }
}

pub(crate) fn with_limit(asked: &str, requests_per_unit: u32, unit: RateLimitUnit) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit, unit: unit.into() };
    RateLimitDescriptor { limit: Some(limit), ..descriptor(asked) }
}

/// Formats a response as `OK: OK 4, OVER_LIMIT 0`: the overall code, and each descriptor's with the remaining amount.
pub(crate) fn told(response: &RateLimitResponse) -> String {
    let of = |status: &envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus| {
        format!("{} {}", status.code().as_str_name(), status.limit_remaining)
    };
    let statuses: Vec<_> = response.statuses.iter().map(of).collect();
    format!("{}: {}", response.overall_code().as_str_name(), statuses.join(", "))
}

pub(crate) fn header<'r>(response: &'r RateLimitResponse, name: &str) -> Option<&'r str> {
    let headers = response.response_headers_to_add.iter();
    headers.clone().find(|header| header.key.eq_ignore_ascii_case(name)).map(|header| header.value.as_str())
}
