//! `tidegate-client` in front of hyper's client, against a real service behind the middleware of `tidegate-tower`, over loopback.
//!
//! The service decides by its own clock, and every wait is one of the pace: a slow machine delays requests, and gets none denied.

use axum::{Router, routing::get};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate_client::{BoxError, ClientLayer, HostSnapshot};
use tidegate_examples::serve_limited;
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt};

const CALLS: usize = 30;
const AT_ONCE: usize = 4;

/// Makes one call of a service under this limit, and when it is answered some more, several at once. Returns their statuses, and what
/// the client knows of the service then.
async fn calls(limit: &str, layer: ClientLayer) -> Result<(Vec<StatusCode>, HostSnapshot), BoxError> {
    let address = serve_limited(Router::new().route("/", get(|| async { "hello" })), limit).await?;
    let http = Client::builder(TokioExecutor::new()).build_http();
    let client = ServiceBuilder::new().layer(layer.clone()).service(http);
    let request = move || Request::get(format!("http://{address}/")).body(Empty::<Bytes>::new());
    let mut statuses = vec![client.clone().oneshot(request()?).await?.status()];
    let mut callers: JoinSet<Result<Vec<StatusCode>, BoxError>> = JoinSet::new();
    for caller in 0..AT_ONCE {
        let client = client.clone();
        callers.spawn(async move {
            let mut statuses = Vec::new();
            for _ in (caller..CALLS).step_by(AT_ONCE) {
                statuses.push(client.clone().oneshot(request()?).await?.status());
            }
            Ok(statuses)
        });
    }
    while let Some(ended) = callers.join_next().await {
        statuses.extend(ended??);
    }
    let known = layer.snapshot().remove(&address.to_string()).ok_or("the host is not known")?;
    Ok((statuses, known))
}

#[tokio::test]
async fn a_paced_client_is_not_denied_by_the_middleware() -> Result<(), BoxError> {
    let mut runs = JoinSet::new();
    for limit in ["10/s burst 10", "gcra 10/s burst 3", "fixed 10/s", "sliding 10/s", "log 10/s"] {
        runs.spawn(async move { (limit, calls(limit, ClientLayer::new()).await) });
    }
    while let Some(ended) = runs.join_next().await {
        let (limit, ended) = ended?;
        let (statuses, known) = ended?;
        assert_eq!(statuses, [StatusCode::OK; CALLS + 1], "{limit}");
        assert_eq!((known.denials, known.retries), (0, 0), "{limit}: {known:?}");
        assert!(known.waits > 0 && !known.limits.is_empty(), "{limit}: {known:?}");
    }
    Ok(())
}

/// The same calls without a pace: the service denies.
#[tokio::test]
async fn a_client_without_a_pace_is_denied_by_the_middleware() -> Result<(), BoxError> {
    let (statuses, known) = calls("10/h", ClientLayer::new().without_pace().retries(0)).await?;
    let denied = statuses.iter().filter(|status| **status == StatusCode::TOO_MANY_REQUESTS).count();
    assert_eq!((denied, known.denials), (CALLS + 1 - 10, 21), "{known:?}");
    Ok(())
}
