//! What a response says of the cost of its request.

use std::sync::Arc;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use smallvec::SmallVec;
use tidegate_core::RuleId;
use tidegate_http::PassingBody;
use tidegate_rules::{FieldPath, Settle, SettleSource};

use crate::cost::ActualCost;
use crate::witness::{Unsettled, Witness};

/// The limits whose costs a response settles, and where it says them.
pub(crate) type Settled = Vec<(RuleId, Arc<Settle>)>;

/// Watches a response pass for what its request really cost. Dropping it says so.
pub(crate) struct Meter {
    limits: SmallVec<[Metered; 2]>,
    fields: Vec<FieldPath>,
    body: Option<PassingBody>,
    /// How many bytes the body has left, if it said how many there are.
    left: Option<u64>,
    is_whole: bool,
    is_error: bool,
    /// Whether nobody can look into the body, because it is compressed.
    is_encoded: bool,
    cost: ActualCost,
    witness: Option<Arc<dyn Witness>>,
}

/// A limit, and what its cost is known to be.
struct Metered {
    limit: RuleId,
    settle: Arc<Settle>,
    /// What was taken as an estimate.
    taken: u64,
    /// What the headers say, in the order of the places.
    headers: SmallVec<[Option<Box<str>>; 1]>,
}

impl Meter {
    /// Watches this response, whose request took so much of each limit. What it finds it tells `cost`.
    pub(crate) fn new<B>(
        settled: Settled,
        taken: impl Fn(&RuleId) -> Option<u64>,
        response: &Response<B>,
        cost: ActualCost,
        witness: Option<Arc<dyn Witness>>,
    ) -> Meter {
        let mut fields: Vec<FieldPath> = Vec::new();
        let mut limits = SmallVec::new();
        for (limit, settle) in settled {
            let Some(taken) = taken(&limit) else { continue };
            for term in settle.terms() {
                if let SettleSource::Body(path) = &term.from
                    && !fields.contains(path)
                {
                    fields.push(path.clone());
                }
            }
            let headers = settle.terms().iter().map(|term| said_in(&term.from, response.headers())).collect();
            limits.push(Metered { limit, settle, taken, headers });
        }
        let body = if fields.is_empty() { None } else { PassingBody::of(response.headers(), &fields) };
        let left = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let is_error = response.status().is_client_error() || response.status().is_server_error();
        let is_encoded = body.is_none() && !fields.is_empty();
        Meter { limits, fields, body, left, is_whole: left == Some(0), is_error, is_encoded, cost, witness }
    }

    /// A piece of the body.
    pub(crate) fn see(&mut self, piece: &[u8]) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(piece.len() as u64);
            // Whoever sends it may not ask for more when all is there.
            self.is_whole |= *left == 0;
        }
        if let Some(body) = &mut self.body {
            body.feed(piece);
            self.is_whole |= body.is_done();
        }
    }

    /// The body has come to its end.
    pub(crate) const fn end(&mut self) {
        self.is_whole = true;
    }

    /// Tells that a cost stays as it was taken.
    fn leave_unsettled(&self, metered: &Metered) {
        let is_in_body = metered.settle.terms().iter().any(|term| matches!(term.from, SettleSource::Body(_)));
        let why = match (self.is_encoded && is_in_body, self.is_whole) {
            (true, _) => Unsettled::Encoded,
            (false, true) => Unsettled::Unsaid,
            (false, false) => Unsettled::BrokenOff,
        };
        if why == Unsettled::Encoded {
            tracing::warn!(
                limit = %metered.limit,
                "a response came compressed although it was asked for as it is: its request stays charged at the estimate"
            );
        }
        if let Some(witness) = &self.witness {
            witness.unsettled(&metered.limit, why);
        }
    }

    fn seen(&self, metered: &Metered) -> Option<u64> {
        let terms = metered.settle.terms();
        metered.settle.cost(|source| match source {
            SettleSource::Header(_) => {
                let place = terms.iter().position(|term| term.from == *source)?;
                metered.headers.get(place)?.as_deref()
            }
            SettleSource::Body(path) => {
                let field = self.fields.iter().position(|known| known == path)?;
                self.body.as_ref()?.found(field)
            }
        })
    }
}

fn said_in(place: &SettleSource, headers: &HeaderMap) -> Option<Box<str>> {
    match place {
        SettleSource::Header(name) => headers.get(name)?.to_str().ok().map(Into::into),
        SettleSource::Body(_) => None,
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        for metered in &self.limits {
            let by_headers = metered.settle.terms().iter().all(|term| matches!(term.from, SettleSource::Header(_)));
            let actual = match self.seen(metered) {
                Some(seen) if self.is_whole || by_headers => seen,
                // Whoever hangs up before the end does not save what came before it.
                Some(seen) => seen.max(metered.taken),
                // An error that says nothing of a cost had none.
                None if self.is_error => 0,
                None => {
                    self.leave_unsettled(metered);
                    continue;
                }
            };
            self.cost.set_for(metered.limit.as_str(), actual);
        }
    }
}
