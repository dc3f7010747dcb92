//! Keys: peek, reset, and the busiest ones.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tidegate_core::{Decision, Limit, Outcome, RuleId};
use tidegate_rules::{DecidedBy, InlineLimit, NoSuchKey, OnStoreFailure, ResetError, Ruled};

use super::caller::AdminCaller;
use super::extract::{Json, most, parameter};
use super::named_key::{DescriptorKey, NamedParts};
use super::{AdminState, json};
use crate::engine::{Engine, THROTTLE_RULE};
use crate::metrics::{Ranking, top_store_keys};
use crate::problem::Problem;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeekRequest {
    /// A rule, or one of its limits.
    rule: String,
    /// Parts of the key, in the order of the rule: values, or `#` and the hash of a secret. None if the rule has no
    /// key. Empty also for the key shared by requests that lack a part.
    key: Option<Vec<String>>,
    /// Tier whose limits apply. Default: the tier of the key.
    tier: Option<String>,
    /// Limit to apply to the key. Only for `CL.THROTTLE`, whose limits are in no rule.
    limit: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetRequest {
    rule: String,
    key: Option<Vec<String>>,
}

pub(super) async fn peek(State(state): State<AdminState>, Json(asked): Json<PeekRequest>) -> Result<Response, Problem> {
    if asked.rule == THROTTLE_RULE {
        return peek_throttle(&state.0.engine, &asked).await;
    }
    if asked.limit.is_some() {
        let detail = format!("`limit` is for the rule `{THROTTLE_RULE}` alone: other rules have limits of their own.");
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    if let Some(descriptor) = DescriptorKey::resolve(&state.0.engine, &asked.rule, asked.key.as_deref())? {
        return peek_descriptor(&state.0.engine, &asked.rule, &descriptor).await;
    }
    let limiter = state.0.engine.limiter();
    let parts = NamedParts::resolve(&state.0.engine, &asked.rule, asked.key)?;
    let names = parts.names();
    let tiers = match limiter.peek_named(names.key(&asked.rule, asked.tier.as_deref())).await {
        Ok(ruling) => {
            let limits = ruling.ruled.iter().map(|ruled| PeekedLimit::of(ruled, None)).collect();
            return Ok(json(&Peeked::of(&asked.rule, ruling.generation, limits)));
        }
        // The tier depends on the request: shows the state of the key in each tier.
        Err(NoSuchKey::TierWanted { tiers, .. }) => tiers,
        Err(error) => return Err(error.into()),
    };
    let mut rulings = Vec::new();
    for tier in &tiers {
        rulings.push((limiter.peek_named(names.key(&asked.rule, Some(tier))).await?, tier));
    }
    let shown = rulings.iter().flat_map(|(ruling, tier)| ruling.ruled.iter().map(move |ruled| (ruled, *tier)));
    let limits = shown.map(|(ruled, tier)| PeekedLimit::of(ruled, Some(tier)));
    let generation = rulings.first().map_or(0, |(ruling, _)| ruling.generation);
    Ok(json(&Peeked::of(&asked.rule, generation, limits.collect())))
}

async fn peek_throttle(engine: &Engine, asked: &PeekRequest) -> Result<Response, Problem> {
    let wrong = |what: String| {
        let detail = format!("{what}: write the limit of the command, such as \"limit\": \"gcra 30/min burst 16\".");
        Problem::new(StatusCode::BAD_REQUEST, detail)
    };
    let limit = asked.limit.as_deref().ok_or_else(|| wrong(format!("`limit` is missing for `{THROTTLE_RULE}`")))?;
    let limit = limit.parse::<Limit>().map_err(|error| wrong(format!("`limit` cannot be read ({error})")))?;
    let parts: Vec<&str> = asked.key.iter().flatten().map(String::as_str).collect();
    let (decision, by) = engine.peek_throttle(&parts, limit).await?;
    let limits = vec![PeekedLimit::new(THROTTLE_RULE, None, &decision, by)];
    Ok(json(&Peeked::of(&asked.rule, engine.limiter().rules().number, limits)))
}

async fn peek_descriptor(engine: &Engine, id: &str, descriptor: &DescriptorKey) -> Result<Response, Problem> {
    let Some(limit) = descriptor.limit else {
        let detail = format!("`{id}` has no limit of its own: requests are unlimited, or come with their limit.");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    };
    let limit = InlineLimit::new(RuleId::new(id), limit, OnStoreFailure::default());
    let (decision, by) = engine.limiter().peek_inline(&limit, &descriptor.key).await;
    let limits = vec![PeekedLimit::new(id, None, &decision, by)];
    Ok(json(&Peeked::of(id, engine.limiter().rules().number, limits)))
}

pub(super) async fn reset(
    State(state): State<AdminState>,
    caller: AdminCaller,
    Json(asked): Json<ResetRequest>,
) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct Reset {
        /// Number of limits under which the key had any state.
        forgotten: usize,
    }
    let engine = &state.0.engine;
    let forgotten = if asked.rule == THROTTLE_RULE {
        let parts: Vec<&str> = asked.key.iter().flatten().map(String::as_str).collect();
        engine.reset_key(THROTTLE_RULE, &parts).await?
    } else if let Some(descriptor) = DescriptorKey::resolve(engine, &asked.rule, asked.key.as_deref())? {
        let forgotten = engine.limiter().reset_inline(&RuleId::new(&asked.rule), &descriptor.key).await;
        usize::from(forgotten.map_err(ResetError::from)?)
    } else {
        let parts = NamedParts::resolve(engine, &asked.rule, asked.key)?;
        engine.limiter().reset_named(parts.names().key(&asked.rule, None)).await?
    };
    tracing::info!(rule = asked.rule, forgotten, by = %caller, "a key was reset");
    Ok(json(&Reset { forgotten }))
}

pub(super) async fn top(State(state): State<AdminState>, uri: Uri) -> Result<Response, Problem> {
    let (engine, most) = (&state.0.engine, most(&uri)?);
    let top = match parameter(&uri, "by").as_deref() {
        None | Some("traffic") => engine.metrics().top_keys(Ranking::Traffic, most),
        Some("denials") => engine.metrics().top_keys(Ranking::Denials, most),
        // A store in memory has no calls to rank.
        Some("store") => top_store_keys(engine.limiter(), most).unwrap_or_default(),
        Some(_) => {
            let detail = "`by` is not `traffic`, `denials` or `store`.";
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
    };
    Ok(json(&top))
}

/// State of a key.
#[derive(Serialize)]
struct Peeked<'r> {
    rule: &'r str,
    generation: u64,
    /// Whether a request of cost 1 would be allowed, in every tier that is shown.
    allowed: bool,
    limits: Vec<PeekedLimit<'r>>,
}

#[derive(Serialize)]
struct PeekedLimit<'r> {
    id: &'r str,
    /// Tier, if it depends on the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'r str>,
    allowed: bool,
    limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    retry_after_ms: Option<u64>,
    /// Whether the store decided. False if this process decided because the store was unavailable.
    by_store: bool,
}

impl<'r> Peeked<'r> {
    fn of(rule: &'r str, generation: u64, limits: Vec<PeekedLimit<'r>>) -> Peeked<'r> {
        Peeked { rule, generation, allowed: limits.iter().all(|limit| limit.allowed), limits }
    }
}

impl<'r> PeekedLimit<'r> {
    fn of(Ruled { id, decision, by, .. }: &'r Ruled<'_>, tier: Option<&'r str>) -> PeekedLimit<'r> {
        PeekedLimit::new(id.as_str(), tier, decision, *by)
    }

    fn new(id: &'r str, tier: Option<&'r str>, decision: &Decision, by: DecidedBy) -> PeekedLimit<'r> {
        PeekedLimit {
            id,
            tier,
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
