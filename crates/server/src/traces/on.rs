//! Sends spans to a collector.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::future::Either;
use http::{HeaderMap, HeaderName};
use opentelemetry::context::FutureExt;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

use tidegate_core::store::NowOrLater;

use super::{Settings, SpanAttributes, TracesError};

/// Timeout for sending the last spans at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

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
    /// Starts sending spans to a collector. Spans are dropped while it is unavailable. Must be called within a Tokio
    /// runtime.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn open(settings: &Settings) -> Result<Traces, TracesError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&settings.endpoint).build();
        let exporter = exporter.map_err(|error| TracesError::Endpoint { reason: error.to_string() })?;
        let resource = Resource::builder()
            .with_service_name(settings.service.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            // Respects the sampling decision of the caller.
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample))))
            .with_resource(resource.build())
            .build();
        // Spans of store calls use the global provider.
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

    /// Calls `decide`, and creates a span of the decision with the attributes from `tell`. A future that is never
    /// polled has no span.
    #[inline]
    pub(crate) fn span<F: Future>(
        &self,
        name: &'static str,
        decide: impl FnOnce() -> NowOrLater<F::Output, F>,
        tell: impl FnOnce(&F::Output) -> SpanAttributes,
    ) -> NowOrLater<F::Output, impl Future<Output = F::Output>> {
        let Some(Exporter { tracer, .. }) = &self.0 else { return decide().map_later(Either::Left) };
        let begun = opentelemetry::time::now();
        match decide() {
            NowOrLater::Now(decided) => {
                let builder = tracer.span_builder(name).with_kind(SpanKind::Server).with_start_time(begun);
                let mut span = tracer.build(builder);
                if span.is_recording() {
                    span.set_attributes(tell(&decided).into_key_values());
                    span.end();
                }
                NowOrLater::Now(decided)
            }
            NowOrLater::Later(deciding) => NowOrLater::Later(Either::Right(async move {
                let span = tracer.build(tracer.span_builder(name).with_kind(SpanKind::Server));
                if !span.is_recording() {
                    return deciding.await;
                }
                let here = Context::current_with_span(span);
                let decided = deciding.with_context(here.clone()).await;
                here.span().set_attributes(tell(&decided).into_key_values());
                here.span().end();
                decided
            })),
        }
    }

    /// Sends the remaining spans.
    pub(crate) fn close(&self) {
        if let Some(Exporter { provider, .. }) = &self.0
            && let Err(error) = provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT)
        {
            tracing::warn!(%error, "the last traces were not sent");
        }
    }
}

impl SpanAttributes {
    fn into_key_values(self) -> impl Iterator<Item = KeyValue> {
        let SpanAttributes { outcome, rule, by, generation } = self;
        let generation = generation.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        let outcome = std::iter::once(KeyValue::new("tidegate.outcome", outcome));
        outcome
            .chain(rule.map(|rule| KeyValue::new("tidegate.rule", rule)))
            .chain(by.map(|by| KeyValue::new("tidegate.decided_by", by)))
            .chain(generation.map(|number| KeyValue::new("tidegate.generation", number)))
    }
}

/// Calls a remote store, in a child span if the request has a span.
#[inline]
pub(crate) async fn store_call<T>(
    name: &'static str,
    call: impl Future<Output = T>,
    is_healthy: impl FnOnce(&T) -> bool,
) -> T {
    let is_wanted = Context::map_current(|here| here.has_active_span() && here.span().is_recording());
    if !is_wanted {
        return call.await;
    }
    let tracer = opentelemetry::global::tracer("tidegate");
    let mut span = tracer.build(tracer.span_builder(name).with_kind(SpanKind::Client));
    let answer = call.await;
    span.set_attribute(KeyValue::new("db.system", "redis"));
    if !is_healthy(&answer) {
        span.set_status(Status::error("the store did not answer"));
    }
    span.end();
    answer
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Adapts headers to OpenTelemetry's interface.
struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}
