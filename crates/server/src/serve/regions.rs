//! The region of the server: shares that it follows, and warnings about rules.

use std::sync::Arc;

use tidegate_redis::fleet::{DemandSource, FleetControl, FollowingRegion, NoRuntime, RegionEvent};
use tidegate_rules::RuleSet;

use crate::engine::Engine;

/// Follows the record of the region, and logs what becomes of it.
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
            // Without rules that share limits there need be no record.
            _ if !is_wanted => {}
            RegionEvent::Missing => tracing::error!(
                region,
                "the region has no record of its shares: limits that regions share are at their floor; create it with `tidegate \
                 regions init`"
            ),
            RegionEvent::Lost => tracing::error!(
                region,
                "Redis has lost the record of the region's shares, or changes of it: limits that regions share are at their \
                 floor; see `tidegate regions`"
            ),
            RegionEvent::Foreign { region: found } => tracing::error!(
                region,
                found,
                "Redis has the record of another region: limits that regions share are at their floor; each region needs a \
                 Redis of its own"
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

/// Looks once whether Redis tells that it merges writes of several primaries, and warns of it.
pub(super) fn warn_of_merging_replication(control: FleetControl) {
    tokio::spawn(async move {
        // A Redis that is unavailable is reported by the store.
        if let Ok(Some(replication)) = control.merging_replication().await {
            tracing::error!("this Redis cannot keep limits: {replication}");
        }
    });
}

/// Warns of rules that share limits among regions of which this server is none.
pub(super) fn warn(rules: &RuleSet, region: Option<&str>) {
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
