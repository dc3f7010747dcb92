//! Spans, sent to a collector.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use opentelemetry::context::FutureExt;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

use super::{Settings, Told, TracesError};

/// How long the last spans may take to be sent when the server stops.
const PARTING: Duration = Duration::from_secs(2);

/// Makes a span of each request that is decided, unless nobody wants them. A clone is the same.
#[derive(Clone, Default)]
pub struct Traces(Option<Sending>);

#[derive(Clone)]
struct Sending {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Traces").field(&self.0.is_some()).finish()
    }
}

impl Traces {
    /// Sends spans to a collector from now on. It may be away: spans are dropped then. To be called within Tokio.
    ///
    /// # Errors
    /// If the address makes no sense.
    pub fn open(settings: &Settings) -> Result<Traces, TracesError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&settings.endpoint).build();
        let exporter = exporter.map_err(|error| TracesError::Endpoint { reason: error.to_string() })?;
        let resource = Resource::builder()
            .with_service_name(settings.service.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            // Whoever has begun a trace has said whether it is to be kept.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample))))
            .with_resource(resource.build())
            .build();
        // For the calls to a store, which do not know whose they are.
        opentelemetry::global::set_tracer_provider(provider.clone());
        let tracer = provider.tracer("tidegate");
        Ok(Traces(Some(Sending { provider, tracer })))
    }

    /// Whether anybody wants them.
    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Answers a request in the trace that its headers name.
    pub(crate) async fn within<T>(&self, headers: &HeaderMap, answering: impl Future<Output = T>) -> T {
        if !self.is_on() || !headers.contains_key(&TRACEPARENT) {
            return answering.await;
        }
        let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        answering.with_context(caller).await
    }

    /// Decides, in a span that is told what was decided.
    #[inline]
    pub(crate) async fn span<F: Future>(
        &self,
        name: &'static str,
        decide: impl FnOnce() -> F,
        tell: impl FnOnce(&F::Output) -> Told,
    ) -> F::Output {
        let Some(Sending { tracer, .. }) = &self.0 else { return decide().await };
        let span = tracer.build(tracer.span_builder(name).with_kind(SpanKind::Server));
        if !span.is_recording() {
            return decide().await;
        }
        let here = Context::current_with_span(span);
        let decided = decide().with_context(here.clone()).await;
        let Told { outcome, rule, by, generation } = tell(&decided);
        let span = here.span();
        span.set_attribute(KeyValue::new("tidegate.outcome", outcome));
        span.set_attributes(rule.map(|rule| KeyValue::new("tidegate.rule", rule)));
        span.set_attributes(by.map(|by| KeyValue::new("tidegate.decided_by", by)));
        span.set_attributes(
            generation.map(|number| KeyValue::new("tidegate.generation", i64::try_from(number).unwrap_or(i64::MAX))),
        );
        span.end();
        decided
    }

    /// Sends what is left.
    pub(crate) fn close(&self) {
        if let Some(Sending { provider, .. }) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(PARTING)
        {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// Asks a store that is elsewhere, in a span of its own if the request has one.
#[inline]
pub(crate) async fn store_call<T>(
    name: &'static str,
    call: impl Future<Output = T>,
    is_well: impl FnOnce(&T) -> bool,
) -> T {
    let is_wanted = Context::map_current(|here| here.has_active_span() && here.span().is_recording());
    if !is_wanted {
        return call.await;
    }
    let tracer = opentelemetry::global::tracer("tidegate");
    let mut span = tracer.build(tracer.span_builder(name).with_kind(SpanKind::Client));
    let answer = call.await;
    span.set_attribute(KeyValue::new("db.system", "redis"));
    if !is_well(&answer) {
        span.set_status(Status::error("the store did not answer"));
    }
    span.end();
    answer
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Headers, as OpenTelemetry reads them.
struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}
