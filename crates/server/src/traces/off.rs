//! Empty implementation, for builds without traces.

use std::future::Future;

use http::HeaderMap;
use tidegate_core::store::NowOrLater;

use super::{Settings, SpanAttributes, TracesError};

/// Does nothing.
#[derive(Clone, Debug, Default)]
pub struct Traces;

impl Traces {
    /// # Errors
    /// Always: there are no traces in this build.
    pub fn open(_: &Settings) -> Result<Traces, TracesError> {
        Err(TracesError::NotBuilt)
    }

    pub(crate) const fn is_on(&self) -> bool {
        false
    }

    #[inline]
    pub(crate) async fn within<T>(&self, _: &HeaderMap, answering: impl Future<Output = T>) -> T {
        answering.await
    }

    #[inline]
    pub(crate) fn span<F: Future>(
        &self,
        _: &'static str,
        decide: impl FnOnce() -> NowOrLater<F::Output, F>,
        _: impl FnOnce(&F::Output) -> SpanAttributes,
    ) -> NowOrLater<F::Output, F> {
        decide()
    }

    pub(crate) fn close(&self) {}
}

#[inline]
pub(crate) async fn store_call<T>(_: &'static str, call: impl Future<Output = T>, _: impl FnOnce(&T) -> bool) -> T {
    call.await
}
