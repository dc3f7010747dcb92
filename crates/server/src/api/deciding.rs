//! `/v1/check`, `/v1/peek` and `/v1/reserve`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::join_all;
use http::StatusCode;
use http_body::Body;
use tidegate_core::{Clock, Micros, Ruling, Timestamp};
use tidegate_http::{Asked, Caller, Reply};

use super::answer::Answer;
use super::problem::Problem;
use super::question::{Question, Questions};
use super::{Api, json};

/// How long a reservation stays open if nobody says.
const DEFAULT_TTL: Micros = Micros::from_secs(60);
/// The longest that one can.
const LONGEST_TTL: Micros = Micros::from_secs(24 * 3_600);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Check,
    Peek,
    Reserve,
}

pub(super) async fn check(State(api): State<Arc<Api>>, request: Request) -> Response {
    api.check(request).await
}

pub(super) async fn peek(State(api): State<Arc<Api>>, request: Request) -> Response {
    api.decide(request, Doing::Peek).await.unwrap_or_else(IntoResponse::into_response)
}

pub(super) async fn reserve(State(api): State<Arc<Api>>, request: Request) -> Response {
    api.decide(request, Doing::Reserve).await.unwrap_or_else(IntoResponse::into_response)
}

impl Api {
    pub(super) async fn check<B: Body<Data = Bytes> + Unpin>(&self, request: http::Request<B>) -> Response {
        self.decide(request, Doing::Check).await.unwrap_or_else(IntoResponse::into_response)
    }

    async fn decide<B>(&self, request: http::Request<B>, doing: Doing) -> Result<Response, Problem>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let body = self.body(request).await?;
        match Questions::read(&body)? {
            Questions::One(question) => {
                allowed_here(&question, doing)?;
                let at = self.clock.now();
                let ruling = self.rule(&question, doing).await;
                Ok(json(StatusCode::OK, &self.answer(&question, &ruling, at)))
            }
            Questions::Several(questions) => {
                questions.iter().try_for_each(|question| allowed_here(question, doing))?;
                let at = self.clock.now();
                // Begun in their order, and under way together: a store that is far away is asked once for many.
                let rulings = join_all(questions.iter().map(|question| self.rule(question, doing))).await;
                let answers =
                    questions.iter().zip(&rulings).map(|(question, ruling)| self.answer(question, ruling, at));
                let answers: Vec<Answer<'_>> = answers.collect();
                Ok(json(StatusCode::OK, &answers))
            }
        }
    }

    async fn rule(&self, question: &Question<'_>, doing: Doing) -> Ruling {
        match doing {
            Doing::Check => self.engine.check(question).await,
            Doing::Peek => self.engine.limiter().peek(question).await,
            Doing::Reserve => {
                let ttl = question.ttl.map_or(DEFAULT_TTL, |ttl| ttl.0);
                self.engine.reserve(question, ttl).await
            }
        }
    }

    fn answer<'r>(&self, question: &Question<'_>, ruling: &'r Ruling, at: Timestamp) -> Answer<'r> {
        if !question.response {
            return Answer::of(ruling, None);
        }
        let caller = if question.is_authenticated() { Caller::Authenticated } else { Caller::Unauthenticated };
        let asked = Asked { at, caller, random: fastrand::u64(..) };
        Answer::of(ruling, Some(&Reply::new(ruling, &self.settings.load().style, asked)))
    }
}

fn allowed_here(question: &Question<'_>, doing: Doing) -> Result<(), Problem> {
    match question.ttl {
        Some(_) if doing != Doing::Reserve => {
            let detail = "`ttl` says how long a reservation stays open: it belongs to /v1/reserve.".to_owned();
            Err(Problem::in_json(detail, None))
        }
        Some(ttl) if ttl.0.is_zero() || ttl.0 > LONGEST_TTL => {
            let detail = format!("`ttl` cannot be {}: write up to {LONGEST_TTL}.", ttl.0);
            Err(Problem::in_json(detail, None))
        }
        _ => Ok(()),
    }
}
