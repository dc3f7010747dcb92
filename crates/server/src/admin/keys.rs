//! Single keys.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tidegate_core::{DecidedBy, Decision, Limit, Outcome, Ruled, Ruling};

use super::asked::{Json, most, parameter};
use super::problem::Problem;
use super::{AdminState, json};
use crate::engine::{Engine, THROTTLE_RULE};
use crate::metrics::Ranking;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    rule: String,
    /// The values of the key's parts, in clear, in the order in which the rule names them. None if it has none.
    #[serde(default)]
    key: Vec<String>,
    /// The tier whose limits are meant; everyone's if it is left out.
    tier: Option<String>,
    /// The limit to look at the key by. Only for `CL.THROTTLE`, whose limits stand in no rule.
    limit: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedReset {
    rule: String,
    #[serde(default)]
    key: Vec<String>,
}

pub(super) async fn peek(State(state): State<AdminState>, Json(asked): Json<Asked>) -> Result<Response, Problem> {
    let parts: Vec<&str> = asked.key.iter().map(String::as_str).collect();
    if asked.rule == THROTTLE_RULE {
        return peek_throttle(&state.0.engine, &asked, &parts).await;
    }
    if asked.limit.is_some() {
        let detail = format!("`limit` is for the rule `{THROTTLE_RULE}` alone: other rules have limits of their own.");
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    let ruling = state.0.engine.limiter().peek_key(&asked.rule, &parts, asked.tier.as_deref()).await?;
    Ok(json(&Peeked::of(&asked.rule, &ruling)))
}

async fn peek_throttle(engine: &Engine, asked: &Asked, parts: &[&str]) -> Result<Response, Problem> {
    let wrong = |what: String| {
        let detail =
            format!("{what}: write the one that the command brings, such as \"limit\": \"gcra 30/min burst 16\".");
        Problem::new(StatusCode::BAD_REQUEST, detail)
    };
    let limit = asked.limit.as_deref().ok_or_else(|| wrong(format!("`limit` is missing for `{THROTTLE_RULE}`")))?;
    let limit = limit.parse::<Limit>().map_err(|error| wrong(format!("`limit` cannot be read ({error})")))?;
    let (decision, by) = engine.peek_throttle(parts, limit).await?;
    Ok(json(&Peeked {
        rule: &asked.rule,
        generation: engine.limiter().rules().number,
        allowed: decision.is_allowed(),
        limits: vec![PeekedLimit::new(THROTTLE_RULE, &decision, by)],
    }))
}

pub(super) async fn reset(State(state): State<AdminState>, Json(asked): Json<AskedReset>) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Reset {
        /// Under how many limits anything was known of the key.
        forgotten: usize,
    }
    let parts: Vec<&str> = asked.key.iter().map(String::as_str).collect();
    let forgotten = state.0.engine.reset_key(&asked.rule, &parts).await?;
    tracing::info!(rule = asked.rule, forgotten, "a key was reset");
    Ok(json(&Reset { forgotten }))
}

pub(super) async fn top(State(state): State<AdminState>, uri: Uri) -> Result<Response, Problem> {
    let ranking = match parameter(&uri, "by").as_deref() {
        None | Some("traffic") => Ranking::Traffic,
        Some("denials") => Ranking::Denials,
        Some(_) => {
            return Err(Problem::new(StatusCode::BAD_REQUEST, "`by` is neither `traffic` nor `denials`."));
        }
    };
    Ok(json(&state.0.engine.metrics().top_keys(ranking, most(&uri)?)))
}

/// How a key stands.
#[derive(Serialize)]
struct Peeked<'r> {
    rule: &'r str,
    generation: u64,
    /// Whether a request that costs one could go ahead.
    allowed: bool,
    limits: Vec<PeekedLimit<'r>>,
}

#[derive(Serialize)]
struct PeekedLimit<'r> {
    id: &'r str,
    allowed: bool,
    limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    retry_after_ms: Option<u64>,
    /// Whether the store said so, or this process alone while the store is away.
    by_store: bool,
}

impl<'r> Peeked<'r> {
    fn of(rule: &'r str, ruling: &'r Ruling<'_>) -> Peeked<'r> {
        let limits = ruling.ruled.iter().map(PeekedLimit::of).collect();
        Peeked { rule, generation: ruling.generation, allowed: ruling.is_allowed(), limits }
    }
}

impl<'r> PeekedLimit<'r> {
    fn of(Ruled { id, decision, by, .. }: &'r Ruled<'_>) -> PeekedLimit<'r> {
        PeekedLimit::new(id.as_str(), decision, *by)
    }

    fn new(id: &'r str, decision: &Decision, by: DecidedBy) -> PeekedLimit<'r> {
        PeekedLimit {
            id,
            allowed: decision.is_allowed(),
            limit: decision.limit,
            remaining: decision.remaining,
            reset_after_ms: decision.reset_after.as_millis_ceil(),
            retry_after_ms: match decision.outcome {
                Outcome::Deny { retry_after } => Some(retry_after.as_millis_ceil()),
                Outcome::Allow { .. } | Outcome::TooLarge { .. } => None,
            },
            by_store: by == DecidedBy::Store,
        }
    }
}
