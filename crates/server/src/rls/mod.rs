//! Envoy's rate-limit service, over gRPC and as JSON.
//!
//! One port takes all of it. gRPC's one busy method, `ShouldRateLimit`, is answered right here on hyper's HTTP/2
//! (`grpc.rs`); health and reflection are tonic's (`health_and_reflection.rs`); `POST /json` is the same question over plain HTTP
//! (`json.rs`). A message becomes a question to the limiter (`question.rs`), and what was decided becomes a message
//! (`answer.rs`).

mod answer;
mod connection;
mod grpc;
mod headers;
mod health_and_reflection;
mod inline_executor;
mod json;
mod metadata;
mod question;
mod service;
mod settings;

pub use self::settings::{MetadataStyle, Settings};

use std::sync::Arc;

use arc_swap::ArcSwap;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_core::{Clock, SystemClock};
use tidegate_rules::DescriptorsRuling;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use self::health_and_reflection::HealthAndReflection;
use self::question::{QuestionError, RlsQuestion};
use crate::engine::Engine;
use crate::readiness::StoreTrouble;

type AnswerBody = crate::answer_body::AnswerBody<tonic::body::Body>;

/// Answers Envoy.
///
/// ```no_run
/// # async fn example(engine: std::sync::Arc<tidegate::engine::Engine>) -> std::io::Result<()> {
/// use tidegate::rls::{RlsServer, Settings};
/// use tokio_util::sync::CancellationToken;
///
/// let server = RlsServer::open(engine, Settings::default()).await;
/// let stop = CancellationToken::new();
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8081").await?;
/// loop {
///     let (stream, _) = listener.accept().await?;
///     tokio::spawn(server.clone().serve_connection(stream, stop.clone()));
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct RlsServer(Arc<RlsState>);

struct RlsState {
    engine: Arc<Engine>,
    settings: ArcSwap<Settings>,
    services: HealthAndReflection,
    clock: SystemClock,
}

impl RlsServer {
    /// Answers by `engine`. gRPC's health service reports that it serves from now on.
    pub async fn open(engine: Arc<Engine>, settings: Settings) -> RlsServer {
        let settings = ArcSwap::from_pointee(settings);
        RlsServer(Arc::new(RlsState {
            engine,
            settings,
            services: HealthAndReflection::open().await,
            clock: SystemClock::new(),
        }))
    }

    /// Behaves as `settings` say from the next request on, and what concerns connections from the next connection on.
    pub fn apply(&self, settings: Settings) {
        self.0.settings.store(Arc::new(settings));
    }

    /// Serves one connection until either side ends it. On `stop` it takes no further requests, and ends when those
    /// in flight are answered.
    pub async fn serve_connection(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        stop: CancellationToken,
    ) {
        connection::serve(self, stream, stop).await;
    }

    /// Has gRPC's health service report from now on that the listener is about to close.
    pub async fn closing(&self) {
        self.0.services.close().await;
    }

    /// Has gRPC's health service report whether the store is available, if that is required. To be called now and then.
    pub(crate) async fn report_health(&self) {
        self.0.services.set_serving(self.has_what_it_needs()).await;
    }

    /// Whether requests can be answered as the settings want.
    fn is_ready(&self) -> bool {
        !self.0.services.is_closing() && self.has_what_it_needs()
    }

    fn has_what_it_needs(&self) -> bool {
        !self.0.settings.load().store_required || StoreTrouble::of(&self.0.engine).is_none()
    }

    /// Answers one message.
    async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, QuestionError> {
        let (engine, settings) = (&self.0.engine, self.0.settings.load_full());
        let question = RlsQuestion::new(request, &settings)?;
        let at = self.0.clock.now();
        let generation = engine.limiter().rules();
        let (asked, terms) = (question.asked(), settings.terms(&request.domain));
        let decided = match generation.rules.domain(&request.domain) {
            Some(domain) => engine.check_descriptors(&generation, domain, &asked, terms).await,
            None if settings.is_own(&request.domain) => engine.check_entries(&generation, &asked, terms.charging).await,
            None => {
                engine.metrics().unknown_domain();
                DescriptorsRuling::unlimited(&generation, asked.len())
            }
        };
        Ok(answer::answer(request, &decided, &settings, at))
    }
}
