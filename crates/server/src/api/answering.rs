//! An answer in the making.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body as RoutedBody;
use axum::response::{IntoResponse, Response as Routed};
use bytes::Bytes;
use http::Response;
use http_body_util::{Either, Full};
use hyper::body::Incoming;

use super::connection::Client;
use super::in_json;
use super::problem::Problem;
use crate::body::WholeBody;

/// The body of an answer: all of it, or what the router answers.
pub(super) type AnswerBody = Either<Full<Bytes>, RoutedBody>;

/// The answer to one request of a client.
///
/// Most are checks whose body came with the head, and which the store in this process decides. They need no box and no timer:
/// by the time that hyper asks for the answer the body is there, and then so is the answer.
pub(super) struct Answering {
    client: Arc<Client>,
    stage: Stage,
}

enum Stage {
    /// A check, whose body is on its way.
    Check(WholeBody<Incoming>),
    /// Whatever takes longer.
    Waiting(Pin<Box<dyn Future<Output = Response<AnswerBody>> + Send>>),
}

impl Answering {
    /// The answer to a check.
    pub(super) fn check(client: &Arc<Client>, body: Incoming) -> Answering {
        let mut body = client.api.whole(body);
        body.want();
        Answering { client: Arc::clone(client), stage: Stage::Check(body) }
    }

    /// What the router answers.
    pub(super) fn routed<R>(client: &Arc<Client>, routed: R) -> Answering
    where
        R: Future<Output = Result<Routed, Infallible>> + Send + 'static,
    {
        let answering = async {
            match routed.await {
                Ok(response) => response.map(AnswerBody::Right),
                Err(never) => match never {},
            }
        };
        Answering { client: Arc::clone(client), stage: Stage::Waiting(Box::pin(answering)) }
    }
}

impl Future for Answering {
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Answering { client, stage } = self.get_mut();
        loop {
            let body = match stage {
                Stage::Waiting(waiting) => return waiting.as_mut().poll(cx).map(Ok),
                Stage::Check(body) => match ready!(Pin::new(body).poll(cx)) {
                    Ok(body) => body,
                    Err(error) => return Poll::Ready(Ok(response(Err(error.into())))),
                },
            };
            if let Some(answer) = client.api.check_now(&body) {
                return Poll::Ready(Ok(response(answer)));
            }
            let api = Arc::clone(&client.api);
            *stage = Stage::Waiting(Box::pin(async move { response(api.check(&body).await) }));
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.client.has_ended();
    }
}

fn response(answer: Result<Vec<u8>, Problem>) -> Response<AnswerBody> {
    match answer {
        Ok(text) => in_json(text).map(AnswerBody::Left),
        Err(problem) => problem.into_response().map(AnswerBody::Right),
    }
}
