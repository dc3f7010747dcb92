//! The cost of a layer that admits every call.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use http::{Request, Response};
use rustix::time::{ClockId, clock_gettime};
use tidegate_bench::report::{Row, lowest_of};
use tidegate_bench::sample::{median, quiet_rounds};
use tidegate_core::adaptive::ControllerError;
use tidegate_tower::{AdaptiveConcurrencyLayer, ClientHash, PriorityShedLayer};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service};

const CALLS: usize = 50_000;
const ROUNDS: usize = 41;
const LIMIT: usize = 200;

/// A service that responds immediately.
#[derive(Clone)]
struct Hello;

impl Service<Request<Body>> for Hello {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

/// A contestant: makes a fixed number of calls, and returns the time per call in nanoseconds.
type Contestant = Box<dyn FnMut() -> f64>;

pub fn rows() -> Result<Vec<Row>, ControllerError> {
    let mut contestants: [Contestant; 7] = [
        contestant(Hello),
        contestant(ConcurrencyLimitLayer::new(LIMIT).layer(Hello)),
        contestant(tower_acc::ConcurrencyLimitLayer::new(tower_acc::Gradient2::builder().build()).layer(Hello)),
        contestant(tower_acc::ConcurrencyLimitLayer::new(tower_acc::Vegas::builder().build()).layer(Hello)),
        contestant(AdaptiveConcurrencyLayer::new("gradient2 20..200".parse()?).layer(Hello)),
        contestant(AdaptiveConcurrencyLayer::new("vegas 20..200".parse()?).layer(Hello)),
        contestant(PriorityShedLayer::new().layer(Hello)),
    ];
    // Contestants take turns, so that a disturbance of the machine affects all of them.
    let rounds = quiet_rounds(ROUNDS, |_| contestants.each_mut().map(|contestant| contestant()));
    let middle = |number: usize| median(rounds.iter().map(|round| round[number]).collect());
    let bare = middle(0);
    println!("a call of the bare service: {bare:.0} ns");
    let [fixed, their_gradient, their_vegas, gradient, vegas, shed] =
        [1, 2, 3, 4, 5, 6].map(|number| middle(number) - bare);
    const TOWER: &str = "tower's ConcurrencyLimit";
    let row = |what: &str, ours: f64, peer: &str, theirs: f64| Row::smaller_is_better(what, ours, peer, theirs, "ns");
    let rows = vec![
        row("adaptive limit, gradient2", gradient, TOWER, fixed),
        row("adaptive limit, vegas", vegas, TOWER, fixed),
        row("adaptive limit, gradient2", gradient, "tower-acc's Gradient2", their_gradient),
        row("adaptive limit, vegas", vegas, "tower-acc's Vegas", their_vegas),
        row("load shedding by priority", shed, TOWER, fixed),
    ];
    let is_meant = |row: &Row| row.peer == TOWER && row.what.starts_with("adaptive");
    Ok(lowest_of("adaptive/acquire", rows, is_meant))
}

fn contestant<Svc, R>(mut service: Svc) -> Contestant
where
    Svc: Service<Request<Body>, Response = Response<R>, Error = Infallible> + 'static,
{
    Box::new(move || {
        let begun = processor_time();
        let served = (0..CALLS).filter(|&number| black_box(call(&mut service, number))).count();
        let took = processor_time() - begun;
        assert_eq!(served, CALLS, "all are let through");
        took / CALLS as f64
    })
}

/// The processor time of this thread in nanoseconds. Excludes time during which other threads run.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Makes a call, and returns whether it was admitted.
fn call<Svc, R>(service: &mut Svc, number: usize) -> bool
where
    Svc: Service<Request<Body>, Response = Response<R>, Error = Infallible>,
{
    let mut request = Request::new(Body::empty());
    // The request of a client that a rate-limit layer has identified.
    request.extensions_mut().insert(ClientHash(number as u64));
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready(), "the limit is not reached");
    match pin!(service.call(request)).poll(&mut context) {
        Poll::Ready(Ok(response)) => response.status().is_success(),
        Poll::Ready(Err(never)) => match never {},
        Poll::Pending => unreachable!("the service answers at once"),
    }
}
