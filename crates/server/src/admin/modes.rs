//! Mode switches of rules in force.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tidegate_core::{Micros, RuleId, Timestamp};
use tidegate_rules::yaml::closest;
use tidegate_rules::{Mode, Rule, RuleSet, Switches};

use super::caller::AdminCaller;
use super::extract::Json;
use super::switchboard::{SwitchTarget, word};
use super::{AdminInner, AdminState, json};
use crate::mode_choice::{LONGEST_SWITCH, ModeChoice};
use crate::problem::Problem;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchRequest {
    /// Rule to switch. Default: all rules.
    rule: Option<String>,
    mode: ModeChoice,
    /// Duration, such as `15min`. Without `for` and `until`, the switch has no end.
    #[serde(rename = "for")]
    lasting: Option<String>,
    /// End, in seconds since the Unix epoch.
    until: Option<u64>,
}

#[derive(Serialize)]
struct SwitchesView {
    generation: u64,
    /// Switch for all rules.
    all: ActiveSwitch,
    /// Switches for single rules. The switch for all rules takes precedence.
    rules: Vec<ActiveSwitch>,
}

#[derive(Serialize)]
struct ActiveSwitch {
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    mode: &'static str,
    /// In seconds since the Unix epoch; none if it lasts until it is removed.
    until: Option<u64>,
}

pub(super) async fn show(State(state): State<AdminState>) -> Response {
    state.0.expire();
    json(&state.0.switches())
}

pub(super) async fn switch(
    State(state): State<AdminState>,
    caller: AdminCaller,
    Json(asked): Json<SwitchRequest>,
) -> Result<Response, Problem> {
    let AdminInner { engine, settings, switchboard, .. } = &*state.0;
    let until = until(&asked, settings.load().clock.now())?;
    let target = match asked.rule {
        Some(rule) => {
            exists(&engine.limiter().rules().rules, &rule)?;
            SwitchTarget::Rule(rule)
        }
        None => SwitchTarget::All,
    };
    state.0.expire();
    switchboard.switch(engine.limiter(), target, asked.mode.mode(), until, &caller);
    Ok(json(&state.0.switches()))
}

/// Rejects a switch for a rule that does not exist: it is probably a typo, and the operator would believe that a limit
/// is off.
fn exists(rules: &RuleSet, id: &str) -> Result<(), Problem> {
    let mut alone = Switches::new();
    alone.switch(id, Some(Mode::Off));
    if rules.clone().with_switches(alone).unknown_switches().is_empty() {
        return Ok(());
    }
    if let Some(rule) = rules.rule_of(id) {
        let others: BTreeSet<&str> = rule.limit_ids().map(RuleId::as_str).filter(|&limit| limit != id).collect();
        let others: Vec<String> = others.into_iter().map(|limit| format!("`{limit}`")).collect();
        let detail = format!(
            "`{id}` is a limit of the rule `{rule}`, and only whole rules are switched. Switch `{rule}`, which switches {} \
             too.",
            others.join(", "),
            rule = rule.id(),
        );
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let meant = closest(id, rules.rules().iter().map(Rule::id));
    let meant = meant.map(|meant| format!(" Did you mean `{meant}`?")).unwrap_or_default();
    Err(Problem::new(StatusCode::NOT_FOUND, format!("There is no rule `{id}`.{meant}")))
}

fn until(asked: &SwitchRequest, now: Timestamp) -> Result<Option<Timestamp>, Problem> {
    let wrong = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    let lasting = match (&asked.lasting, asked.until) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(wrong("Write `for` or `until`, not both.".to_owned())),
        (Some(text), None) => {
            text.parse::<Micros>().map_err(|error| wrong(format!("`for` is not a duration: {error}.")))?
        }
        (None, Some(until)) => Timestamp::from_secs(until).since(now),
    };
    if lasting.is_zero() {
        return Err(wrong("The end is not in the future.".to_owned()));
    }
    if lasting > LONGEST_SWITCH {
        return Err(wrong("The end is more than a year ahead: leave it out.".to_owned()));
    }
    Ok(Some(now + lasting))
}

impl AdminInner {
    pub(super) fn expire(&self) {
        self.switchboard.expire(self.engine.limiter(), self.settings.load().clock.now());
    }

    fn switches(&self) -> SwitchesView {
        let present = self.engine.limiter().rules();
        let switches = present.rules.switches();
        let shown = |target: &SwitchTarget, mode: Option<Mode>| ActiveSwitch {
            rule: target.rule().map(str::to_owned),
            mode: word(mode),
            until: switches.end(target.rule()).map(|until| until.as_micros().div_ceil(1_000_000)),
        };
        SwitchesView {
            generation: present.number,
            all: shown(&SwitchTarget::All, switches.all()),
            rules: switches.rules().map(|(id, mode)| shown(&SwitchTarget::Rule(id.to_owned()), Some(mode))).collect(),
        }
    }
}
