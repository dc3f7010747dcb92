//! For `reqwest`: a client with the parts of this crate around it, and a middleware for `reqwest-middleware`.

use std::future::Future;

use ::reqwest::{Client, Request, Response};
use http::{Extensions, Uri};

use crate::BoxError;
use crate::layer::ClientLayer;
use crate::retry::Next;

/// A `reqwest` client that keeps to what servers ask for.
///
/// ```no_run
/// use tidegate_client::{ClientLayer, ReqwestClient};
///
/// # async fn get() -> Result<(), tidegate_client::BoxError> {
/// let http = reqwest::Client::new();
/// let client = ReqwestClient::new(http.clone(), ClientLayer::new());
/// let response = client.execute(http.get("http://api.example.com/").build()?).await?;
/// # Ok(())
/// # }
/// ```
///
/// Requests whose body is a stream are sent once. A request has no extensions in `reqwest`, so
/// [`ReqwestClient::execute_with`] takes them. `reqwest` follows redirects below this client, so the host of a call is that of its first
/// request.
#[derive(Clone)]
pub struct ReqwestClient {
    client: Client,
    layer: ClientLayer,
}

impl ReqwestClient {
    /// Sends requests with `client`, on the terms of `layer`.
    #[must_use]
    pub const fn new(client: Client, layer: ClientLayer) -> ReqwestClient {
        ReqwestClient { client, layer }
    }

    /// Sends a request, and retries it where that is due.
    ///
    /// # Errors
    /// The error of the client, [`Paced`](crate::Paced), [`Throttled`](crate::Throttled) or
    /// [`DeadlineExceeded`](crate::DeadlineExceeded).
    pub async fn execute(&self, request: Request) -> Result<Response, BoxError> {
        self.execute_with(request, &Extensions::new()).await
    }

    /// As [`ReqwestClient::execute`], with extensions for the request: a [`Deadline`](crate::Deadline),
    /// [`Idempotent`](crate::Idempotent), [`Tokens`](crate::Tokens).
    ///
    /// # Errors
    /// As [`ReqwestClient::execute`].
    pub async fn execute_with(&self, request: Request, extensions: &Extensions) -> Result<Response, BoxError> {
        let send = |request| async { self.client.execute(request).await.map_err(BoxError::from) };
        call(&self.layer, request, extensions, send).await
    }

    /// The layer, for its [snapshot](ClientLayer::snapshot).
    #[must_use]
    pub const fn layer(&self) -> &ClientLayer {
        &self.layer
    }
}

/// Makes the attempts of a call.
async fn call<F>(
    layer: &ClientLayer,
    mut request: Request,
    extensions: &Extensions,
    mut send: impl FnMut(Request) -> F,
) -> Result<Response, BoxError>
where
    F: Future<Output = Result<Response, BoxError>>,
{
    let uri: Uri = request.url().as_str().parse()?;
    let mut attempts = layer.retrier.begin(request.method(), &uri, request.headers(), extensions);
    loop {
        let kept = if attempts.may_retry() { request.try_clone() } else { None };
        let ended = attempts.run(attempt(layer, request, &uri, extensions, &mut send)).await?;
        let next = match &ended {
            Ok(response) => attempts.after_response(response.status(), response.headers(), kept.is_some()),
            Err(error) => attempts.after_error(&**error, kept.is_some()),
        };
        match (next, kept) {
            (Next::Retry(wait), Some(kept)) => {
                drop(ended);
                attempts.wait(wait).await;
                request = kept;
            }
            (Next::Retry(_), None) => return ended,
            (Next::Return(hint) | Next::BudgetSpent(hint), _) => {
                return ended.map(|mut response| {
                    if let Some(hint) = hint {
                        response.extensions_mut().insert(hint);
                    }
                    response
                });
            }
        }
    }
}

/// One attempt, throttled and paced.
async fn attempt<F>(
    layer: &ClientLayer,
    request: Request,
    uri: &Uri,
    extensions: &Extensions,
    send: &mut impl FnMut(Request) -> F,
) -> Result<Response, BoxError>
where
    F: Future<Output = Result<Response, BoxError>>,
{
    let in_flight = layer.pacer.admit(request.method(), uri, request.headers(), extensions).await?;
    let ended = send(request).await;
    match &ended {
        Ok(response) => in_flight.answered(response.status(), response.headers()),
        Err(_) => in_flight.failed(),
    }
    ended
}

/// A middleware for `reqwest-middleware` that keeps to what servers ask for.
///
/// ```no_run
/// use reqwest_middleware::ClientBuilder;
/// use tidegate_client::{ClientLayer, ReqwestMiddleware};
///
/// # async fn get() -> Result<(), reqwest_middleware::Error> {
/// let client = ClientBuilder::new(reqwest::Client::new()).with(ReqwestMiddleware::new(ClientLayer::new())).build();
/// let response = client.get("http://api.example.com/").send().await?;
/// # Ok(())
/// # }
/// ```
///
/// An error of this crate is a `reqwest_middleware::Error::Middleware`, which can be downcast to it. Extensions of a request are those that
/// `RequestBuilder::with_extension` sets. Put the middleware outermost: it calls those inside it
/// for each attempt.
#[cfg(feature = "reqwest-middleware")]
pub struct ReqwestMiddleware {
    layer: ClientLayer,
}

#[cfg(feature = "reqwest-middleware")]
mod middleware {
    use super::{BoxError, ClientLayer, Extensions, Request, ReqwestMiddleware, Response};
    use crate::{DeadlineExceeded, Paced, Throttled};
    use reqwest_middleware::{Error, Middleware, Next};

    impl ReqwestMiddleware {
        /// A middleware on the terms of `layer`.
        #[must_use]
        pub const fn new(layer: ClientLayer) -> ReqwestMiddleware {
            ReqwestMiddleware { layer }
        }
    }

    #[async_trait::async_trait]
    impl Middleware for ReqwestMiddleware {
        async fn handle(
            &self,
            request: Request,
            extensions: &mut Extensions,
            next: Next<'_>,
        ) -> Result<Response, Error> {
            let given = extensions.clone();
            let send = |request| {
                let (next, mut extensions) = (next.clone(), given.clone());
                async move { next.run(request, &mut extensions).await.map_err(plain) }
            };
            super::call(&self.layer, request, &given, send).await.map_err(into_middleware_error)
        }
    }

    /// The error itself, so that one of `reqwest` can be asked whether anything was sent.
    fn plain(error: Error) -> BoxError {
        match error {
            Error::Reqwest(error) => error.into(),
            Error::Middleware(_) => error.into(),
        }
    }

    /// Keeps the type of the error, so that callers can tell errors apart.
    fn into_middleware_error(error: BoxError) -> Error {
        let error = match error.downcast::<Error>() {
            Ok(error) => return *error,
            Err(error) => error,
        };
        let error = match error.downcast::<::reqwest::Error>() {
            Ok(error) => return Error::Reqwest(*error),
            Err(error) => error,
        };
        let error = match error.downcast::<Paced>() {
            Ok(paced) => return Error::middleware(*paced),
            Err(error) => error,
        };
        let error = match error.downcast::<Throttled>() {
            Ok(throttled) => return Error::middleware(*throttled),
            Err(error) => error,
        };
        match error.downcast::<DeadlineExceeded>() {
            Ok(exceeded) => Error::middleware(*exceeded),
            Err(error) => Error::middleware(Foreign(error)),
        }
    }

    /// Any other error, such as that of a URL that `http` does not accept.
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct Foreign(BoxError);
}
