//! Runs a test, and reports the first unexpected outcome.

use std::fmt;

use serde::{Serialize, Serializer};
use tidegate_core::{ManualClock, MemoryStore, Micros, Outcome, Receipt, Timestamp};
use tidegate_rules::{Limiter, Mode, Place, RuleSet, Ruled, Ruling};

use super::scenario::{ExpectedOutcome, Scenario, ScenarioStep};

/// Midnight UTC on Monday, 1 January 2024: the beginning of a minute, an hour, a day, a week, a month and a year.
const BEGIN: Timestamp = Timestamp::from_secs(1_704_067_200);

/// A request with an unexpected outcome.
#[derive(Debug, Serialize)]
pub(super) struct OutcomeMismatch {
    #[serde(flatten)]
    pub(super) place: Place,
    /// The number of the request in its step, from 1.
    request: u64,
    difference: Difference,
    /// The limits that decided the request.
    pub(super) limits: Vec<LimitOutcome>,
}

/// Difference between an outcome and the expected one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Difference {
    Allowed,
    Denied { by: Vec<String> },
    DeniedByAnother { expected: String, by: Vec<String> },
    RetryAfter { expected: ShownSpan, found: Option<ShownSpan> },
}

/// A duration, formatted as in rules files.
#[derive(Clone, Copy, Debug)]
struct ShownSpan(Micros);

impl fmt::Display for ShownSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Serialize for ShownSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A limit, and its decision on a request.
#[derive(Debug, Serialize)]
pub(super) struct LimitOutcome {
    id: String,
    mode: Mode,
    allowed: bool,
    remaining: u64,
    capacity: u64,
}

impl LimitOutcome {
    fn of(ruled: &Ruled<'_>) -> LimitOutcome {
        LimitOutcome {
            id: ruled.id.as_str().to_owned(),
            mode: ruled.mode,
            allowed: ruled.decision.is_allowed(),
            remaining: ruled.decision.remaining,
            capacity: ruled.decision.limit,
        }
    }
}

impl fmt::Display for LimitOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = if self.allowed { "allows" } else { "denies" };
        let mode = if self.mode == Mode::Enforce { String::new() } else { format!(" ({} mode)", self.mode) };
        write!(f, "{} {decision} it{mode}: {} of {} left", self.id, self.remaining, self.capacity)
    }
}

impl fmt::Display for OutcomeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ids: &[String]| ids.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(" and ");
        write!(f, "request {} of this step ", self.request)?;
        match &self.difference {
            Difference::Allowed if self.limits.is_empty() => {
                write!(f, "is allowed, since no rule limits it; expected: denied")
            }
            Difference::Allowed => write!(f, "is allowed; expected: denied"),
            Difference::Denied { by } => write!(f, "is denied by {}; expected: allowed", list(by)),
            Difference::DeniedByAnother { expected, by } => {
                write!(f, "is denied by {}; expected: denied by `{expected}`", list(by))
            }
            Difference::RetryAfter { expected, found: Some(found) } => {
                write!(f, "has a retry wait of {found}; expected: {expected}")
            }
            Difference::RetryAfter { expected, found: None } => {
                write!(f, "can never be allowed, so it has no retry wait; expected: {expected}")
            }
        }
    }
}

/// Runs a test against an empty store.
///
/// # Errors
/// The first request whose outcome is not the expected one.
pub(super) fn run_scenario(scenario: &Scenario, rules: &RuleSet) -> Result<(), OutcomeMismatch> {
    let clock = ManualClock::at(BEGIN);
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = Limiter::with_clock(rules.clone(), store, clock.clone());
    for step in &scenario.steps {
        clock.advance(step.after);
        for request in 1..=step.times {
            let ruling = limiter.check_now(&step.request);
            difference(&ruling, &step.expected).map_err(|difference| mismatch(step, request, difference, &ruling))?;
            if !step.hold {
                release(&limiter, &ruling.receipts);
            }
        }
    }
    Ok(())
}

/// Ends a request: releases its slots, and keeps its reserved costs charged.
fn release(limiter: &Limiter<MemoryStore<ManualClock>, ManualClock>, receipts: &[Receipt]) {
    for receipt in receipts {
        limiter.store().settle(receipt, &[]);
    }
}

fn difference(ruling: &Ruling<'_>, expected: &ExpectedOutcome) -> Result<(), Difference> {
    let deniers: Vec<String> = match &ruling.refused {
        Some(refusal) => vec![refusal.rule.to_string()],
        None => ruling.deniers().map(|denier| denier.id.as_str().to_owned()).collect(),
    };
    match (ruling.is_allowed(), expected.allowed) {
        (true, true) => return Ok(()),
        (true, false) => return Err(Difference::Allowed),
        (false, true) => return Err(Difference::Denied { by: deniers }),
        (false, false) => {}
    }
    if let Some(by) = &expected.by
        && !deniers.iter().any(|denier| is_of(denier, by))
    {
        return Err(Difference::DeniedByAnother { expected: by.clone(), by: deniers });
    }
    let found = match ruling.verdict.outcome {
        Outcome::Deny { retry_after } => Some(retry_after),
        Outcome::Allow { .. } | Outcome::TooLarge { .. } => None,
    };
    match expected.retry_after {
        Some(expected) if found != Some(expected) => {
            Err(Difference::RetryAfter { expected: ShownSpan(expected), found: found.map(ShownSpan) })
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether a limit is the named one, or belongs to the named rule.
fn is_of(limit: &str, name: &str) -> bool {
    limit.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn mismatch(step: &ScenarioStep, request: u64, difference: Difference, ruling: &Ruling<'_>) -> OutcomeMismatch {
    let limits = ruling.ruled.iter().map(LimitOutcome::of).collect();
    OutcomeMismatch { place: step.place.clone(), request, difference, limits }
}
