//! Regions for tests: a server, a proxy before it, and nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_core::MemoryStore;
use tidegate_core::regions::{RegionShare, Share, ShareLedger};
use tidegate_redis::fleet::{DemandSource, FleetControl, FollowingRegion, RegionEvent, RegionsControl};
use tidegate_redis::link::Settings;
use tidegate_rules::{Limiter, Request, RuleOutcome, RuleSet};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Proxy, Server};

/// A region: its own Redis, and a proxy through which other regions reach it.
pub(crate) struct Region {
    pub(crate) name: String,
    pub(crate) server: Server,
    pub(crate) proxy: Proxy,
}

impl Region {
    pub(crate) async fn start(name: &str) -> Region {
        let server = Server::start();
        let proxy = Proxy::start(server.port()).await;
        Region { name: name.to_owned(), server, proxy }
    }

    /// The connection of the region's nodes to their Redis.
    pub(crate) fn control(&self) -> FleetControl {
        control(&self.server.url())
    }

    pub(crate) async fn ledger(&self) -> ShareLedger {
        self.control().region_record().await.unwrap().ledger.unwrap()
    }

    pub(crate) async fn share(&self) -> Share {
        self.ledger().await.shares[""].share
    }
}

pub(crate) fn control(url: &str) -> FleetControl {
    let mut settings = Settings::standalone(url).unwrap();
    settings.connect_timeout = Duration::from_secs(2);
    FleetControl::new(&settings)
        .unwrap()
        .with_timeout(Duration::from_secs(2))
        .with_poll_interval(Duration::from_millis(200))
}

/// Regions with these shares, and a driver's connection to them.
pub(crate) async fn regions(shares: &[(&str, u32)]) -> (Vec<Region>, RegionsControl) {
    let shares: Vec<_> = shares.iter().map(|(name, percent)| (*name, *percent, None)).collect();
    regions_with(&shares).await
}

/// The same, some of them with a share of the rule `own`.
pub(crate) async fn regions_with(shares: &[(&str, u32, Option<u32>)]) -> (Vec<Region>, RegionsControl) {
    let mut regions = Vec::new();
    for (name, _, _) in shares {
        regions.push(Region::start(name).await);
    }
    let driver =
        RegionsControl::new(regions.iter().map(|region| (region.name.clone(), control(&region.proxy.url()))).collect());
    driver.init(&first_shares_with(shares)).await.unwrap();
    (regions, driver)
}

/// Shares of all rules, by region.
type FirstShares = BTreeMap<String, BTreeMap<String, RegionShare>>;

pub(crate) fn first_shares(shares: &[(&str, u32)]) -> FirstShares {
    let shares: Vec<_> = shares.iter().map(|(name, percent)| (*name, *percent, None)).collect();
    first_shares_with(&shares)
}

pub(crate) fn first_shares_with(shares: &[(&str, u32, Option<u32>)]) -> FirstShares {
    let share = |percent| RegionShare::new(Share::percent(percent), Share::percent(5));
    let of_region = |(name, all, own): &(&str, u32, Option<u32>)| {
        let own = own.map(|percent| ("own".to_owned(), share(percent)));
        let all = (String::new(), share(*all));
        ((*name).to_owned(), own.into_iter().chain([all]).collect())
    };
    shares.iter().map(of_region).collect()
}

/// Mends the network to a region, and waits until the driver reaches all regions.
pub(crate) async fn repair(region: &Region, driver: &RegionsControl) {
    region.proxy.set(Break::Nothing);
    eventually("all regions", async || driver.records().await.values().all(Result::is_ok).then_some(())).await;
}

/// The sum of all shares, including those in transit, in percent.
pub(crate) async fn sum(regions: &[Region]) -> u32 {
    let mut ledgers = Vec::new();
    for region in regions {
        ledgers.push(region.ledger().await);
    }
    let mut parts = 0;
    for ledger in &ledgers {
        parts += ledger.shares[""].share.parts_per_million();
        for transfer in &ledger.outgoing {
            let to = ledgers.iter().find(|to| to.region == transfer.to).unwrap();
            if transfer.rule.is_empty() && !to.has_received(transfer) {
                parts += transfer.amount.parts_per_million();
            }
        }
    }
    parts / 10_000
}

/// A node that follows the record of its region, with state in memory.
pub(crate) struct Node {
    pub(crate) limiter: Arc<Limiter<MemoryStore>>,
    events: Arc<Mutex<Vec<RegionEvent>>>,
    _following: FollowingRegion,
}

pub(crate) const RULES: &str = "{ regions: { eu: 60%, us: 40% }, rules: [{ id: api, limit: 100/s burst 100 }] }";

impl Node {
    pub(crate) fn start(region: &str, control: &FleetControl) -> Node {
        Node::following(RULES, region, control, None)
    }

    pub(crate) fn with_rules(rules: &str, region: &str, control: &FleetControl) -> Node {
        Node::following(rules, region, control, None)
    }

    pub(crate) fn with_demand(region: &str, control: &FleetControl, demand: DemandSource) -> Node {
        Node::following(RULES, region, control, Some(demand))
    }

    fn following(rules: &str, region: &str, control: &FleetControl, demand: Option<DemandSource>) -> Node {
        let rules = RuleSet::parse("rules.yaml", rules).unwrap().rules;
        let limiter = Arc::new(Limiter::new(rules, MemoryStore::new()).in_region(Some(region)));
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        let following =
            control.follow_region(Arc::clone(&limiter), demand, move |event| told.lock().unwrap().push(event)).unwrap();
        Node { limiter, events, _following: following }
    }

    /// The limit that the node applies.
    pub(crate) fn limit(&self) -> String {
        let explained = self.limiter.rules().rules.explain(&Request::new("GET", "/"));
        match &explained.rules[0].outcome {
            RuleOutcome::Matched(charged) => charged.limits[0].limit.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Whether the node admits a request now.
    pub(crate) fn admits(&self) -> bool {
        self.limiter.check_now(&Request::new("GET", "/")).is_allowed()
    }

    /// Whether the node has told that it could not read the record.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        let is_it = |event: &RegionEvent| matches!(event, RegionEvent::Unconfirmed { .. });
        self.events.lock().unwrap().iter().any(is_it)
    }

    pub(crate) fn has_told(&self, event: &RegionEvent) -> bool {
        self.events.lock().unwrap().contains(event)
    }
}
