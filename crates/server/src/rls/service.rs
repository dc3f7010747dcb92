//! Dispatches requests of Envoy's rate-limit service.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::Service;
use tokio::time::timeout;

use super::{AnswerBody, RlsServer, grpc, json};
use crate::listen::RequestCount;
use crate::metrics::ListenerKind;

/// Path of probes for envoyproxy/ratelimit.
const HEALTHCHECK: &str = "/healthcheck";

/// A client's connection, as seen by its calls.
pub(super) struct CallContext {
    pub(super) server: RlsServer,
    pub(super) requests: RequestCount,
}

/// Serves the requests of one connection.
pub(super) struct RlsService(pub(super) Arc<CallContext>);

/// Counts a request as in flight until dropped.
struct RlsCall(Arc<CallContext>);

impl Drop for RlsCall {
    fn drop(&mut self) {
        self.0.requests.end();
    }
}

impl Service<Request<Incoming>> for RlsService {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.0.requests.begin();
        self.0.server.0.engine.metrics().received(ListenerKind::Rls, 1);
        let call = RlsCall(Arc::clone(&self.0));
        if self.0.server.0.engine.traces().is_on() {
            let headers = request.headers().clone();
            return Box::pin(async move {
                let server = &call.0.server;
                Ok(server.0.engine.traces().within(&headers, answer(server, request)).await)
            });
        }
        Box::pin(async move { Ok(answer(&call.0.server, request).await) })
    }
}

async fn answer(server: &RlsServer, request: Request<Incoming>) -> Response<AnswerBody> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, grpc::METHOD) if grpc::is_spoken(&request) => grpc::call(server, request).await,
        (&Method::POST, json::PATH) => json::call(server, request).await,
        (&Method::GET | &Method::HEAD, HEALTHCHECK) if server.is_ready() => json::plain_text(StatusCode::OK, "OK"),
        (&Method::GET | &Method::HEAD, HEALTHCHECK) => json::plain_text(StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        (_, json::PATH) => json::plain_text(StatusCode::METHOD_NOT_ALLOWED, "send a POST"),
        // HTTP/2 only: streaming calls end with their connection, and only HTTP/2 can detect a dead client by PING.
        _ if grpc::is_spoken(&request) && request.version() == Version::HTTP_2 => {
            let arrival = server.0.settings.load().arrival;
            match timeout(arrival, Box::pin(server.0.services.call(request))).await {
                Ok(response) => response,
                Err(_) => grpc::too_slow(arrival),
            }
        }
        _ => json::plain_text(StatusCode::NOT_FOUND, "there is gRPC here, POST /json and GET /healthcheck"),
    }
}
