//! The actual cost of a request, read from its response.

use std::fmt;

use super::field::FieldPath;
use crate::decimal::multiplied;
use tidegate_core::time::MAX_EXACT;

/// The source of the actual cost: one place in the response, or several whose numbers are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    terms: Vec<SettleTerm>,
}

/// One place, and what each unit there costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleTerm {
    /// The place of the number.
    pub from: SettleSource,
    /// The factor.
    pub times: u64,
}

/// A place in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleSource {
    /// A header, by its name in lower case.
    Header(String),
    /// A field of the body, which is JSON or a stream of events with JSON data.
    Body(FieldPath),
}

impl Settle {
    pub(super) fn new(terms: Vec<SettleTerm>) -> Settle {
        Settle { terms }
    }

    /// The places.
    #[must_use]
    pub fn terms(&self) -> &[SettleTerm] {
        &self.terms
    }

    /// The actual cost. `read` returns the text of the number in each place. Places without a number are ignored; `None` if
    /// no place has a number.
    ///
    /// ```
    /// use tidegate_rules::{Request, RuleSet, SettleSource};
    ///
    /// let rules = RuleSet::parse("rules.yaml", "
    /// rules:
    ///   - id: money
    ///     limit: { limit: fixed 5_000_000/day, settle: { body:usage.cost: 1_000_000 } }
    /// ")?;
    /// let request = Request::new("POST", "/v1/chat/completions");
    /// let matched = rules.rules.matching(&request);
    /// let (limit, settle) = matched.settled().next().ok_or("it is settled")?;
    /// assert_eq!(limit.as_str(), "money");
    /// assert_eq!(settle.cost(|_| Some("0.0123")), Some(12_300));
    /// assert_eq!(settle.cost(|_| None::<&str>), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cost<T: AsRef<str>>(&self, read: impl Fn(&SettleSource) -> Option<T>) -> Option<u64> {
        let said = self.terms.iter().filter_map(|term| multiplied(read(&term.from)?.as_ref(), term.times));
        said.reduce(u64::saturating_add).map(|cost| cost.min(MAX_EXACT))
    }
}

impl fmt::Display for SettleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettleSource::Header(name) => write!(f, "header:{name}"),
            SettleSource::Body(path) => write!(f, "body:{path}"),
        }
    }
}

impl fmt::Display for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let plus = if index == 0 { "" } else { " + " };
            match term.times {
                1 => write!(f, "{plus}{}", term.from)?,
                times => write!(f, "{plus}{times} × {}", term.from)?,
            }
        }
        Ok(())
    }
}
