//! The client with servers that decide with a Tidegate limiter, and state its limits in the same way.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use proptest::prelude::*;
use tidegate_client::{BoxError, ClientLayer};
use tidegate_core::{Clock, MemoryStore, Micros, Timestamp};
use tidegate_http::{Caller, HeaderStyle, HttpFacts, Reply, ReplyContext};
use tidegate_rules::{Limiter, RuleSet};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::virtual_time::server::{Client, get};

/// Tokio's paused time as seen by a server, whose windows may begin at any instant of the client's time.
#[derive(Clone, Copy)]
struct ServerClock {
    start: Instant,
    at_start: Timestamp,
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        self.at_start + Micros::new(u64::try_from(self.start.elapsed().as_micros()).unwrap())
    }
}

struct Server {
    limiter: Limiter<MemoryStore<ServerClock>, ServerClock>,
    random: Mutex<fastrand::Rng>,
    denied: Mutex<Vec<Duration>>,
    clock: ServerClock,
}

impl Server {
    fn new(limit: &str, seed: u64) -> Server {
        let mut random = fastrand::Rng::with_seed(seed);
        let at_start = Timestamp::from_secs(1_767_225_600) + Micros::new(random.u64(0..60_000_000));
        let clock = ServerClock { start: Instant::now(), at_start };
        let rules = RuleSet::parse("rules.yaml", &format!("rules: [{{ id: api, limit: {limit} }}]")).unwrap().rules;
        let limiter = Limiter::with_clock(rules, MemoryStore::with_clock(clock), clock);
        Server { limiter, random: Mutex::new(random), denied: Mutex::default(), clock }
    }

    /// The delay of a message: mostly a few milliseconds, and sometimes longer than a window.
    fn latency(&self) -> Duration {
        let mut random = self.random.lock().unwrap();
        let most = if random.u8(..) < 25 { 1_500_000 } else { 20_000 };
        Duration::from_micros(random.u64(0..most))
    }

    fn decide(&self) -> Response<Full<Bytes>> {
        let (method, uri, headers) = (Method::GET, Uri::from_static("/"), http::HeaderMap::new());
        let at = self.clock.now();
        let ruling = self.limiter.check_now(&HttpFacts::new(&method, &uri, &headers));
        if !ruling.is_allowed() {
            self.denied.lock().unwrap().push(self.clock.start.elapsed());
        }
        let context = ReplyContext { at, caller: Caller::Unauthenticated, random: 0 };
        let style = HeaderStyle::default();
        let reply = Reply::new(&ruling, &style, context);
        let mut response = Response::new(Full::default());
        *response.status_mut() = reply.status();
        reply.write_headers(response.headers_mut());
        response
    }

    async fn answer<B>(self: Arc<Self>, _: Request<B>) -> Result<Response<Full<Bytes>>, BoxError> {
        sleep(self.latency()).await;
        let response = self.decide();
        sleep(self.latency()).await;
        Ok(response)
    }
}

/// The denials of a client with this many concurrent calls, after the first one was answered.
async fn denials(limit: &str, seed: u64, calls: usize, at_once: usize) -> Vec<Duration> {
    let server = Arc::new(Server::new(limit, seed));
    let random = Mutex::new(fastrand::Rng::with_seed(seed));
    let layer = ClientLayer::new().longest_wait(Duration::from_mins(10)).random(move || random.lock().unwrap().f64());
    let service = {
        let server = Arc::clone(&server);
        service_fn(move |request| Arc::clone(&server).answer(request))
    };
    let client: Client<Full<Bytes>> = Client::new(ServiceBuilder::new().layer(layer).service(service));
    client.clone().oneshot(get()).await.unwrap();
    let mut callers = JoinSet::new();
    for caller in 0..at_once {
        let client = client.clone();
        callers.spawn(async move {
            for _ in (caller..calls).step_by(at_once) {
                assert_eq!(client.clone().oneshot(get()).await.unwrap().status(), StatusCode::OK);
            }
        });
    }
    callers.join_all().await;
    let denied = server.denied.lock().unwrap();
    denied.clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Messages overtake each other, the server's windows begin at any instant, and its fields contain whole seconds.
    #[test]
    fn a_paced_client_is_not_denied_by_a_limiter(
        limit in prop::sample::select(vec![
            "10/s burst 10", "7/s burst 3", "gcra 10/s burst 3", "fixed 10/s", "fixed 3/s", "sliding 10/s", "sliding 3/s", "sliding 20/min",
            "sliding 10/s parts 5", "log 10/s", "log 20/min",
        ]),
        seed in any::<u64>(),
        calls in 20_usize..80,
        at_once in 1_usize..9,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let denied = runtime.block_on(denials(limit, seed, calls, at_once));
        prop_assert!(denied.is_empty(), "{limit}: denied at {denied:?}");
    }
}
