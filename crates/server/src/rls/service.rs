//! Which request goes where.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::Service;

use super::body::AnswerBody;
use super::{Door, grpc, json};

/// The requests of one connection.
pub(super) struct Calls(pub(super) Door);

impl Service<Request<Incoming>> for Calls {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let door = self.0.clone();
        if door.0.engine.traces().is_on() {
            let headers = request.headers().clone();
            return Box::pin(async move { Ok(door.0.engine.traces().within(&headers, answer(&door, request)).await) });
        }
        Box::pin(async move { Ok(answer(&door, request).await) })
    }
}

async fn answer(door: &Door, request: Request<Incoming>) -> Response<AnswerBody> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, grpc::METHOD) if grpc::is_spoken(&request) => grpc::call(door, request).await,
        (&Method::POST, json::PATH) => json::call(door, request).await,
        (_, json::PATH) => json::refused(StatusCode::METHOD_NOT_ALLOWED, "send a POST"),
        _ if grpc::is_spoken(&request) => Box::pin(door.0.beside.call(request)).await,
        _ => json::refused(StatusCode::NOT_FOUND, "there is gRPC here, and POST /json"),
    }
}
