//! Health checks of upstreams, and cleanup of idle connections to them.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Settings;
use super::dial::UpstreamProtocol;
use super::forwarded_body::ForwardedBody;
use super::head::address_to;
use super::upstream::{Transport, Upstream};

/// The interval between checks for idle connections.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive failed checks after which an address is down.
const FAILURES: u32 = 2;

/// Runs health checks and closes idle connections until `stop`.
pub(super) fn start_probes(upstreams: Vec<Arc<Upstream>>, settings: &Settings, stop: &CancellationToken) {
    if let Some(path) = &settings.health_path {
        for upstream in &upstreams {
            let probe = Probe {
                upstream: Arc::clone(upstream),
                path: path.clone(),
                interval: settings.health_interval,
                time: settings.response_time.min(settings.health_interval),
            };
            tokio::spawn(until(stop.clone(), probe.run()));
        }
    }
    tokio::spawn(until(stop.clone(), tidy(upstreams)));
}

async fn until(stop: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

async fn tidy(upstreams: Vec<Arc<Upstream>>) {
    let mut ticks = tokio::time::interval(TIDY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for upstream in &upstreams {
            upstream.tidy();
        }
    }
}

struct Probe {
    upstream: Arc<Upstream>,
    path: http::uri::PathAndQuery,
    interval: Duration,
    time: Duration,
}

impl Probe {
    async fn run(self) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failures = 0;
        loop {
            ticks.tick().await;
            let found = tokio::time::timeout(self.time, self.ask()).await;
            let problem = match found {
                Ok(Ok(())) => None,
                Ok(Err(problem)) => Some(problem),
                Err(_) => Some("it did not answer in time".to_owned()),
            };
            failures = if problem.is_some() { failures + 1 } else { 0 };
            if failures > 0 && failures < FAILURES {
                continue;
            }
            if !self.upstream.health.record_check(problem.is_none()) {
                continue;
            }
            let upstream = &self.upstream.address;
            match problem {
                None => tracing::info!(%upstream, "an upstream is healthy again"),
                Some(problem) => {
                    tracing::warn!(%upstream, problem, "an upstream is unhealthy: requests are sent to other upstreams");
                }
            }
        }
    }

    /// Sends one health check, on a new connection.
    async fn ask(&self) -> Result<(), String> {
        let transport = self.upstream.unshared_transport().await.map_err(|error| error.to_string())?;
        let mut request = Request::new(ForwardedBody::default());
        *request.uri_mut() = self.path.clone().into();
        let (mut head, body) = request.into_parts();
        head.headers.insert(http::header::USER_AGENT, HeaderValue::from_static("tidegate"));
        let host = &self.upstream.address.authority;
        let address = |head: &mut http::request::Parts, protocol| {
            address_to(head, host, &self.upstream.address, protocol, true);
        };
        let status = match transport {
            Transport::Own { mut conn, .. } => {
                address(&mut head, UpstreamProtocol::Http1);
                let answer = conn.send(Request::from_parts(head, body)).await;
                answer.map_err(|_| "it disconnected".to_owned())?.status()
            }
            Transport::Shared { mut sender, .. } => {
                address(&mut head, UpstreamProtocol::Http2);
                let answer = sender.send_request(Request::from_parts(head, body)).await;
                answer.map_err(|error| error.to_string())?.status()
            }
        };
        if status.is_success() || status.is_redirection() { Ok(()) } else { Err(refusal(status)) }
    }
}

fn refusal(status: StatusCode) -> String {
    format!("it answers {status}")
}
