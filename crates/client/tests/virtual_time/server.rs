//! A server in virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tidegate_client::BoxError;
use tokio::time::{Instant, sleep};
use tower::util::BoxCloneSyncService;

pub(crate) type Reply = Response<Full<Bytes>>;
pub(crate) type Client<B> = BoxCloneSyncService<Request<B>, Reply, BoxError>;

/// A server's answer at an instant. Requests are counted from 0.
pub(crate) type Behave = dyn FnMut(u64, Instant) -> Reply + Send;

/// A server that decides by a closure and records what it saw.
#[derive(Clone)]
pub(crate) struct Server {
    behave: Arc<Mutex<Box<Behave>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    latency: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Server {
    pub(crate) fn new(behave: impl FnMut(u64, Instant) -> Reply + Send + 'static) -> Server {
        Server { behave: Arc::new(Mutex::new(Box::new(behave))), seen: Arc::default(), latency: Duration::ZERO }
    }

    /// Sets the delay in each direction.
    pub(crate) fn latency(self, latency: Duration) -> Server {
        Server { latency, ..self }
    }

    /// Answers a request.
    pub(crate) async fn answer<B>(self, request: Request<B>) -> Result<Reply, BoxError>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(Into::into)?.to_bytes();
        sleep(self.latency).await;
        let reply = {
            let mut seen = self.seen.lock().unwrap();
            let at = Instant::now();
            let reply = (self.behave.lock().unwrap())(u64::try_from(seen.len()).unwrap(), at);
            seen.push(Seen { at, status: reply.status(), headers: head.headers, body });
            reply
        };
        sleep(self.latency).await;
        Ok(reply)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Counts requests from 0 again.
    pub(crate) fn restart(&self) {
        self.seen.lock().unwrap().clear();
    }

    pub(crate) fn denied(&self) -> usize {
        self.seen().iter().filter(|seen| seen.status == 429).count()
    }
}

pub(crate) fn reply(status: u16, headers: &[(&'static str, &str)]) -> Reply {
    let mut reply = Response::new(Full::default());
    *reply.status_mut() = status.try_into().unwrap();
    for (name, value) in headers {
        reply.headers_mut().append(*name, value.parse().unwrap());
    }
    reply
}

/// A token bucket that denies exactly and states when to retry: with `Retry-After`, and with `RateLimit` if `states_limit`.
pub(crate) fn bucket(capacity: f64, per_second: f64, states_limit: bool) -> impl FnMut(u64, Instant) -> Reply + Send {
    let (mut level, mut last) = (capacity, None);
    move |_, now: Instant| {
        let since = last.map_or(Duration::ZERO, |last| now.duration_since(last));
        (level, last) = ((level + since.as_secs_f64() * per_second).min(capacity), Some(now));
        let is_allowed = level >= 1.0;
        level -= f64::from(u8::from(is_allowed));
        let more = ((1.0 - level.fract()) / per_second).ceil();
        let mut reply = if is_allowed { reply(200, &[]) } else { reply(429, &[("retry-after", &more.to_string())]) };
        if states_limit {
            let limit = format!("\"api\";r={};t={more}", level.floor());
            reply.headers_mut().insert("ratelimit", limit.parse().unwrap());
            reply.headers_mut().insert("ratelimit-policy", format!("\"api\";q={capacity};w=1").parse().unwrap());
        }
        reply
    }
}

pub(crate) fn get() -> Request<Full<Bytes>> {
    Request::get("http://api.example.com/things").body(Full::default()).unwrap()
}

pub(crate) fn post(body: &'static str) -> Request<Full<Bytes>> {
    Request::post("http://api.example.com/things").body(body.into()).unwrap()
}

/// A server behind layers.
#[macro_export]
macro_rules! client {
    ($server:expr, $($layer:expr),+) => {{
        let server: &$crate::virtual_time::server::Server = &$server;
        let server = server.clone();
        $crate::virtual_time::server::Client::new(
            tower::ServiceBuilder::new()$(.layer($layer.clone()))+
                .service(tower::service_fn(move |request| server.clone().answer(request)))
        )
    }};
}
