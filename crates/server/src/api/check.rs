//! `/v1/check`, `/v1/peek` and `/v1/reserve`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use tidegate_core::store::{NowOrLater, Readiness};
use tidegate_core::{Clock, Micros, Store, Timestamp};
use tidegate_http::{Caller, Reply, ReplyContext};
use tidegate_rules::Ruling;

use super::json_writer::list;
use super::question::{ApiQuestion, are_several};
use super::{Api, answer, in_json};
use crate::problem::Problem;

/// The time for which a reservation stays open by default.
const DEFAULT_TTL: Micros = Micros::from_secs(60);
/// Maximum time that a reservation can stay open.
const LONGEST_TTL: Micros = Micros::from_secs(24 * 3_600);
/// The most checks of a batch in flight. Each has a deadline of its own at a remote store, which begins when the check is sent: with
/// all of a large batch in flight, most of that time would pass while the store decides the others.
const MOST_IN_FLIGHT: usize = 64;
/// Most answers fit into this many bytes.
const USUAL_ANSWER: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckOperation {
    Check,
    Peek,
    Reserve,
}

pub(super) async fn check(State(api): State<Arc<Api>>, request: Request) -> Response {
    api.decide(request, CheckOperation::Check).await
}

pub(super) async fn peek(State(api): State<Arc<Api>>, request: Request) -> Response {
    api.decide(request, CheckOperation::Peek).await
}

pub(super) async fn reserve(State(api): State<Arc<Api>>, request: Request) -> Response {
    api.decide(request, CheckOperation::Reserve).await
}

impl Api {
    /// The response to a check with this body. Available immediately if the body asks about one request and the store
    /// decides without waiting.
    pub(super) fn check(
        self: &Arc<Self>,
        body: Bytes,
    ) -> NowOrLater<Result<Vec<u8>, Problem>, impl Future<Output = Result<Vec<u8>, Problem>> + Send + use<>> {
        if !are_several(&body)
            && self.engine.limiter().store().readiness() != Readiness::Rarely
            && let Some(answer) = self.check_one(&body)
        {
            return NowOrLater::Now(answer);
        }
        let api = Arc::clone(self);
        NowOrLater::Later(async move { api.decide_all(&body, CheckOperation::Check).await })
    }

    fn check_one(&self, body: &[u8]) -> Option<Result<Vec<u8>, Problem>> {
        let mut question = ApiQuestion::default();
        if let Err(problem) = question.read(body).and_then(|()| allowed_here(&question, CheckOperation::Check)) {
            return Some(Err(problem));
        }
        let at = self.clock.now();
        let write = |ruling: &Ruling<'_>| {
            let mut text = Vec::with_capacity(USUAL_ANSWER);
            self.write_answer(&mut text, &question, ruling, at);
            Ok(text)
        };
        self.engine.check_then(&question, write).now()
    }

    async fn decide(&self, request: Request, operation: CheckOperation) -> Response {
        let answered = match self.body(request).await {
            Ok(body) => self.decide_all(&body, operation).await,
            Err(problem) => Err(problem),
        };
        answered.map_or_else(IntoResponse::into_response, in_json)
    }

    async fn decide_all(&self, body: &[u8], operation: CheckOperation) -> Result<Vec<u8>, Problem> {
        if are_several(body) {
            return self.decide_several(body, operation).await;
        }
        let mut question = ApiQuestion::default();
        question.read(body)?;
        allowed_here(&question, operation)?;
        let at = self.clock.now();
        let ruling = self.rule(&question, operation).await;
        let mut text = Vec::with_capacity(USUAL_ANSWER);
        self.write_answer(&mut text, &question, &ruling, at);
        Ok(text)
    }

    async fn decide_several(&self, body: &[u8], operation: CheckOperation) -> Result<Vec<u8>, Problem> {
        let questions = ApiQuestion::read_several(body)?;
        questions.iter().try_for_each(|question| allowed_here(question, operation))?;
        let at = self.clock.now();
        // Begun in their order, and many in flight together: a remote store gets those in one batch.
        let rulings: Vec<_> = questions.iter().map(|question| self.rule(question, operation)).collect();
        let rulings: Vec<Ruling<'_>> = stream::iter(rulings).buffered(MOST_IN_FLIGHT).collect().await;
        let mut text = Vec::with_capacity(USUAL_ANSWER * questions.len());
        list(&mut text, questions.iter().zip(&rulings), |text, (question, ruling)| {
            self.write_answer(text, question, ruling, at);
        });
        Ok(text)
    }

    async fn rule(&self, question: &ApiQuestion<'_>, operation: CheckOperation) -> Ruling<'static> {
        match operation {
            CheckOperation::Check => self.engine.check(question).await,
            CheckOperation::Peek => self.engine.limiter().peek(question).await,
            CheckOperation::Reserve => {
                let ttl = question.ttl.map_or(DEFAULT_TTL, |ttl| ttl.0);
                self.engine.reserve(question, ttl).await
            }
        }
    }

    fn write_answer(&self, text: &mut Vec<u8>, question: &ApiQuestion<'_>, ruling: &Ruling<'_>, at: Timestamp) {
        if !question.response {
            return answer::write(text, ruling, None);
        }
        let caller = if question.is_authenticated() { Caller::Authenticated } else { Caller::Unauthenticated };
        let context = ReplyContext { at, caller, random: fastrand::u64(..) };
        let settings = self.settings.load();
        let partitions = settings.style.partition_key.then(|| self.engine.limiter().rules().rules.partitions(question));
        let reply = Reply::new(ruling, &settings.style, context).partitions(partitions.as_ref());
        answer::write(text, ruling, Some(&reply));
    }
}

fn allowed_here(question: &ApiQuestion<'_>, operation: CheckOperation) -> Result<(), Problem> {
    match question.ttl {
        Some(_) if operation != CheckOperation::Reserve => {
            let detail = "`ttl` is the time that a reservation stays open: send it to /v1/reserve.".to_owned();
            Err(Problem::in_json(detail, None))
        }
        Some(ttl) if ttl.0.is_zero() || ttl.0 > LONGEST_TTL => {
            let detail = format!("`ttl` cannot be {}: write up to {LONGEST_TTL}.", ttl.0);
            Err(Problem::in_json(detail, None))
        }
        _ => Ok(()),
    }
}
