//! Sending a request to a service once the service is ready.

use std::future::poll_fn;

use tower_service::Service;

/// Waits until `service` is ready, and calls it.
pub(crate) async fn send<S: Service<R>, R>(service: &mut S, request: R) -> Result<S::Response, S::Error> {
    poll_fn(|context| service.poll_ready(context)).await?;
    service.call(request).await
}
