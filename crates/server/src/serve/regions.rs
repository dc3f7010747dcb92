//! Follows the shares of the server's region, and warns about unsuitable rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_redis::fleet::{DemandSource, FleetControl, FollowingRegion, NoRuntime, RegionEvent};
use tidegate_rules::yaml::closest;
use tidegate_rules::{Limiter, RuleSet};

use crate::engine::Engine;
use crate::store::AnyStore;

/// Follows the record of the region, and logs its events.
pub(super) fn follow(
    control: &FleetControl,
    node: &str,
    region: &str,
    engine: &Arc<Engine>,
) -> Result<FollowingRegion, NoRuntime> {
    let (region, limiter) = (region.to_owned(), engine.shared_limiter());
    let counted = Arc::clone(engine);
    let requests = move || counted.limiter().with_rules(|present| counted.metrics().demand(&present.rules));
    let demand = DemandSource { node: node.to_owned(), requests: Box::new(requests) };
    control.follow_region(engine.shared_limiter(), Some(demand), move |event| {
        let is_wanted = limiter.with_rules(|present| !present.rules.region_shares(&region).is_empty());
        match event {
            RegionEvent::Applied { version } => tracing::info!(region, version, "shares of the region are in force"),
            // A record is needed only if rules share limits.
            _ if !is_wanted => {}
            RegionEvent::Missing => tracing::error!(
                region,
                "the region has no record of its shares: limits that regions share admit nothing; create it with `tidegate regions \
                 init`"
            ),
            RegionEvent::Lost => tracing::error!(
                region,
                "Redis has lost the record of the region's shares, or changes of it: limits that regions share are at their \
                 floor; see `tidegate regions`"
            ),
            RegionEvent::Foreign { region: found } => tracing::error!(
                region,
                found,
                "Redis has the record of another region: limits that regions share are at their floor, or admit nothing if this \
                 server has never read its own; each region needs a Redis of its own"
            ),
            RegionEvent::Unconfirmed { reason } => tracing::warn!(
                region,
                reason,
                "the shares of the region cannot be confirmed: limits that regions share are at their floor"
            ),
            event => tracing::debug!(?event, "the region"),
        }
    })
}

/// Checks once whether Redis merges writes of several primaries, and logs an error if so.
pub(super) fn warn_of_merging_replication(control: FleetControl) {
    tokio::spawn(async move {
        // The store reports a Redis that is unavailable.
        if let Ok(Some(replication)) = control.merging_replication().await {
            tracing::error!("this Redis cannot keep limits: {replication}");
        }
    });
}

/// The problem with a region that no rule gives a share. `None` if one does, or if no limit is shared among regions.
pub(crate) fn unknown_region(rules: &RuleSet, region: &str) -> Option<String> {
    let known: BTreeSet<&str> =
        rules.each_regions().flat_map(|(_, regions)| regions.shares.keys().map(String::as_str)).collect();
    if known.is_empty() || known.contains(region) {
        return None;
    }
    let meant = closest(region, known.iter().copied()).map(|meant| format!(" Did you mean `{meant}`?"));
    let known: Vec<&str> = known.into_iter().collect();
    let known = known.join("`, `");
    Some(format!("there is no region `{region}` in the rules: they have `{known}`.{}", meant.unwrap_or_default()))
}

/// Warns of rules that share limits among regions of which this server is none.
pub(super) fn warn_of_missing_share(limiter: &Limiter<AnyStore>) {
    let region = limiter.region().and_then(|view| view.region.clone());
    limiter.with_rules(|present| warn(&present.rules, region.as_deref()));
}

fn warn(rules: &RuleSet, region: Option<&str>) {
    match region {
        None if rules.has_regions() => tracing::error!(
            "rules share limits among regions, and this server does not know its own: it applies the floor; set `region`"
        ),
        Some(region) => {
            let other = rules.each_regions().find(|(_, regions)| regions.of(region).is_none());
            if let Some((rule, regions)) = other {
                let known: Vec<&str> = regions.shares.keys().map(String::as_str).collect();
                tracing::error!(
                    region,
                    rule,
                    known = known.join(", "),
                    "this server's region has no share of limits: they admit nothing here"
                );
            }
        }
        None => {}
    }
}
