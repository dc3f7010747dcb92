//! Shares of the server's region, for Prometheus and for the view.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_core::regions::{RegionShare, Share};
use tidegate_rules::{Limiter, RegionView};

use super::Metrics;
use super::page::{Labels, Page};
use crate::store::AnyStore;

/// The region of a server, from the server's perspective.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnRegion {
    /// Name of the region.
    pub region: String,
    /// Whether the server has confirmed the shares. If not, it applies the floor.
    pub confirmed: bool,
    /// Version of the record; `None` if no record was read.
    pub version: Option<u64>,
    /// The shares in the record.
    pub shares: Vec<OwnShare>,
    /// Transfers that the region has begun, and whose arrival it has not seen.
    pub outgoing: Vec<OutgoingShare>,
}

/// A region's share of the limits of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnShare {
    /// The rule; empty for all rules without shares of their own.
    pub rule: String,
    /// The share, such as `60%`.
    pub share: String,
    /// Minimum share.
    pub floor: String,
    /// Share that was given away and has not arrived.
    pub parked: String,
    /// Demand at this server, in requests per second, rounded.
    pub demand: u64,
}

/// A share in transfer to another region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutgoingShare {
    /// The number of the transfer among those between the two regions.
    #[serde(default)]
    pub number: u64,
    /// The region that receives it.
    pub to: String,
    /// The rule; empty for all rules without shares of their own.
    pub rule: String,
    /// The share, such as `10%`.
    pub share: String,
}

impl OwnRegion {
    /// The region of this limiter; `None` if it has none, or there are no records.
    pub(crate) fn of(metrics: &Metrics, limiter: &Limiter<AnyStore>) -> Option<OwnRegion> {
        let view = limiter.region()?;
        let (region, applied) = (view.region.as_deref()?.to_owned(), view.applied.as_ref()?);
        let demand = metrics.region_demand();
        let share = |(rule, of_region): (&str, &RegionShare)| OwnShare {
            rule: rule.to_owned(),
            share: of_region.share.to_string(),
            floor: of_region.floor.to_string(),
            parked: applied.parked(rule).to_string(),
            demand: rounded(demand.get(rule).copied().unwrap_or(0.0)),
        };
        let outgoing = applied.outgoing().iter().map(|transfer| OutgoingShare {
            number: transfer.number,
            to: transfer.to.clone(),
            rule: transfer.rule.clone(),
            share: transfer.amount.to_string(),
        });
        Some(OwnRegion {
            region,
            confirmed: applied.is_confirmed(),
            version: applied.version(),
            shares: applied.all().map(share).collect(),
            outgoing: outgoing.collect(),
        })
    }
}

/// Writes the region's shares from its record, and the demand at this server.
pub(super) fn write(view: &RegionView, demand: &BTreeMap<String, f64>, page: &mut Page) {
    let (Some(region), Some(applied)) = (view.region.as_deref(), &view.applied) else { return };
    let is_confirmed = u64::from(applied.is_confirmed());
    let help = "Whether the node has confirmed the shares of its region (1), or decides by the floor (0)";
    page.gauge("region_confirmed", help, &[(&[("region", region)], is_confirmed)]);
    let mut gauge = |name, help, value: &dyn Fn(&str, &RegionShare) -> f64| {
        let labels: Vec<_> = applied.all().map(|(rule, _)| [("region", region), ("rule", rule)]).collect();
        let values = applied.all().map(|(rule, of_region)| value(rule, of_region));
        let values: Vec<(Labels<'_>, f64)> = labels.iter().map(|labels| &labels[..]).zip(values).collect();
        page.gauge(name, help, &values);
    };
    let help = "Share of limits that the region owns, 1 for all";
    gauge("region_share_ratio", help, &|_, region| ratio(region.share));
    gauge("region_floor_ratio", "Minimum share of the region", &|_, region| ratio(region.floor));
    let help = "Share that the region has sent and that has not arrived yet, as far as it knows";
    gauge("region_parked_ratio", help, &|rule, _| ratio(applied.parked(rule)));
    let help = "Requests a second that limits of the region decide at this node, admitted or not, as an average";
    gauge("region_demand", help, &|rule, _| demand.get(rule).copied().unwrap_or(0.0));
}

fn ratio(share: Share) -> f64 {
    f64::from(share.parts_per_million()) / 1e6
}

/// Rounds to the nearest whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of floats saturates")]
fn rounded(number: f64) -> u64 {
    number.round() as u64
}
