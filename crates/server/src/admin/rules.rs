//! Rules in force: list, reload, and validation of new ones.

use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use tidegate_rules::envoy::{Domain, ListedDescriptor};
use tidegate_rules::{Diagnostics, Loaded, RuleCounts, RuleSet, RuleSummary};
use tokio::sync::Semaphore;

use super::extract::RawBody;
use super::{AdminState, json};
use crate::problem::Problem;
use crate::serve::rule_sources::{load_rules, log_refused, put_in_force};

pub(super) async fn show(State(state): State<AdminState>) -> Response {
    #[derive(Serialize)]
    struct RulesView<'r> {
        generation: u64,
        rules: Vec<RuleSummary<'r>>,
        /// Domains of the Envoy files.
        domains: Vec<&'r str>,
        /// Descriptors of these domains that have a limit.
        descriptors: Vec<ListedDescriptor<'r>>,
        /// Switches for rules that do not exist.
        unknown_switches: Vec<&'r str>,
    }
    state.0.expire();
    let present = state.0.engine.limiter().rules();
    json(&RulesView {
        generation: present.number,
        rules: present.rules.shown().collect(),
        domains: present.rules.domains().map(Domain::name).collect(),
        descriptors: present.rules.domains().flat_map(Domain::limited_descriptors).collect(),
        unknown_switches: present.rules.unknown_switches(),
    })
}

pub(super) async fn reload(State(state): State<AdminState>) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct ReloadResponse<'f> {
        generation: u64,
        #[serde(flatten)]
        counts: RuleCounts,
        warnings: &'f Diagnostics,
    }
    let (engine, settings) = (&state.0.engine, state.0.settings.load_full());
    if settings.rules.is_empty() {
        let detail = "There are no rules files to reload. Start the server with --rules FILE.";
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    }
    let published = || {
        let detail = "Rules published for the fleet are in force: `tidegate rules push` replaces them.";
        Problem::new(StatusCode::CONFLICT, detail)
    };
    if settings.are_published.load(Ordering::Relaxed) {
        return Err(published());
    }
    let (paths, is_required, known) = (settings.rules.clone(), settings.rules_required, settings.known);
    let read = aside(move || load_rules(&paths, known.is_some(), is_required)).await?;
    engine.metrics().reloaded(read.as_ref().err().map(Diagnostics::to_string));
    match read {
        Ok(Loaded { rules, warnings, .. }) => {
            let counts = rules.counts();
            let generation = put_in_force(engine, rules, &settings.are_published, known).ok_or_else(published)?;
            Ok(json(&ReloadResponse { generation, counts, warnings: &warnings }))
        }
        Err(findings) => {
            log_refused(&findings);
            Err(Problem::in_rules("The rules cannot be used: the current rules stay in force.", findings))
        }
    }
}

pub(super) async fn validate(RawBody(body): RawBody) -> Result<Response, Problem> {
    #[derive(Serialize)]
    struct RulesReport<'f> {
        usable: bool,
        errors: usize,
        warnings: usize,
        /// Counts of rules; absent if there are errors.
        #[serde(flatten)]
        counts: Option<RuleCounts>,
        findings: &'f Diagnostics,
    }
    let Ok(text) = String::from_utf8(body.into()) else {
        return Err(Problem::new(StatusCode::BAD_REQUEST, "The body is not UTF-8 text. Send a rules file."));
    };
    // A small text can take much memory to read, because aliases repeat parts of it.
    static VALIDATIONS: Semaphore = Semaphore::const_new(1);
    let _turn = VALIDATIONS.acquire().await;
    let (findings, counts) = match aside(move || RuleSet::parse("candidate", &text)).await? {
        Ok(loaded) => (loaded.warnings, Some(loaded.rules.counts())),
        Err(findings) => (findings, None),
    };
    let (errors, warnings) = (findings.errors(), findings.warnings());
    Ok(json(&RulesReport { usable: counts.is_some(), errors, warnings, counts, findings: &findings }))
}

/// Runs blocking work on a separate thread.
async fn aside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let stopping = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "The server is shutting down.");
    tokio::task::spawn_blocking(act).await.map_err(stopping)
}
