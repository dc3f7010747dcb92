//! A `reqwest` client with the parts of this crate around it.

use ::reqwest::{Client, Request, Response};
use http::Extensions;

use super::call::CallTerms;
use crate::BoxError;
use crate::layer::ClientLayer;

/// A `reqwest` client that respects what servers ask for.
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
/// Requests whose body is a stream are sent once. A `reqwest` request has no extensions, so [`ReqwestClient::execute_with`]
/// takes them as an argument. `reqwest` follows redirects below this client, so the host of a call is that of its first
/// request.
#[derive(Clone)]
pub struct ReqwestClient {
    client: Client,
    terms: CallTerms,
}

impl ReqwestClient {
    /// Sends requests with `client`, according to `layer`: a [`ClientLayer`], or one of its parts alone, such as a
    /// [`RetryLayer`](crate::RetryLayer) or a [`PaceLayer`](crate::PaceLayer).
    #[must_use]
    pub fn new(client: Client, layer: impl Into<ClientLayer>) -> ReqwestClient {
        ReqwestClient { client, terms: CallTerms::new(layer.into()) }
    }

    /// Waits for this shared pace before each attempt.
    #[cfg(feature = "shared")]
    #[must_use]
    pub fn shared_pace<S, C>(mut self, pace: crate::SharedPaceLayer<S, C>) -> ReqwestClient
    where
        S: tidegate_core::Store + 'static,
        C: tidegate_core::Clock + 'static,
    {
        self.terms.shared = Some(pace.into_any());
        self
    }

    /// Sends a request, with retries if necessary.
    ///
    /// # Errors
    /// Fails with the error of the client, or one of this crate: see [`BoxError`].
    pub async fn execute(&self, request: Request) -> Result<Response, BoxError> {
        self.execute_with(request, &Extensions::new()).await
    }

    /// Like [`ReqwestClient::execute`], with extensions for the request: a [`Deadline`](crate::Deadline),
    /// [`Idempotent`](crate::Idempotent), a [`Partition`](crate::Partition), [`Tokens`](crate::Tokens).
    ///
    /// # Errors
    /// As [`ReqwestClient::execute`].
    pub async fn execute_with(&self, request: Request, extensions: &Extensions) -> Result<Response, BoxError> {
        let send = |request| async { self.client.execute(request).await.map_err(BoxError::from) };
        self.terms.call(request, extensions, send).await
    }

    /// The layer, for its [snapshot](ClientLayer::snapshot).
    #[must_use]
    pub const fn layer(&self) -> &ClientLayer {
        &self.terms.layer
    }
}
