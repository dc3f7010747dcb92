//! A fleet of tasks under a limit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::routing::get;
use reqwest_middleware::ClientBuilder;
use reqwest_retry::RetryTransientMiddleware;
use reqwest_retry::policies::ExponentialBackoff;
use tidegate_bench::report::{Report, Row};
use tidegate_client::{BoxError, ClientLayer, ReqwestClient};
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const TASKS: u32 = 1_000;
const CALLS_EACH: u32 = 10;
const PER_SECOND: f64 = 500.0;
const BURST: f64 = 500.0;
/// Maximum number of attempts of one task, which bounds the run.
const ATTEMPTS: u32 = 10_000;

pub(super) fn measure(report: &mut Report) -> Result<(), BoxError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let calls = f64::from(TASKS * CALLS_EACH);
    let ideal = (calls - BURST) / PER_SECOND;

    let (ours, denied) = runtime.block_on(async {
        let server = Server::start().await?;
        let layer = ClientLayer::new().longest_wait(Duration::from_secs(600));
        let client = ReqwestClient::new(reqwest::Client::new(), layer);
        let http = reqwest::Client::new();
        server
            .finish(move |url| {
                let (client, http) = (client.clone(), http.clone());
                async move { Ok(client.execute(http.get(url).build()?).await?.status().is_success()) }
            })
            .await
    })?;
    let (theirs, their_denied) = runtime.block_on(async {
        let server = Server::start().await?;
        let policy = ExponentialBackoff::builder()
            .retry_bounds(Duration::from_millis(100), Duration::from_secs(20))
            .build_with_max_retries(20);
        let client =
            ClientBuilder::new(reqwest::Client::new()).with(RetryTransientMiddleware::new_with_policy(policy)).build();
        server
            .finish(move |url| {
                let client = client.clone();
                async move { Ok(client.get(url).send().await?.status().is_success()) }
            })
            .await
    })?;
    report.section(
        "a thousand tasks, ten calls each, under 500 a second",
        vec![
            Row::smaller_is_better("until all have succeeded", ours, "the ideal", ideal, "s").with_id("client/fleet"),
            Row::smaller_is_better("the same", ours, "reqwest-retry", theirs, "s"),
            Row::smaller_is_better("denied on the way", denied, "reqwest-retry", their_denied, "calls"),
        ],
    );
    Ok(())
}

/// A service that allows 500 requests a second and counts denials.
struct Server {
    address: SocketAddr,
    served: Arc<AtomicU64>,
    denied: Arc<AtomicU64>,
}

impl Server {
    async fn start() -> Result<Server, BoxError> {
        let (served, denied) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (count, refused) = (Arc::clone(&served), Arc::clone(&denied));
        let limit = format!("{PER_SECOND}/s burst {BURST}").parse()?;
        let layer = RateLimitLayer::per_client(limit).inspect(move |ruling| {
            refused.fetch_add(u64::from(!ruling.is_allowed()), Ordering::Relaxed);
        });
        let handler = move || {
            count.fetch_add(1, Ordering::Relaxed);
            async { "hello" }
        };
        let app = axum::Router::new().route("/", get(handler)).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async { axum::serve(listener, app).await });
        Ok(Server { address, served, denied })
    }

    /// Seconds until every task has made its calls, and the number of denials.
    async fn finish<F>(
        &self,
        call: impl Fn(String) -> F + Clone + Send + Sync + 'static,
    ) -> Result<(f64, f64), BoxError>
    where
        F: Future<Output = Result<bool, BoxError>> + Send,
    {
        let url = format!("http://{}/", self.address);
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (call, url) = (call.clone(), url.clone());
            tasks.spawn(async move {
                let (mut done, mut attempts) = (0, 0);
                while done < CALLS_EACH && attempts < ATTEMPTS {
                    attempts += 1;
                    done += u32::from(call(url.clone()).await.unwrap_or(false));
                }
            });
        }
        tasks.join_all().await;
        let (served, denied) = (self.served.load(Ordering::Relaxed), self.denied.load(Ordering::Relaxed));
        assert_eq!(served, u64::from(TASKS * CALLS_EACH), "every task made all its calls");
        Ok((begun.elapsed().as_secs_f64(), denied as f64))
    }
}
