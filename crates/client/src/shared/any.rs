//! A shared pace without the type of its store, for clients that are not generic over it.

use std::sync::Arc;

use http::{Extensions, HeaderMap, Method, Uri};
use tidegate_core::{Clock as StoreClock, Store};

use super::admission::SharedTerms;
use super::reservation::{RequestEnd, Reservation};
use crate::{BoxError, BoxFuture};

/// The head of a request.
pub(crate) struct RequestHead {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    extensions: Extensions,
}

impl RequestHead {
    pub(crate) fn new(method: &Method, uri: &Uri, headers: &HeaderMap, extensions: &Extensions) -> RequestHead {
        let (method, uri) = (method.clone(), uri.clone());
        RequestHead { method, uri, headers: headers.clone(), extensions: extensions.clone() }
    }
}

/// Settles the charges of a request by its end.
pub(crate) type AnySpent = Box<dyn FnOnce(RequestEnd) -> BoxFuture<Option<Reservation>> + Send>;

/// The charges of a request that waits to be sent. It is called when the request is sent. If it is dropped before, the charges
/// are given back.
pub(crate) type AnyUnspent = Box<dyn FnOnce() -> AnySpent + Send>;

/// A shared pace with any store.
#[derive(Clone)]
pub(crate) struct AnySharedPace(Arc<dyn Fn(RequestHead) -> BoxFuture<Result<AnyUnspent, BoxError>> + Send + Sync>);

impl AnySharedPace {
    pub(super) fn new<S: Store + 'static, C: StoreClock + 'static>(terms: SharedTerms<S, C>) -> AnySharedPace {
        AnySharedPace(Arc::new(move |head| {
            let terms = terms.clone();
            Box::pin(async move {
                let RequestHead { method, uri, headers, extensions } = head;
                let unspent = terms.admit(&method, &uri, &headers, &extensions).await?;
                Ok(Box::new(move || {
                    let spent = unspent.spend();
                    Box::new(move |end| Box::pin(spent.ended(end)) as BoxFuture<_>) as AnySpent
                }) as AnyUnspent)
            })
        }))
    }

    /// Waits until a request may be sent.
    pub(crate) fn admit(&self, head: RequestHead) -> BoxFuture<Result<AnyUnspent, BoxError>> {
        (self.0)(head)
    }
}
