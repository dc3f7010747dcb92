//! A request from its head to the end of its response, as it is counted.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use tidegate_tower::ResponseBody;

use super::passing::{Passing, PassingError};
use super::request_body::Upload;
use super::serving::Downstream;
use crate::metrics::Ended;

/// A request in flight. Dropping it counts it, however it ended.
pub(super) struct Observed {
    downstream: Arc<Downstream>,
    ended: Ended,
    upload: Option<Arc<Upload>>,
}

impl Observed {
    pub(super) fn begin(downstream: &Arc<Downstream>) -> Observed {
        downstream.begin_request();
        Observed { downstream: Arc::clone(downstream), ended: Ended::default(), upload: None }
    }

    pub(super) const fn downstream(&self) -> &Arc<Downstream> {
        &self.downstream
    }

    /// The response begins.
    pub(super) fn respond(&mut self, response: &Response<ResponseBody<Passing>>) {
        self.ended.status = Some(response.status());
        // What rules refuse went nowhere.
        if let Some(passing) = response.body().get_ref() {
            (self.ended.route, self.ended.cause) = (passing.way.route, passing.way.cause);
            self.upload.clone_from(&passing.way.upload);
        }
    }

    /// A part of its body, or the news that none follows.
    #[inline]
    pub(super) fn pass(&mut self, frame: Option<&Result<Frame<Bytes>, PassingError>>) {
        match frame {
            Some(Ok(frame)) => self.ended.bytes_out += frame.data_ref().map_or(0, Bytes::len) as u64,
            Some(Err(error)) => self.ended.cause = Some(error.cause()),
            None => {}
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.ended.bytes_in = self.upload.as_ref().map_or(0, |upload| upload.bytes());
        self.downstream.end_request(&self.ended);
    }
}
