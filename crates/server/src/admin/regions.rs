//! Shows and moves the shares of regions.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidegate_core::regions::{BeginError, Share};
use tidegate_redis::fleet::{RegionsControl, RegionsError, Resumption};

use super::caller::AdminCaller;
use super::extract::Json;
use super::{AdminState, json};
use crate::metrics::OwnRegion;
use crate::problem::Problem;
use crate::region_records::{RegionRecords, ShownOutcome};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SharesRequest {
    /// Rule with shares of its own. Default: the shares of all other rules.
    rule: Option<String>,
    /// Shares by region, such as `70%`.
    shares: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveRequest {
    /// Rule with shares of its own. Default: the shares of all other rules.
    rule: Option<String>,
    from: String,
    to: String,
    /// The share, such as `10%`.
    share: String,
}

#[derive(Serialize)]
struct RegionsView {
    /// The region of this server, from its own configuration.
    own: Option<OwnRegion>,
    /// The records of all regions; empty if their servers are not configured.
    #[serde(flatten)]
    records: RegionRecords,
}

#[derive(Serialize)]
struct MovedView {
    transfers: Vec<ShownOutcome>,
    /// The regions that could not be read, and contradictions.
    problems: Vec<String>,
}

pub(super) async fn show(State(state): State<AdminState>) -> Response {
    let own = OwnRegion::of(state.0.engine.metrics(), state.0.engine.limiter());
    let records = match state.0.settings.load().regions.clone() {
        Some(regions) => RegionRecords::read(&regions).await,
        None => RegionRecords::default(),
    };
    json(&RegionsView { own, records })
}

pub(super) async fn set(
    State(state): State<AdminState>,
    caller: AdminCaller,
    Json(asked): Json<SharesRequest>,
) -> Result<Response, Problem> {
    let regions = state.regions()?;
    let targets: Result<BTreeMap<String, Share>, Problem> =
        asked.shares.into_iter().map(|(region, text)| Ok((region, share(&text)?))).collect();
    let (rule, targets) = (asked.rule.unwrap_or_default(), targets?);
    tracing::info!(rule, shares = ?targets, by = %caller, "shares of regions are set");
    moved(async move { regions.set(&rule, &targets).await }).await
}

pub(super) async fn move_share(
    State(state): State<AdminState>,
    caller: AdminCaller,
    Json(asked): Json<MoveRequest>,
) -> Result<Response, Problem> {
    let regions = state.regions()?;
    let (amount, rule) = (share(&asked.share)?, asked.rule.unwrap_or_default());
    let MoveRequest { from, to, .. } = asked;
    tracing::info!(rule, from, to, share = %amount, by = %caller, "a share is moved between regions");
    moved(async move { regions.move_share(&from, &to, &rule, amount).await }).await
}

pub(super) async fn resume(State(state): State<AdminState>, caller: AdminCaller) -> Result<Response, Problem> {
    let regions = state.regions()?;
    tracing::info!(by = %caller, "transfers between regions are resumed");
    let resumed = finished(async move { regions.resume().await }).await?;
    // The transfers that the other regions have begun are unknown.
    match resumed.problems.first() {
        Some(problem) => {
            let done = resumed.outcomes.iter().filter(|outcome| outcome.is_over()).count();
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{problem}. Transfers that are over: {done}.")))
        }
        None => Ok(moved_view(&resumed)),
    }
}

impl AdminState {
    /// Access to all regions, under the rules in force.
    fn regions(&self) -> Result<RegionsControl, Problem> {
        let configured = self.0.settings.load().regions.clone();
        let detail =
            "The servers of the regions are not configured. Set `store.redis.regions`, or use `tidegate regions`.";
        let regions = configured.ok_or_else(|| Problem::new(StatusCode::CONFLICT, detail))?;
        let windows = self.0.engine.limiter().with_rules(|present| present.rules.shared_windows());
        Ok(regions.with_windows(windows))
    }
}

fn share(text: &str) -> Result<Share, Problem> {
    text.parse().map_err(|error| Problem::new(StatusCode::BAD_REQUEST, format!("{error}.")))
}

async fn moved(
    moving: impl Future<Output = Result<Resumption, RegionsError>> + Send + 'static,
) -> Result<Response, Problem> {
    Ok(moved_view(&finished(moving).await??))
}

/// Waits for transfers. They go on if the client does not wait.
async fn finished<T: Send + 'static>(moving: impl Future<Output = T> + Send + 'static) -> Result<T, Problem> {
    let stopping = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "The server is shutting down.");
    tokio::spawn(moving).await.map_err(stopping)
}

fn moved_view(resumed: &Resumption) -> Response {
    json(&MovedView {
        transfers: resumed.outcomes.iter().map(ShownOutcome::of).collect(),
        problems: resumed.problems.iter().map(ToString::to_string).collect(),
    })
}

impl From<RegionsError> for Problem {
    fn from(error: RegionsError) -> Problem {
        let status = match &error {
            RegionsError::Unknown { .. } | RegionsError::Begin { error: BeginError::UnknownRule { .. }, .. } => {
                StatusCode::NOT_FOUND
            }
            RegionsError::Region { .. } => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Problem::new(status, error.to_string())
    }
}
