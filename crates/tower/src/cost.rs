//! What a request really cost.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderName, Response};
use smallvec::SmallVec;

/// Says what a request really cost, to settle what was reserved for it.
///
/// A service puts it into its response's extensions. It can be set until the body ends, so a service that learns the cost
/// while it streams keeps a clone. Costs that nobody sets are settled as they were taken.
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
pub struct ActualCost(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    of_all: Option<u64>,
    of_each: SmallVec<[(Box<str>, u64); 2]>,
}

impl ActualCost {
    /// Nothing is said yet.
    #[must_use]
    pub fn new() -> ActualCost {
        ActualCost::default()
    }

    /// Everything that was reserved really cost this much, but for what is [said](ActualCost::set_for) of single limits.
    pub fn set(&self, cost: u64) {
        self.change(|said| said.of_all = Some(cost));
    }

    /// What was reserved under this limit (`rule`, or `rule/limit` if the rule has several) really cost this much.
    pub fn set_for(&self, limit: &str, cost: u64) {
        self.change(|said| {
            said.of_each.retain(|(known, _)| **known != *limit);
            said.of_each.push((limit.into(), cost));
        });
    }

    pub(crate) fn of(&self, limit: &str) -> Option<u64> {
        self.change(|said| {
            let single = said.of_each.iter().find(|(known, _)| **known == *limit).map(|(_, cost)| *cost);
            single.or(said.of_all)
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Said) -> T) -> T {
        // Nothing that runs under the lock leaves it half changed.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What is known of a request's cost once the service has answered.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    /// What the service says.
    by_service: Option<ActualCost>,
    /// What is found in the response as it passes, where rules say that it stands there.
    pub(crate) metered: Option<ActualCost>,
    /// What the layer's header says.
    by_header: Option<u64>,
}

impl Costs {
    /// What a response says in its extensions, and in a header.
    pub(crate) fn said_by<B>(response: &Response<B>, header: Option<&HeaderName>) -> Costs {
        let by_service = response.extensions().get::<ActualCost>().cloned();
        let by_header = header.and_then(|name| response.headers().get(name)?.to_str().ok()?.trim().parse().ok());
        Costs { by_service, metered: None, by_header }
    }

    /// What is known of one limit: first by what the service says, then by its rule, then by the layer's header.
    pub(crate) fn of(&self, limit: &str) -> Option<u64> {
        let said = |cost: &Option<ActualCost>| cost.as_ref().and_then(|cost| cost.of(limit));
        said(&self.by_service).or_else(|| said(&self.metered)).or(self.by_header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_one_limit_comes_before_what_is_said_of_all() {
        let cost = ActualCost::new();
        assert_eq!(cost.of("a"), None);
        cost.set(3);
        cost.set_for("a", 1);
        cost.set_for("a", 2);
        assert_eq!((cost.of("a"), cost.of("b")), (Some(2), Some(3)));
    }

    #[test]
    fn the_service_itself_comes_before_a_header() {
        let header = HeaderName::from_static("x-cost");
        let mut response = Response::builder().header("x-cost", " 7 ").body(()).unwrap();
        let said = |response: &Response<()>| Costs::said_by(response, Some(&header)).of("any");
        assert_eq!(said(&response), Some(7));
        assert_eq!(Costs::said_by(&response, None).of("any"), None);
        let cost = ActualCost::new();
        cost.set(9);
        response.extensions_mut().insert(cost);
        assert_eq!(said(&response), Some(9));
        assert_eq!(said(&Response::builder().header("x-cost", "-1").body(()).unwrap()), None);
    }
}
