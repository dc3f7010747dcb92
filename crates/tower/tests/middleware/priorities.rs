//! Priorities of requests, from rules and from headers.

use std::convert::Infallible;
use std::sync::Arc;

use http::{HeaderName, Request, Response};
use http_body_util::Empty;
use tidegate_rules::Priority;
use tidegate_tower::RateLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::limiter;

const RULES: &str = "
rules:
  - { id: everyone, limit: 100/s }
  - { id: batch, match: { path: /batch }, limit: 100/s, priority: low }
  - { id: health, match: { path: /health }, limit: 100/s, priority: critical }
  - { id: dark, match: { path: /dark }, limit: 100/s, priority: high, mode: shadow }
";

/// The priority that the service receives: in the extensions, and in the header.
async fn told(layer_listens: bool, path: &str, said: Option<&str>) -> (Option<Priority>, Option<String>) {
    let mut layer = RateLimitLayer::new(limiter(RULES));
    if layer_listens {
        layer = layer.priority_header(HeaderName::from_static("x-priority"));
    }
    let heard = Arc::new(std::sync::Mutex::new((None, None)));
    let hearing = Arc::clone(&heard);
    let service = service_fn(move |request: Request<()>| {
        let header = request.headers().get("x-priority").map(|value| value.to_str().unwrap().to_owned());
        *hearing.lock().unwrap() = (request.extensions().get::<Priority>().copied(), header);
        async { Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new())) }
    });
    let mut request = Request::get(path);
    if let Some(said) = said {
        request = request.header("x-priority", said);
    }
    layer.layer(service).oneshot(request.body(()).unwrap()).await.unwrap();
    heard.lock().unwrap().clone()
}

#[tokio::test]
async fn rules_come_before_headers_and_both_travel_on() {
    for (path, said, priority) in [
        ("/", None, None),
        ("/", Some("high"), Some(Priority::High)),
        ("/", Some(" Critical "), Some(Priority::Critical)),
        ("/", Some("normal"), Some(Priority::Normal)),
        ("/", Some("urgent"), None),
        ("/batch", None, Some(Priority::Low)),
        ("/batch", Some("critical"), Some(Priority::Low)),
        ("/health", Some("low"), Some(Priority::Critical)),
        ("/dark", None, None),
    ] {
        let (extension, header) = told(true, path, said).await;
        assert_eq!(extension, priority, "{path} {said:?}");
        let forwarded = priority.map(Priority::as_str).or(said);
        assert_eq!(header.as_deref(), forwarded, "{path} {said:?}");
    }
}

#[tokio::test]
async fn a_layer_without_a_priority_header_ignores_it() {
    assert_eq!(told(false, "/", Some("critical")).await, (None, Some("critical".to_owned())));
    assert_eq!(told(false, "/batch", Some("critical")).await, (Some(Priority::Low), Some("critical".to_owned())));
}
