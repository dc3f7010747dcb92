//! Reads the actual cost of a request from its response.

use std::sync::Arc;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use smallvec::SmallVec;
use tidegate_core::RuleId;
use tidegate_http::UsageScanner;
use tidegate_rules::{FieldPath, Settle, SettleSource};

use crate::cost::ActualCost;
use crate::observer::{Observer, Unsettled};

/// The limits whose costs the response settles, each with the locations of the cost in the response.
pub(crate) type Settlements = Vec<(RuleId, Arc<Settle>)>;

/// Reads the actual costs of a request from its response as it is forwarded, and reports them when dropped.
pub(crate) struct UsageMeter {
    limits: SmallVec<[MeteredLimit; 2]>,
    fields: Vec<FieldPath>,
    body: Option<UsageScanner>,
    /// Bytes of the body still to come, if it has a `Content-Length`.
    left: Option<u64>,
    is_whole: bool,
    is_error: bool,
    /// The body is compressed and cannot be read.
    is_encoded: bool,
    cost: ActualCost,
    observer: Option<Arc<dyn Observer>>,
}

/// A limit whose actual cost is being read.
struct MeteredLimit {
    limit: RuleId,
    settle: Arc<Settle>,
    /// The estimate that was charged.
    taken: u64,
    /// Header values, in the order of `settle`'s terms.
    headers: SmallVec<[Option<Box<str>>; 1]>,
}

impl UsageMeter {
    /// A meter for this response. `taken` looks up the estimate under a limit; `cost` receives the actual costs.
    pub(crate) fn new<B>(
        settlements: Settlements,
        taken: impl Fn(&RuleId) -> Option<u64>,
        response: &Response<B>,
        cost: ActualCost,
        observer: Option<Arc<dyn Observer>>,
    ) -> UsageMeter {
        let mut fields: Vec<FieldPath> = Vec::new();
        let mut limits = SmallVec::new();
        for (limit, settle) in settlements {
            let Some(taken) = taken(&limit) else { continue };
            for term in settle.terms() {
                if let SettleSource::Body(path) = &term.from
                    && !fields.contains(path)
                {
                    fields.push(path.clone());
                }
            }
            let headers = settle.terms().iter().map(|term| header_value(&term.from, response.headers())).collect();
            limits.push(MeteredLimit { limit, settle, taken, headers });
        }
        let body = if fields.is_empty() { None } else { UsageScanner::of(response.headers(), &fields) };
        let left = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let is_error = response.status().is_client_error() || response.status().is_server_error();
        let is_encoded = body.is_none() && !fields.is_empty();
        UsageMeter { limits, fields, body, left, is_whole: left == Some(0), is_error, is_encoded, cost, observer }
    }

    /// Reads a piece of the body.
    pub(crate) fn read(&mut self, piece: &[u8]) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(piece.len() as u64);
            // A server may stop polling once it has `Content-Length` bytes.
            self.is_whole |= *left == 0;
        }
        if let Some(body) = &mut self.body {
            body.feed(piece);
            self.is_whole |= body.is_done();
        }
    }

    /// Records the end of the body.
    pub(crate) const fn end(&mut self) {
        self.is_whole = true;
    }

    /// Reports that a cost stays as estimated.
    fn report_unsettled(&self, metered: &MeteredLimit) {
        let is_in_body = metered.settle.terms().iter().any(|term| matches!(term.from, SettleSource::Body(_)));
        let why = match (self.is_encoded && is_in_body, self.is_whole) {
            (true, _) => Unsettled::Encoded,
            (false, true) => Unsettled::Unsaid,
            (false, false) => Unsettled::BrokenOff,
        };
        if why == Unsettled::Encoded {
            tracing::warn!(
                limit = %metered.limit,
                "the response is compressed although the request asked for `identity`: the cost stays at its estimate"
            );
        }
        if let Some(observer) = &self.observer {
            observer.unsettled(&metered.limit, metered.taken, why);
        }
    }

    /// The cost as far as it has been read.
    fn cost_so_far(&self, metered: &MeteredLimit) -> Option<u64> {
        let terms = metered.settle.terms();
        metered.settle.cost(|source| match source {
            SettleSource::Header(_) => {
                let term = terms.iter().position(|term| term.from == *source)?;
                metered.headers.get(term)?.as_deref()
            }
            SettleSource::Body(path) => {
                let field = self.fields.iter().position(|known| known == path)?;
                self.body.as_ref()?.found(field)
            }
        })
    }
}

fn header_value(source: &SettleSource, headers: &HeaderMap) -> Option<Box<str>> {
    match source {
        SettleSource::Header(name) => headers.get(name)?.to_str().ok().map(Into::into),
        SettleSource::Body(_) => None,
    }
}

impl Drop for UsageMeter {
    fn drop(&mut self) {
        for metered in &self.limits {
            let by_headers = metered.settle.terms().iter().all(|term| matches!(term.from, SettleSource::Header(_)));
            let actual = match self.cost_so_far(metered) {
                Some(cost) if self.is_whole || by_headers => cost,
                // A client cannot reduce its cost by disconnecting early: it pays at least the estimate.
                Some(cost) => cost.max(metered.taken),
                // An error response without a cost is free.
                None if self.is_error => 0,
                None => {
                    self.report_unsettled(metered);
                    continue;
                }
            };
            self.cost.set_for(metered.limit.as_str(), actual);
        }
    }
}
