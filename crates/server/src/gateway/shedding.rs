//! Load shedding: under overload, the gateway refuses the least important requests first.
//!
//! Each route has a shedder of its own, since one route may be overloaded while others are not. A route is overloaded if
//! the adaptive limits of all its addresses would refuse a request, or if the gateway itself is overloaded.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use tidegate_core::shed::{COHORTS, LoadShedder, OverloadBounds};
use tidegate_rules::Priority;
use tidegate_tower::{ClientHash, record_runtime_load};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Settings of load shedding.
#[derive(Clone, Debug)]
pub struct Shedding {
    /// Whether requests that would be shed are only counted, and forwarded anyway.
    pub is_shadow: bool,
    /// Thresholds of the overload signals.
    pub bounds: OverloadBounds,
}

/// The interval between checks for whether a route sheds load.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive checks without shedding after which shedding counts as ended.
const CALM_UPDATES: u32 = 10;

/// Load shedder of a route.
pub(super) struct RouteShedding {
    route: String,
    shedder: LoadShedder,
    settings: Shedding,
}

impl RouteShedding {
    pub(super) fn new(route: String, settings: &Shedding) -> RouteShedding {
        RouteShedding { route, shedder: LoadShedder::with_bounds(settings.bounds), settings: settings.clone() }
    }

    /// Whether a request goes on. `is_refused` says that the adaptive limits of all addresses of the route would refuse it.
    pub(super) fn admits(&self, head: &Parts, priority: Priority, is_refused: bool) -> bool {
        let ClientHash(client) = ClientHash::of_request(&head.extensions);
        self.shedder.admits(priority as usize, client, is_refused) || self.settings.is_shadow
    }

    /// The shedder, with its threshold and counters.
    pub(super) const fn shedder(&self) -> &LoadShedder {
        &self.shedder
    }
}

/// Watches the load of the runtime, and logs when load is shed, until `stop`.
pub(super) fn watch(routes: Vec<Arc<RouteShedding>>, stop: &CancellationToken) {
    if routes.is_empty() {
        return;
    }
    let shedders = routes.iter().map(|route| route.shedder.clone()).collect();
    let stop = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = record_runtime_load(shedders) => {}
            () = log_changes(routes) => {}
        }
    });
}

async fn log_changes(routes: Vec<Arc<RouteShedding>>) {
    let mut routes: Vec<_> = routes.into_iter().map(|route| (route, ShedState::Calm)).collect();
    let mut ticks = tokio::time::interval(LOG_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for (route, state) in &mut routes {
            state.update(route);
        }
    }
}

/// State of a route, for the log.
enum ShedState {
    Calm,
    /// Load is shed, up to this class.
    Shedding {
        class: usize,
        calm_updates: u32,
    },
}

impl ShedState {
    fn update(&mut self, shedding: &RouteShedding) {
        let RouteShedding { route, shedder, settings: Shedding { is_shadow, .. } } = shedding;
        let shed_class = highest_shed_class(shedder.threshold());
        match (&mut *self, shed_class) {
            (ShedState::Shedding { class, calm_updates }, Some(shed)) if shed <= *class => *calm_updates = 0,
            (ShedState::Calm | ShedState::Shedding { .. }, Some(class)) => {
                let priority = Priority::ALL.get(class).map_or("", |priority| priority.as_str());
                tracing::warn!(route, priority, shadow = is_shadow, "overload: requests up to this priority are shed");
                *self = ShedState::Shedding { class, calm_updates: 0 };
            }
            (ShedState::Shedding { calm_updates, .. }, None) if *calm_updates < CALM_UPDATES => *calm_updates += 1,
            (ShedState::Shedding { .. }, None) => {
                let shed: u64 = shedder.counts().shed.iter().sum();
                tracing::info!(route, shed, "the overload has ended: no requests are shed any more");
                *self = ShedState::Calm;
            }
            (ShedState::Calm, None) => {}
        }
    }
}

/// The highest class of which requests are shed at a threshold: levels below the threshold are shed, and each class has
/// [`COHORTS`] of them.
fn highest_shed_class(threshold: usize) -> Option<usize> {
    Some(threshold.checked_sub(1)? / COHORTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_the_highest_class_that_is_shed() {
        assert_eq!(highest_shed_class(0), None);
        for (threshold, class) in [(1, 0), (COHORTS, 0), (COHORTS + 1, 1), (2 * COHORTS, 1), (4 * COHORTS, 3)] {
            assert_eq!(highest_shed_class(threshold), Some(class), "{threshold}");
        }
    }
}
