//! Conditions of rules: whether a rule governs a request.

use super::applicable_rule::MatchedReadings;
use super::fact_name::FactName;
use super::pattern::Pattern;
use super::request_view::RequestView;
use super::rule::{Addresses, Conditions, Mode, Paths, Rule};
use crate::facts::{Facts, Values};

/// The reason for which a rule does not govern a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mismatch<'r> {
    Off,
    Path(&'r Paths),
    Address(&'r Addresses),
    Value(&'r FactName, &'r Pattern),
}

impl Rule {
    /// Whether the rule is on and its conditions hold.
    pub(super) fn governs<F: Facts + ?Sized>(
        &self,
        mode: Mode,
        request: &RequestView<'_, F>,
    ) -> Result<MatchedReadings, Mismatch<'_>> {
        if mode == Mode::Off { Err(Mismatch::Off) } else { self.conditions.hold(request) }
    }
}

impl Conditions {
    fn hold<F: Facts + ?Sized>(&self, request: &RequestView<'_, F>) -> Result<MatchedReadings, Mismatch<'_>> {
        let mut readings = MatchedReadings::All;
        for (fact, pattern) in &self.values {
            let holds = match &request.values(fact) {
                Values::None => pattern.matches(None),
                Values::One(value) => pattern.matches(Some(value)),
                Values::Several(values) => {
                    let matching = values.iter().filter(|value| pattern.matches(Some(value))).count();
                    if matching < values.len() {
                        readings = MatchedReadings::Some;
                    }
                    matching > 0
                }
            };
            if !holds {
                return Err(Mismatch::Value(fact, pattern));
            }
        }
        if let Some(paths) = &self.path
            && paths.any.iter().any(|path| path.matches(request.normal_path())) == paths.negated
        {
            return Err(Mismatch::Path(paths));
        }
        if let Some(addresses) = &self.address
            && !addresses.matches(request.known_address())
        {
            return Err(Mismatch::Address(addresses));
        }
        Ok(readings)
    }
}
