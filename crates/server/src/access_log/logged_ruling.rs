//! The decision on a request, as written to the access log.

use std::net::IpAddr;

use tidegate_core::RuleId;
use tidegate_http::HttpFacts;
use tidegate_rules::{Fact, Facts, Mode, Ruling, Secret};

use super::record::LoggedDecision;

/// The facts that the rules evaluated, and their decision.
pub(crate) struct LoggedRuling {
    pub(crate) address: Option<IpAddr>,
    pub(crate) user: Option<Box<str>>,
    /// Hash of the API key.
    pub(crate) api_key: Option<String>,
    pub(crate) tier: Option<Box<str>>,
    decided: LoggedDecision,
    limit: Option<RuleId>,
}

impl LoggedRuling {
    /// Keeps what a line needs. API keys are hidden under `secret`.
    pub(crate) fn new(facts: &HttpFacts<'_>, ruling: &Ruling<'_>, secret: &Secret) -> LoggedRuling {
        let text = |fact: Fact<'_>| facts.get(fact).map(|value| value.into_owned().into_boxed_str());
        let (decided, limit) = logged_decision(ruling);
        LoggedRuling {
            address: facts.address(),
            user: text(Fact::User),
            api_key: facts.get(Fact::ApiKey).map(|key| secret.hide(&key)),
            tier: text(Fact::Tier),
            decided,
            limit,
        }
    }

    /// The decision, and the limit that determined it.
    pub(crate) fn decided(&self) -> (LoggedDecision, Option<&str>) {
        (self.decided, self.limit.as_ref().map(RuleId::as_str))
    }
}

/// The decision of a ruling, and the limit that determined it.
fn logged_decision(ruling: &Ruling<'_>) -> (LoggedDecision, Option<RuleId>) {
    if let Some(refused) = &ruling.refused {
        return (LoggedDecision::Refused, Some(RuleId::new(&refused.rule)));
    }
    let binding = ruling.verdict.binding.and_then(|place| ruling.ruled.get(place));
    let binding = binding.map(|ruled| RuleId::clone(&ruled.id));
    if !ruling.verdict.is_allowed() {
        return (LoggedDecision::Denied, binding);
    }
    let would_deny = ruling.ruled.iter().find(|ruled| ruled.mode == Mode::Shadow && !ruled.decision.is_allowed());
    match would_deny {
        Some(ruled) => (LoggedDecision::Shadow, Some(RuleId::clone(&ruled.id))),
        None => (LoggedDecision::Allowed, binding),
    }
}
