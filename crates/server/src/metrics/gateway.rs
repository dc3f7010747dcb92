//! Metrics of the gateway, by route and upstream.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use tidegate_core::adaptive::AdaptiveConcurrency;
use tidegate_core::shed::LoadShedder;
use tidegate_rules::Priority;

use super::ListenerKind;
use super::cause::FailureCause;
use super::histogram::HistogramSnapshot;
use super::page::{Labels, Page};
use super::thread_counters::ThreadCounters;

/// Counters of the gateway. Routes and upstreams come from the configuration, so their number is bounded.
#[derive(Debug)]
pub(crate) struct GatewayMetrics {
    clock: quanta::Clock,
    /// Requests begun and ended.
    in_flight: ThreadCounters<2>,
    routes: Vec<Arc<RouteMetrics>>,
    /// Requests without a route, or that ended before it was determined.
    without_route: RouteMetrics,
}

/// Counters of a route.
#[derive(Debug)]
pub(crate) struct RouteMetrics {
    name: String,
    /// Responses by the class of their status, in the order of [`StatusClass::ALL`], then bytes in and out.
    requests: ThreadCounters<8>,
    errors: [AtomicU64; FailureCause::ALL.len()],
    retries: AtomicU64,
    /// Load shedder of the route, if enabled.
    shedder: OnceLock<LoadShedder>,
    upstreams: Vec<Arc<UpstreamMetrics>>,
}

/// Counters of an upstream address of a route.
#[derive(Debug)]
pub(crate) struct UpstreamMetrics {
    name: String,
    in_flight: AtomicUsize,
    connected: AtomicU64,
    connect_failed: AtomicU64,
    /// Histogram of the time until responses began, followed by the sum in nanoseconds.
    responses: ThreadCounters<{ RESPONSE_ENDS.len() + 2 }>,
    /// Adaptive limit on requests in flight, if enabled.
    concurrency: OnceLock<AdaptiveConcurrency>,
    /// Requests above that limit, by priority.
    shed: [AtomicU64; Priority::ALL.len()],
}

/// Upper bounds of the buckets for the time until a response begins, in microseconds.
const RESPONSE_ENDS: [u32; 14] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000,
];

/// Name of the route for requests without a route.
const NO_ROUTE: &str = "(none)";

const BYTES_IN: usize = StatusClass::ALL.len();
const BYTES_OUT: usize = BYTES_IN + 1;

/// Class of a response's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusClass {
    Informational,
    Success,
    Redirection,
    ClientError,
    ServerError,
    /// No response: the client disconnected first.
    None,
}

impl StatusClass {
    const ALL: [StatusClass; 6] = [
        StatusClass::Informational,
        StatusClass::Success,
        StatusClass::Redirection,
        StatusClass::ClientError,
        StatusClass::ServerError,
        StatusClass::None,
    ];

    fn of(status: Option<StatusCode>) -> StatusClass {
        match status.map_or(0, |status| status.as_u16() / 100) {
            1 => StatusClass::Informational,
            2 => StatusClass::Success,
            3 => StatusClass::Redirection,
            4 => StatusClass::ClientError,
            0 => StatusClass::None,
            _ => StatusClass::ServerError,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            StatusClass::Informational => "1xx",
            StatusClass::Success => "2xx",
            StatusClass::Redirection => "3xx",
            StatusClass::ClientError => "4xx",
            StatusClass::ServerError => "5xx",
            StatusClass::None => "none",
        }
    }
}

/// A completed request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    /// Index of its route.
    pub(crate) route: Option<usize>,
    /// Status of the response, if there was one.
    pub(crate) status: Option<StatusCode>,
    /// Cause of an error, if there was one.
    pub(crate) cause: Option<FailureCause>,
    /// Bytes of the body that were forwarded to the upstream.
    pub(crate) bytes_in: u64,
    /// Bytes of the response body that were forwarded to the client.
    pub(crate) bytes_out: u64,
}

impl GatewayMetrics {
    /// Counters for these routes, given as names with the names of their upstreams.
    pub(crate) fn new(routes: impl IntoIterator<Item = (String, Vec<String>)>) -> GatewayMetrics {
        let route = |(name, upstreams)| Arc::new(RouteMetrics::new(name, upstreams));
        GatewayMetrics {
            clock: quanta::Clock::new(),
            in_flight: ThreadCounters::new(),
            routes: routes.into_iter().map(route).collect(),
            without_route: RouteMetrics::new(NO_ROUTE.to_owned(), Vec::new()),
        }
    }

