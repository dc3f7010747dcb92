//! Listeners of a server in this process, over loopback.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use http::HeaderName;
use tidegate_core::MemoryStore;
use tidegate_http::{ForwardingHeader, TrustedProxies};
use tidegate_rules::{Limiter, RuleSet};
use tokio_util::sync::CancellationToken;

use super::BenchError;
use super::grpc::GrpcClient;
use super::latencies::Latencies;
use super::load::{MeasuredWindow, drive};
use super::upstream::BenchUpstream;
use super::wire::{Http1Client, RespClient, USER_HEADER};
use crate::api::AuthHeaders;
use crate::engine::Engine;
use crate::gateway::{GatewayServer, Route};
use crate::serve::Listeners;
use crate::store::AnyStore;
use crate::{api, gateway, listen, resp, rls};

/// Limit of each key. The bucket is full again 8.64 seconds after a request.
pub(super) const LIMIT: &str = "10000/day burst 10000";

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An engine with one rule, and its listeners, which close on drop.
struct LoopbackServer {
    engine: Arc<Engine>,
    listeners: Listeners,
    stop: CancellationToken,
}

impl LoopbackServer {
    fn new() -> Result<LoopbackServer, BenchError> {
        let engine = engine(LIMIT, MemoryStore::new().into())?;
        let stop = CancellationToken::new();
        Ok(LoopbackServer { listeners: Listeners::new(Arc::clone(&engine), stop.clone()), engine, stop })
    }
}

impl Drop for LoopbackServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// An engine with one rule, which limits each user separately.
pub(super) fn engine(limit: &str, store: AnyStore) -> Result<Arc<Engine>, BenchError> {
    let text = format!("rules: [{{ id: bench, key: user, limit: {limit}, on_store_failure: deny }}]");
    let rules = RuleSet::parse("bench.yaml", &text).map_err(BenchError::Rules)?.rules;
    Ok(Arc::new(Engine::new(Limiter::new(rules, store))))
}

/// Measures `POST /v1/check`.
pub(super) async fn http_api(
    connections: NonZeroU32,
    keys: NonZeroU32,
    window: MeasuredWindow,
) -> Result<Latencies, BenchError> {
    let mut server = LoopbackServer::new()?;
    let (engine, stop) = (Arc::clone(&server.engine), server.stop.clone());
    let service = api::ApiServer::new(engine, api::Settings::default(), None, None, stop);
    let at = server.listeners.open_api(listen::Settings::at(ANY_PORT), service)?.address();
    let mut clients = Vec::new();
    for _ in 0..connections.get() {
        clients.push(Http1Client::of_api(at).await?);
    }
    drive(clients, keys, window).await
}

/// Measures `ShouldRateLimit`.
pub(super) async fn grpc(
    connections: NonZeroU32,
    keys: NonZeroU32,
    window: MeasuredWindow,
) -> Result<Latencies, BenchError> {
    let mut server = LoopbackServer::new()?;
    let service = rls::RlsServer::open(Arc::clone(&server.engine), rls::Settings::default()).await;
    let at = server.listeners.open_rls(listen::Settings::at(ANY_PORT), service)?.address();
    let mut clients = Vec::new();
    for _ in 0..connections.get() {
        clients.push(GrpcClient::connect(at).await?);
    }
    drive(clients, keys, window).await
}

/// Measures `CL.THROTTLE`.
pub(super) async fn redis_protocol(
    connections: NonZeroU32,
    keys: NonZeroU32,
    window: MeasuredWindow,
) -> Result<Latencies, BenchError> {
    let mut server = LoopbackServer::new()?;
    let service = resp::RespServer::new(Arc::clone(&server.engine), resp::Settings::default());
    let at = server.listeners.open_resp(listen::Settings::at(ANY_PORT), service)?.address();
    let mut clients = Vec::new();
    for _ in 0..connections.get() {
        clients.push(RespClient::connect(at).await?);
    }
    drive(clients, keys, window).await
}

/// Measures requests through the gateway.
pub(super) async fn gateway(
    connections: NonZeroU32,
    keys: NonZeroU32,
    window: MeasuredWindow,
) -> Result<Latencies, BenchError> {
    let upstream = BenchUpstream::open().await?;
    let mut server = LoopbackServer::new()?;
    let mut settings = gateway::Settings::new(vec![Route::of_everything(vec![upstream.url().parse()?])]);
    settings.auth_headers = AuthHeaders { user: Some(HeaderName::from_static(USER_HEADER)), ..AuthHeaders::default() };
    settings.proxies = TrustedProxies::new([ANY_PORT.ip().into()], ForwardingHeader::XForwardedFor);
    let service = GatewayServer::open(&server.engine, settings, None, &server.stop);
    let at = server.listeners.open_gateway(listen::Settings::at(ANY_PORT), service)?.address();
    let mut clients = Vec::new();
    for _ in 0..connections.get() {
        clients.push(Http1Client::of_gateway(at).await?);
    }
    drive(clients, keys, window).await
}
