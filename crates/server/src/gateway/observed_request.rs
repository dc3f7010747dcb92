//! Counts and logs a request, from its head to the end of its response.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use tidegate_tower::ResponseBody;

use super::downstream::Downstream;
use super::logged_request::LoggedRequest;
use super::response_body::{ForwardBody, ForwardBodyError, ResponseOrigin};
use crate::metrics::Ended;

/// A request in flight. Counted and logged on drop, however it ended.
pub(super) struct ObservedRequest {
    downstream: Arc<Downstream>,
    ended: Ended,
    origin: ResponseOrigin,
    /// Entry in the access log, if the log is enabled.
    logged: Option<Arc<LoggedRequest>>,
}

impl ObservedRequest {
    /// Begins with the head of a request. Adds its log entry to the request's extensions.
    pub(super) fn begin<B>(downstream: &Arc<Downstream>, request: &mut Request<B>) -> ObservedRequest {
        downstream.begin_request();
        let logged = downstream.log(request);
        if let Some(logged) = &logged {
            request.extensions_mut().insert(Arc::clone(logged));
        }
        let (downstream, ended) = (Arc::clone(downstream), Ended::default());
        ObservedRequest { downstream, ended, origin: ResponseOrigin::default(), logged }
    }

    pub(super) const fn downstream(&self) -> &Arc<Downstream> {
        &self.downstream
    }

    /// Sets the route that the request takes if it is allowed.
    pub(super) const fn route(&mut self, route: Option<usize>) {
        self.ended.route = route;
    }

    /// Records the start of the response.
    pub(super) fn respond(&mut self, response: &Response<ResponseBody<ForwardBody>>) {
        self.ended.status = Some(response.status());
        // Denials by the rules have no origin.
        if let Some(body) = response.body().get_ref() {
            self.origin.clone_from(&body.origin);
            self.ended.route = self.origin.route.or(self.ended.route);
            self.ended.cause = self.origin.cause;
        }
    }

    /// Records a frame of the response's body, an error, or the end.
    #[inline]
    pub(super) fn pass(&mut self, frame: Option<&Result<Frame<Bytes>, ForwardBodyError>>) {
        match frame {
            Some(Ok(frame)) => self.ended.bytes_out += frame.data_ref().map_or(0, Bytes::len) as u64,
            Some(Err(error)) => self.ended.cause = Some(error.cause()),
            None => {}
        }
    }
}

impl Drop for ObservedRequest {
    fn drop(&mut self) {
        self.ended.bytes_in = self.origin.upload.as_ref().map_or(0, |upload| upload.bytes());
        self.downstream.end_request(&self.ended, self.logged.as_deref(), &self.origin);
    }
}
