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

use super::{Settings, SpanAttributes, TracesError};

/// Time to send the last spans when the server stops.
const PARTING: Duration = Duration::from_secs(2);

/// Creates a span for each decision, if traces are on. Clones share the exporter.
#[derive(Clone, Default)]
pub struct Traces(Option<Exporter>);

#[derive(Clone)]
struct Exporter {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Traces").field(&self.0.is_some()).finish()
    }
}

impl Traces {
    /// Starts sending spans to a collector. Spans are dropped while it is unavailable. Call it within a Tokio runtime.
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
            // The sampling decision of the caller is respected.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample))))
            .with_resource(resource.build())
            .build();
        // For spans of store calls, which use the global provider.
        opentelemetry::global::set_tracer_provider(provider.clone());
        let tracer = provider.tracer("tidegate");
        Ok(Traces(Some(Exporter { provider, tracer })))
    }

    /// Whether traces are on.
    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Runs `answering` in the trace of the request's headers.
    pub(crate) async fn within<T>(&self, headers: &HeaderMap, answering: impl Future<Output = T>) -> T {
        if !self.is_on() || !headers.contains_key(&TRACEPARENT) {
            return answering.await;
        }
        let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        answering.with_context(caller).await
    }

    /// Runs `decide` in a span with the attributes from `tell`.
    #[inline]
    pub(crate) async fn span<F: Future>(
        &self,
        name: &'static str,
        decide: impl FnOnce() -> F,
        tell: impl FnOnce(&F::Output) -> SpanAttributes,
    ) -> F::Output {
        let Some(Exporter { tracer, .. }) = &self.0 else { return decide().await };
        let span = tracer.build(tracer.span_builder(name).with_kind(SpanKind::Server));
        if !span.is_recording() {
            return decide().await;
        }
        let here = Context::current_with_span(span);
        let decided = decide().with_context(here.clone()).await;
        let SpanAttributes { outcome, rule, by, generation } = tell(&decided);
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

    /// Sends the remaining spans.
    pub(crate) fn close(&self) {
        if let Some(Exporter { provider, .. }) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(PARTING)
        {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

/// Calls a remote store, in a child span if the request has a span.
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