    /// The route with this index.
    pub(crate) fn route(&self, number: usize) -> &Arc<RouteMetrics> {
        &self.routes[number]
    }

    /// The current time, for [`GatewayMetrics::since`].
    #[inline]
    pub(crate) fn instant(&self) -> u64 {
        self.clock.raw()
    }

    /// Time elapsed since `instant`.
    #[inline]
    pub(crate) fn since(&self, instant: u64) -> Duration {
        self.clock.delta(instant, self.clock.raw())
    }

    /// Counts a request as in flight.
    #[inline]
    pub(crate) fn begin(&self) {
        self.in_flight.add(0, 1);
    }

    /// Counts a completed request.
    #[inline]
    pub(crate) fn end(&self, ended: &Ended) {
        self.in_flight.add(1, 1);
        let route = ended.route.and_then(|route| self.routes.get(route)).map_or(&self.without_route, |route| route);
        route.requests.add(StatusClass::of(ended.status) as usize, 1);
        if ended.bytes_in > 0 {
            route.requests.add(BYTES_IN, ended.bytes_in);
        }
        if ended.bytes_out > 0 {
            route.requests.add(BYTES_OUT, ended.bytes_out);
        }
        if let Some(cause) = ended.cause {
            route.errors[cause as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests in flight.
    fn in_flight(&self) -> u64 {
        let [begun, ended] = self.in_flight.counts();
        // The counters are read one after the other while requests begin and end.
        begun.saturating_sub(ended)
    }

    pub(super) fn write(&self, page: &mut Page) {
        page.gauge("gateway_requests_in_flight", "Requests that the gateway is serving", &[(&[], self.in_flight())]);
        let routes = || self.routes.iter().map(|route| &**route).chain([&self.without_route]);
        let listener = ("listener", ListenerKind::Gateway.name());

        let mut requests = Series::default();
        let (mut bytes_in, mut bytes_out) = (Series::default(), Series::default());
        let (mut errors, mut retries) = (Series::default(), Series::default());
        for route in routes() {
            let (name, counts) = (("route", route.name.as_str()), route.requests.counts());
            for class in StatusClass::ALL {
                // Omits status classes that have not occurred, except the usual ones.
                let is_usual = matches!(class, StatusClass::Success | StatusClass::ServerError);
                let count = counts[class as usize];
                if count > 0 || is_usual && route.name != NO_ROUTE {
                    requests.add([listener, name, ("status", class.as_str())], count);
                }
            }
            for cause in FailureCause::ALL {
                let count = route.errors[cause as usize].load(Ordering::Relaxed);
                if count > 0 {
                    errors.add([name, ("cause", cause.as_str())], count);
                }
            }
            if route.name != NO_ROUTE {
                bytes_in.add([name], counts[BYTES_IN]);
                bytes_out.add([name], counts[BYTES_OUT]);
                retries.add([name], route.retries.load(Ordering::Relaxed));
            }
        }
        let help = "Completed requests, by the class of the response status; none if the client disconnected first";
        requests.write(help, "http_requests", Page::counter, page);
        let help = "Requests that the gateway answered itself, or whose response was cut off, by cause";
        errors.write(help, "gateway_errors", Page::counter, page);
        retries.write("Retries of requests", "gateway_retries", Page::counter, page);
        let help = "Bytes of request bodies forwarded to upstreams";
        bytes_in.write(help, "gateway_request_body_bytes", Page::counter, page);
        let help = "Bytes of response bodies forwarded to clients";
        bytes_out.write(help, "gateway_response_body_bytes", Page::counter, page);
        self.write_shedding(page);
        self.write_upstreams(page);
    }

    fn write_shedding(&self, page: &mut Page) {
        let (mut arrived, mut shed, mut thresholds) = (Series::default(), Series::default(), Series::default());
        for route in &self.routes {
            let Some(shedder) = route.shedder.get() else { continue };
            let (name, counts) = (("route", route.name.as_str()), shedder.counts());
            thresholds.add([name], shedder.threshold() as u64);
            for (class, priority) in Priority::ALL.iter().enumerate() {
                let labels = [name, ("priority", priority.as_str())];
                arrived.add(labels, counts.arrived[class]);
                shed.add(labels, counts.shed[class]);
            }
        }
        let help = "Requests that load shedding decided on, by priority";
        arrived.write(help, "gateway_shedding_requests", Page::counter, page);
        let help = "Requests that were shed, by priority; in shadow mode they were forwarded";
        shed.write(help, "gateway_shed_requests", Page::counter, page);
        let help = "Level below which requests are shed: 128 for all of priority low, 256 for normal too, 384 for high too; 0 for none";
        thresholds.write(help, "gateway_shedding_threshold", Page::gauge, page);
    }

    fn write_upstreams(&self, page: &mut Page) {
        let mut in_flight = Series::default();
        let (mut limits, mut shed) = (Series::default(), Series::default());
        let mut connects = Series::default();
        let mut responses: BTreeMap<[(&str, &str); 2], [u64; RESPONSE_ENDS.len() + 2]> = BTreeMap::new();
        for route in &self.routes {
            for upstream in &route.upstreams {
                let names = [("route", route.name.as_str()), ("upstream", upstream.name.as_str())];
                in_flight.add(names, upstream.in_flight() as u64);
                let [route, name] = names;
                if let Some(concurrency) = upstream.concurrency.get() {
                    limits.add(names, u64::from(concurrency.limit()));
                    for (priority, count) in Priority::ALL.iter().zip(&upstream.shed) {
                        let count = count.load(Ordering::Relaxed);
                        shed.add([route, name, ("priority", priority.as_str())], count);
                    }
                }
                let connected = upstream.connected.load(Ordering::Relaxed);
                connects.add([route, name, ("result", "success")], connected);
                let failed = upstream.connect_failed.load(Ordering::Relaxed);
                connects.add([route, name, ("result", "failure")], failed);
                let sums = responses.entry(names).or_insert([0; RESPONSE_ENDS.len() + 2]);
                sums.iter_mut().zip(upstream.responses.counts()).for_each(|(sum, count)| *sum += count);
            }
        }
        in_flight.write("Requests in flight to the upstream", "gateway_upstream_requests_in_flight", Page::gauge, page);
        let help = "Adaptive limit on requests in flight to the upstream";
        limits.write(help, "gateway_upstream_concurrency_limit", Page::gauge, page);
        let help = "Requests above the adaptive limit of the upstream, by priority; in shadow mode they were forwarded";
        shed.write(help, "gateway_upstream_shed_requests", Page::counter, page);
        let help = "Attempts to connect to the upstream, by result";
        connects.write(help, "gateway_upstream_connects", Page::counter, page);
        let shown: Vec<(Labels<'_>, HistogramSnapshot)> =
            responses.iter().map(|(names, counts)| (&names[..], snapshot(counts))).collect();
        let help = "Time from sending a request to the upstream until its response begins";
        page.histogram("gateway_upstream_response_seconds", help, &shown);
    }
}

fn snapshot(counts: &[u64; RESPONSE_ENDS.len() + 2]) -> HistogramSnapshot {
    let (counts, nanos) = counts.split_at(RESPONSE_ENDS.len() + 1);
    let ends = RESPONSE_ENDS.iter().map(|micros| f64::from(*micros) / 1e6).chain([f64::MAX]);
    HistogramSnapshot {
        sum: nanos.first().map_or(0.0, |nanos| *nanos as f64 / 1e9),
        count: counts.iter().sum(),
        buckets: ends.zip(counts.iter().copied()).collect(),
    }
}

/// Series with `N` labels. Values with the same labels are added up, for example if a route is configured twice.
struct Series<'s, const N: usize>(BTreeMap<[(&'s str, &'s str); N], u64>);

impl<const N: usize> Default for Series<'_, N> {
    fn default() -> Self {
        Series(BTreeMap::new())
    }
}

impl<'s, const N: usize> Series<'s, N> {
    fn add(&mut self, labels: [(&'s str, &'s str); N], value: u64) {
        *self.0.entry(labels).or_default() += value;
    }

    fn write(&self, help: &str, name: &str, write: fn(&mut Page, &str, &str, &[(Labels<'_>, u64)]), page: &mut Page) {
        let values: Vec<(Labels<'_>, u64)> = self.0.iter().map(|(labels, value)| (&labels[..], *value)).collect();
        write(page, name, help, &values);
    }
}

impl RouteMetrics {
    fn new(name: String, upstreams: Vec<String>) -> RouteMetrics {
        RouteMetrics {
            name,
            requests: ThreadCounters::new(),
            errors: Default::default(),
            retries: AtomicU64::new(0),
            shedder: OnceLock::new(),
            upstreams: upstreams.into_iter().map(|name| Arc::new(UpstreamMetrics::new(name))).collect(),
        }
    }

    /// Name of the route, as configured.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The upstream with this index.
    pub(crate) fn upstream(&self, number: usize) -> &Arc<UpstreamMetrics> {
        &self.upstreams[number]
    }

    /// Adds the metrics of this shedder.
    pub(crate) fn watch_shedder(&self, shedder: LoadShedder) {
        // Set only once: a route keeps its shedder.
        let _ = self.shedder.set(shedder);
    }

    /// Counts a retry.
    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }
}

impl UpstreamMetrics {
    pub(crate) fn new(name: String) -> UpstreamMetrics {
        UpstreamMetrics {
            name,
            in_flight: AtomicUsize::new(0),
            connected: AtomicU64::new(0),
            connect_failed: AtomicU64::new(0),
            responses: ThreadCounters::new(),
            concurrency: OnceLock::new(),
            shed: Default::default(),
        }
    }

    /// Adds the metrics of this adaptive limit.
    pub(crate) fn watch_concurrency(&self, concurrency: AdaptiveConcurrency) {
        // Set only once: an upstream keeps its limit.
        let _ = self.concurrency.set(concurrency);
    }

    /// Counts a request above the adaptive limit.
    pub(crate) fn shed(&self, priority: Priority) {
        self.shed[priority as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Address of the upstream.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts a request as in flight, until [`UpstreamMetrics::end`].
    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request as no longer in flight.
    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an attempt to connect.
    pub(crate) fn connected(&self, succeeded: bool) {
        if succeeded { &self.connected } else { &self.connect_failed }.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a response, with the time until it began.
    #[inline]
    pub(crate) fn responded(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = RESPONSE_ENDS.partition_point(|end| u64::from(*end) * 1_000 < nanos);
        self.responses.add(bucket, 1);
        self.responses.add(RESPONSE_ENDS.len() + 1, nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    #[test]
    fn requests_are_counted_by_route_and_class_and_upstreams_by_address() {
        let metrics = GatewayMetrics::new([
            ("/".to_owned(), vec!["http://a:80".to_owned(), "http://a:80".to_owned()]),
            ("/".to_owned(), vec!["http://a:80".to_owned()]),
        ]);
        for (route, status, cause) in [
            (Some(0), Some(StatusCode::OK), None),
            (Some(1), Some(StatusCode::CREATED), None),
            (Some(0), Some(StatusCode::BAD_GATEWAY), Some(FailureCause::ConnectFailed)),
            (None, Some(StatusCode::NOT_FOUND), Some(FailureCause::NoRoute)),
            (None, None, None),
        ] {
            metrics.begin();
            metrics.end(&Ended { route, status, cause, bytes_in: 3, bytes_out: 5 });
        }
        metrics.begin();
        let upstream = metrics.route(0).upstream(1);
        upstream.begin();
        upstream.connected(true);
        upstream.responded(Duration::from_micros(1_000));
        metrics.route(1).upstream(0).responded(Duration::from_secs(60));
        metrics.route(1).retried();
        let mut page = Page::new(Format::Text);
        metrics.write(&mut page);
        let text = page.finish();
        for line in [
            r#"tidegate_gateway_requests_in_flight 1"#,
            r#"tidegate_http_requests_total{listener="gateway",route="/",status="2xx"} 2"#,
            r#"tidegate_http_requests_total{listener="gateway",route="/",status="5xx"} 1"#,
            r#"tidegate_http_requests_total{listener="gateway",route="(none)",status="4xx"} 1"#,
            r#"tidegate_http_requests_total{listener="gateway",route="(none)",status="none"} 1"#,
            r#"tidegate_gateway_errors_total{route="/",cause="connect_failed"} 1"#,
            r#"tidegate_gateway_errors_total{route="(none)",cause="no_route"} 1"#,
            r#"tidegate_gateway_retries_total{route="/"} 1"#,
            r#"tidegate_gateway_request_body_bytes_total{route="/"} 9"#,
            r#"tidegate_gateway_response_body_bytes_total{route="/"} 15"#,
            r#"tidegate_gateway_upstream_requests_in_flight{route="/",upstream="http://a:80"} 1"#,
            r#"tidegate_gateway_upstream_connects_total{route="/",upstream="http://a:80",result="success"} 1"#,
            r#"tidegate_gateway_upstream_response_seconds_bucket{route="/",upstream="http://a:80",le="0.001"} 1"#,
            r#"tidegate_gateway_upstream_response_seconds_count{route="/",upstream="http://a:80"} 2"#,
            r#"tidegate_gateway_upstream_response_seconds_sum{route="/",upstream="http://a:80"} 60.001"#,
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
        let mut series: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, _)| name)
            .collect();
        let count = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), count, "a series is there twice:\n{text}");
    }
}
