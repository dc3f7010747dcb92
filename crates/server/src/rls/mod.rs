//! Envoy's rate-limit service, over gRPC and as JSON.
//!
//! One port serves everything. `ShouldRateLimit`, the only frequent gRPC method, is served directly on hyper's HTTP/2
//! (`grpc.rs`). Health and reflection use tonic (`health_and_reflection.rs`). `POST /json` is the same method over
//! plain HTTP (`json.rs`). A message (`messages.rs`) is converted to a question for the limiter (`question.rs`), and
//! the ruling to a response (`answer.rs`).

mod answer;
mod connection;
mod grpc;
mod headers;
mod health_and_reflection;
mod inline_executor;
mod json;
pub(crate) mod messages;
mod metadata;
mod question;
mod service;
mod settings;

pub use self::settings::{MetadataStyle, Settings};

use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_core::{Clock, SystemClock};
use tidegate_rules::DescriptorsRuling;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use self::health_and_reflection::HealthAndReflection;
use self::messages::{RateLimitRequest, RateLimitResponse};
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
    /// A service that decides with `engine`. gRPC's health service reports it as serving.
    pub async fn open(engine: Arc<Engine>, settings: Settings) -> RlsServer {
        let settings = ArcSwap::from_pointee(settings);
        RlsServer(Arc::new(RlsState {
            engine,
            settings,
            services: HealthAndReflection::open().await,
            clock: SystemClock::new(),
        }))
    }

    /// Replaces the settings. Settings of connections apply to new connections, all others from the next request on.
    pub fn apply(&self, settings: Settings) {
        self.0.settings.store(Arc::new(settings));
    }

    /// Serves one connection until either side closes it. On `stop`, it accepts no further requests, and ends once
    /// those in flight are complete.
    pub async fn serve_connection(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        stop: CancellationToken,
    ) {
        connection::serve(self, stream, stop).await;
    }

    /// Makes gRPC's health service report that the listener is about to close.
    pub async fn closing(&self) {
        self.0.services.close().await;
    }

    /// Makes gRPC's health service report whether the store is available, if that is required. Call it periodically.
    pub(crate) async fn report_health(&self) {
        self.0.services.set_serving(self.has_what_it_needs()).await;
    }

    /// Whether the service is ready according to the settings.
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
