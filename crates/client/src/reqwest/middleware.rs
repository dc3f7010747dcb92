//! A middleware for `reqwest-middleware`.

use std::error::Error as StdError;

use ::reqwest::{Request, Response};
use http::Extensions;
use reqwest_middleware::{Error, Middleware, Next};

use super::call::CallTerms;
use crate::layer::ClientLayer;
use crate::{BoxError, DeadlineExceeded, Paced, Throttled};

/// A middleware for `reqwest-middleware` that respects what servers ask for.
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
/// An error of this crate is a `reqwest_middleware::Error::Middleware`, and can be downcast. Extensions of a request are
/// set by `RequestBuilder::with_extension`. This middleware should be outermost, because it calls the inner ones for each
/// attempt.
pub struct ReqwestMiddleware {
    terms: CallTerms,
}

impl ReqwestMiddleware {
    /// A middleware according to `layer`: a [`ClientLayer`], or one of its parts alone, such as a
    /// [`RetryLayer`](crate::RetryLayer) or a [`PaceLayer`](crate::PaceLayer).
    #[must_use]
    pub fn new(layer: impl Into<ClientLayer>) -> ReqwestMiddleware {
        ReqwestMiddleware { terms: CallTerms::new(layer.into()) }
    }

    /// Waits for this shared pace before each attempt.
    #[cfg(feature = "shared")]
    #[must_use]
    pub fn shared_pace<S, C>(mut self, pace: crate::SharedPaceLayer<S, C>) -> ReqwestMiddleware
    where
        S: tidegate_core::Store + 'static,
        C: tidegate_core::Clock + 'static,
    {
        self.terms.shared = Some(pace.into_any());
        self
    }
}

#[async_trait::async_trait]
impl Middleware for ReqwestMiddleware {
    async fn handle(&self, request: Request, extensions: &mut Extensions, next: Next<'_>) -> Result<Response, Error> {
        let given = extensions.clone();
        let send = |request| {
            let (next, mut extensions) = (next.clone(), given.clone());
            async move { next.run(request, &mut extensions).await.map_err(plain) }
        };
        self.terms.call(request, &given, send).await.map_err(into_middleware_error)
    }
}

/// The inner error, so that an error of `reqwest` shows whether anything was sent.
fn plain(error: Error) -> BoxError {
    match error {
        Error::Reqwest(error) => error.into(),
        Error::Middleware(_) => error.into(),
    }
}

/// Keeps the type of the error, so that callers can distinguish errors.
fn into_middleware_error(error: BoxError) -> Error {
    let known = error.downcast::<Error>().map(|error| *error);
    let known = known.or_else(|error| error.downcast::<::reqwest::Error>().map(|error| Error::Reqwest(*error)));
    let known = known.or_else(typed::<Paced>).or_else(typed::<Throttled>).or_else(typed::<DeadlineExceeded>);
    #[cfg(feature = "adaptive")]
    let known = known.or_else(typed::<crate::HostBusy>);
    #[cfg(feature = "shared")]
    let known = known.or_else(typed::<crate::TooLarge>).or_else(typed::<crate::RuleRefused>);
    known.unwrap_or_else(|error| Error::middleware(Foreign(error)))
}

fn typed<E: StdError + Send + Sync + 'static>(error: BoxError) -> Result<Error, BoxError> {
    error.downcast::<E>().map(|error| Error::middleware(*error))
}

/// Any other error, such as that of a URL that `http` does not accept.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Foreign(BoxError);
