//! The time that the middleware adds to a call: a service that responds immediately, alone, behind Tidegate's layer and
//! behind tower_governor.
//!
//! One thread, state in memory, a thousand clients in turn, identified by address. Every call completes immediately,
//! and its response is dropped: no sockets, no runtime. All calls are allowed; with `denied`, all but the first of each
//! client are denied. The time of the bare service, including the creation of the request, is subtracted from all
//! numbers.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::{median, quiet_rounds};
use tidegate_http::HeaderStyle;
use tidegate_rules::RuleSet;
use tidegate_tower::RateLimitLayer;
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;

const CALLS: usize = 200_000;
const CLIENTS: usize = 1_000;
const ROUNDS: usize = 5;

/// A service that responds immediately.
#[derive(Clone)]
struct Hello;

impl<B> Service<Request<B>> for Hello {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

/// The expected mix of allowed and denied calls.
#[derive(Clone, Copy, PartialEq)]
enum Mix {
    Allowed,
    Denied,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bare = nanos(|| Hello, Mix::Allowed);
    let mut report = Report::default();
    let added = |taken: f64| taken - bare;
    println!("a call of the bare service: {bare:.0} ns");

    let one = "rules: [{ id: client, key: address, limit: gcra 1000000/s burst 1000000 }]";
    let three = "
rules:
  - { id: client, key: address, limit: gcra 1000000/s burst 1000000 }
  - { id: hourly, key: address, limit: sliding 600000/h }
  - { id: everyone, limit: 1000000000/s }
";
    let silent = HeaderStyle { on_allowed: false, ..HeaderStyle::default() };
    let x_ratelimit = HeaderStyle { ietf: None, ..HeaderStyle::default() };
    let plain = added(nanos(|| governor(1, u32::MAX).layer(Hello), Mix::Allowed));
    let with_headers = added(nanos(
        || {
            let mut config = GovernorConfigBuilder::default();
            let config = config.per_nanosecond(1).burst_size(u32::MAX).use_headers().finish().expect("a rate");
            GovernorLayer::<PeerIpKeyExtractor, _, Body>::new(config).layer(Hello)
        },
        Mix::Allowed,
    ));
    let ours = |text: &str, style: HeaderStyle| -> Result<f64, Box<dyn std::error::Error>> {
        let rules = RuleSet::parse("rules.yaml", text)?.rules;
        Ok(added(nanos(|| RateLimitLayer::rules(rules.clone()).headers(style).layer(Hello), Mix::Allowed)))
    };
    let limit = "gcra 1000000/s burst 1000000".parse()?;
    let one_limit = added(nanos(|| RateLimitLayer::per_client(limit).headers(silent).layer(Hello), Mix::Allowed));
    let row = |what: &str, ours: f64, theirs: f64| {
        Row::smaller_is_better(what, ours, "tower_governor, one limit", theirs, "ns")
    };
    report.section(
        "added to a call that is allowed",
        vec![
            row("one limit, no headers", one_limit, plain).with_id("layer/one-limit"),
            row("one rule, no headers", ours(one, silent)?, plain).with_id("layer/one-rule"),
            row("one rule, X-RateLimit headers", ours(one, x_ratelimit)?, with_headers)
                .with_id("layer/one-rule-headers"),
            row("one rule, X-RateLimit and IETF headers", ours(one, HeaderStyle::default())?, with_headers),
            row("three rules, no headers", ours(three, silent)?, plain),
            row("three rules, X-RateLimit and IETF headers", ours(three, HeaderStyle::default())?, with_headers),
        ],
    );

    let denying = RuleSet::parse("rules.yaml", "rules: [{ id: client, key: address, limit: gcra 1/year }]")?.rules;
    let ours = added(nanos(|| RateLimitLayer::rules(denying.clone()).headers(x_ratelimit).layer(Hello), Mix::Denied));
    let theirs = added(nanos(|| governor(365 * 86_400 * 1_000_000_000, 1).layer(Hello), Mix::Denied));
    report.section(
        "added to a call that is denied, its answer included",
        vec![row("one rule, a problem body and headers; theirs a line of text", ours, theirs).with_id("layer/denied")],
    );
    report.write("layer");
    Ok(())
}

/// One request per `every` nanoseconds with a burst of `burst`, by address.
fn governor(every: u64, burst: u32) -> GovernorLayer<PeerIpKeyExtractor, governor::middleware::NoOpMiddleware, Body> {
    let config = GovernorConfigBuilder::default().per_nanosecond(every).burst_size(burst).finish().expect("a rate");
    GovernorLayer::new(config)
}

/// The time of a call, including the creation of its request: the median of several rounds, each with a new service.
fn nanos<Svc, R>(service: impl Fn() -> Svc, mix: Mix) -> f64
where
    Svc: Service<Request<Body>, Response = Response<R>, Error = Infallible>,
{
    let round = |_| {
        let mut service = service();
        let mut served = 0;
        // The first call of each client creates its state, and is not measured.
        for number in 0..CLIENTS {
            served += usize::from(call(&mut service, number));
        }
        assert_eq!(served, CLIENTS, "the first call of each is let through");
        let begun = Instant::now();
        let served = (0..CALLS).filter(|&number| black_box(call(&mut service, number))).count();
        let took = begun.elapsed();
        assert_eq!(served, if mix == Mix::Allowed { CALLS } else { 0 }, "all are let through, or none");
        took.as_nanos() as f64 / CALLS as f64
    };
    median(quiet_rounds(ROUNDS, round))
}

/// Makes a call, and returns whether it was allowed.
fn call<Svc, R>(service: &mut Svc, number: usize) -> bool
where
    Svc: Service<Request<Body>, Response = Response<R>, Error = Infallible>,
{
    let client = u8::try_from(number % CLIENTS / 250).unwrap_or(0);
    let address = IpAddr::V4(Ipv4Addr::new(10, 0, client, u8::try_from(number % 250).unwrap_or(0)));
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(address, 40_000)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready(), "it is always ready");
    match pin!(service.call(request)).poll(&mut context) {
        Poll::Ready(Ok(response)) => response.status().is_success(),
        Poll::Ready(Err(never)) => match never {},
        Poll::Pending => unreachable!("everything here is in memory"),
    }
}
