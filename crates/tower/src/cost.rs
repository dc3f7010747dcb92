//! The actual cost of a request, which is known after the service has responded.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderName, Response};
use smallvec::SmallVec;

/// The actual cost of a request, by which its reserved costs are settled.
///
/// A service inserts it into its response's extensions. It can be set until the body ends, so a service that learns the cost
/// while it streams keeps a clone. A cost that is never set is settled at its estimate.
///
/// ```
/// use http::Response;
/// use tidegate_tower::ActualCost;
///
/// let cost = ActualCost::new();
/// let mut response = Response::new("the answer");
/// response.extensions_mut().insert(cost.clone());
/// cost.set_for("model/tokens", 480);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ActualCost(Arc<Mutex<Amounts>>);

#[derive(Debug, Default)]
struct Amounts {
    of_all: Option<u64>,
    of_limits: SmallVec<[(Box<str>, u64); 2]>,
}

impl ActualCost {
    /// An actual cost that is not known yet.
    #[must_use]
    pub fn new() -> ActualCost {
        ActualCost::default()
    }

    /// Sets the cost under every limit, except for limits with a cost [of their own](ActualCost::set_for).
    pub fn set(&self, cost: u64) {
        self.with_amounts(|amounts| amounts.of_all = Some(cost));
    }

    /// Sets the cost under one limit, named `rule`, or `rule/limit` if the rule has several.
    pub fn set_for(&self, limit: &str, cost: u64) {
        self.with_amounts(|amounts| {
            amounts.of_limits.retain(|(name, _)| **name != *limit);
            amounts.of_limits.push((limit.into(), cost));
        });
    }

    pub(crate) fn of(&self, limit: &str) -> Option<u64> {
        self.with_amounts(|amounts| {
            let single = amounts.of_limits.iter().find(|(name, _)| **name == *limit).map(|(_, cost)| *cost);
            single.or(amounts.of_all)
        })
    }

    fn with_amounts<T>(&self, use_amounts: impl FnOnce(&mut Amounts) -> T) -> T {
        // A panic cannot leave inconsistent state behind, so poisoning is ignored.
        use_amounts(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The actual costs of a request, by source.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    /// From the response's extensions.
    by_service: Option<ActualCost>,
    /// From the headers and the body of the response, where a rule's `settle` points.
    pub(crate) metered: Option<ActualCost>,
    /// From the layer's cost header.
    by_header: Option<u64>,
}

impl Costs {
    /// The costs in a response's extensions and in its cost header.
    pub(crate) fn of_response<B>(response: &Response<B>, header: Option<&HeaderName>) -> Costs {
        let by_service = response.extensions().get::<ActualCost>().cloned();
        let by_header = header.and_then(|name| response.headers().get(name)?.to_str().ok()?.trim().parse().ok());
        Costs { by_service, metered: None, by_header }
    }

    /// The actual cost under one limit. The service's own value takes precedence, then the rule's `settle`, then the
    /// header.
    pub(crate) fn of(&self, limit: &str) -> Option<u64> {
        let under_limit = |cost: &Option<ActualCost>| cost.as_ref().and_then(|cost| cost.of(limit));
        under_limit(&self.by_service).or_else(|| under_limit(&self.metered)).or(self.by_header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_one_limit_comes_before_the_cost_of_all() {
        let cost = ActualCost::new();
        assert_eq!(cost.of("a"), None);
        cost.set(3);
        cost.set_for("a", 1);
        cost.set_for("a", 2);
        assert_eq!((cost.of("a"), cost.of("b")), (Some(2), Some(3)));
    }

    #[test]
    fn the_services_own_cost_comes_before_a_header() {
        let header = HeaderName::from_static("x-cost");
        let mut response = Response::builder().header("x-cost", " 7 ").body(()).unwrap();
        let cost_of = |response: &Response<()>| Costs::of_response(response, Some(&header)).of("any");
        assert_eq!(cost_of(&response), Some(7));
        assert_eq!(Costs::of_response(&response, None).of("any"), None);
        let cost = ActualCost::new();
        cost.set(9);
        response.extensions_mut().insert(cost);
        assert_eq!(cost_of(&response), Some(9));
        assert_eq!(cost_of(&Response::builder().header("x-cost", "-1").body(()).unwrap()), None);
    }
}
