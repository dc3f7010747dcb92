//! Future of a response.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::response::{IntoResponse, Response as Routed};
use http::{HeaderMap, Response};
use tidegate_core::store::NowOrLater;

use super::client::ApiClient;
use super::{AnswerBody, CONTENT_TYPE, JSON};
use crate::listen::InboundBody;
use crate::problem::Problem;
use crate::self_wake::suppressing;
use crate::whole_body::WholeBody;

/// Response to one request of a client.
///
/// Most requests are checks whose body arrives with the head, and which a store in this process decides. They need no
/// allocation and no timer: the body is complete when hyper first polls the future, and the first poll returns the
/// response.
pub(super) struct AnswerFuture {
    client: Arc<ApiClient>,
    stage: AnswerStage,
}

#[expect(clippy::large_enum_variant, reason = "most are checks, which are to need no box")]
enum AnswerStage {
    /// A check whose body is being received.
    Check {
        body: WholeBody<InboundBody>,
        /// The request's header map, cleared and reused for the response. hyper uses the map again for the next
        /// request, so that a connection allocates only one.
        headers: HeaderMap,
    },
    /// A response that takes longer.
    Waiting(Pin<Box<dyn Future<Output = Response<AnswerBody>> + Send>>),
}

impl AnswerFuture {
    /// The response to a check with this body. Only the header map is reused, not its contents.
    pub(super) fn check(client: &Arc<ApiClient>, mut headers: HeaderMap, body: InboundBody) -> AnswerFuture {
        headers.clear();
        let mut body = client.api.whole(body);
        body.want();
        AnswerFuture { client: Arc::clone(client), stage: AnswerStage::Check { body, headers } }
    }

    /// The response to a rejected request.
    #[cold]
    pub(super) fn refused(client: &Arc<ApiClient>, problem: Problem) -> AnswerFuture {
        AnswerFuture::routed(client, ready(Ok(problem.into_response())))
    }

    /// The response from the router.
    pub(super) fn routed<R>(client: &Arc<ApiClient>, routed: R) -> AnswerFuture
    where
        R: Future<Output = Result<Routed, Infallible>> + Send + 'static,
    {
        let answering = async {
            match routed.await {
                Ok(response) => response.map(AnswerBody::Routed),
                Err(never) => match never {},
            }
        };
        AnswerFuture { client: Arc::clone(client), stage: AnswerStage::Waiting(Box::pin(answering)) }
    }
}

impl Future for AnswerFuture {
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let AnswerFuture { client, stage } = self.get_mut();
        loop {
            let (body, headers) = match stage {
                AnswerStage::Waiting(waiting) => return waiting.as_mut().poll(cx).map(Ok),
                AnswerStage::Check { body, headers } => match suppressing(cx.waker(), || Pin::new(body).poll(cx)) {
                    (Poll::Ready(body), _) => (body, mem::take(headers)),
                    (Poll::Pending, was_suppressed) => {
                        // Part of the body was taken, and the connection may have read more already.
                        if was_suppressed {
                            cx.waker().wake_by_ref();
                        }
                        return Poll::Pending;
                    }
                },
            };
            let body = match body {
                Ok(body) => body,
                Err(error) => return Poll::Ready(Ok(response(Err(error.into()), headers))),
            };
            match client.api.check(body) {
                NowOrLater::Now(answer) => return Poll::Ready(Ok(response(answer, headers))),
                NowOrLater::Later(answer) => {
                    *stage = AnswerStage::Waiting(Box::pin(async move { response(answer.await, headers) }));
                }
            }
        }
    }
}

impl Drop for AnswerFuture {
    fn drop(&mut self) {
        self.client.requests.end();
    }
}

fn response(answer: Result<Vec<u8>, Problem>, mut headers: HeaderMap) -> Response<AnswerBody> {
    match answer {
        Ok(text) => {
            headers.insert(CONTENT_TYPE, JSON);
            let mut response = Response::new(AnswerBody::Whole(text));
            *response.headers_mut() = headers;
            response
        }
        Err(problem) => problem.into_response().map(AnswerBody::Routed),
    }
}
