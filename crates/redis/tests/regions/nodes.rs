//! Nodes: the shares that they apply, and their floor when they cannot confirm them.

use std::collections::BTreeMap;

use tidegate_core::Micros;
use tidegate_core::regions::Share;
use tidegate_redis::fleet::{DemandSource, RegionEvent, RegionRecord};
use tidegate_test_redis::{Break, eventually};

use crate::world::{Node, Region, control, first_shares, regions};

async fn applies(node: &Node, limit: &str) {
    eventually(limit, async || (node.limit() == limit).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_follow_a_transfer() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let nodes = ["eu", "us"].map(|name| Node::start(name, &regions[usize::from(name == "us")].control()));
    applies(&nodes[0], "60/s").await;
    applies(&nodes[1], "40/s").await;
    driver.begin("eu", "us", "", Share::percent(20)).await.unwrap();
    applies(&nodes[0], "40/s").await;
    driver.resume().await.unwrap();
    applies(&nodes[1], "60/s").await;
    // The burst had to settle: 5 seconds, and one in which it comes back.
    let RegionRecord { ledger, now } = regions[1].control().region_record().await.unwrap();
    let arrived = ledger.unwrap().shares[""].arrivals[0].at;
    assert!(now.since(arrived) >= Micros::from_secs(6), "{:?}", now.since(arrived));
}

/// All of the demand is in one region. Each round moves half of the gap.
#[tokio::test(flavor = "multi_thread")]
async fn shares_follow_the_demand_that_nodes_report() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let _nodes = [("eu", 0), ("us", 1_000)].map(|(name, each)| {
        let mut sum = 0;
        let requests = Box::new(move || {
            sum += each;
            BTreeMap::from([(String::new(), sum)])
        });
        let source = DemandSource { node: format!("{name}-1"), requests };
        Node::with_demand(name, &regions[usize::from(name == "us")].control(), source)
    });
    eventually("demand", async || {
        let demand = regions[1].control().region_demand().await.ok()?;
        (demand.get("").copied().unwrap_or(0.0) > 100.0).then_some(())
    })
    .await;
    let moved = driver.balance().await.unwrap();
    assert_eq!(moved.len(), 1);
    assert_eq!(regions[1].share().await, Share::percent(67));
    eventually("another move", async || (!driver.balance().await.unwrap().is_empty()).then_some(())).await;
    assert_eq!((regions[0].share().await, regions[1].share().await), (Share::percent(19), Share::percent(81)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_off_falls_back_to_the_floor() {
    for breaks in [Break::Refuse, Break::BlackHole, Break::BeforeReply] {
        let (regions, _) = regions(&[("eu", 60), ("us", 40)]).await;
        let node = Node::start("eu", &control(&regions[0].proxy.url()));
        applies(&node, "60/s").await;
        regions[0].proxy.set(breaks);
        applies(&node, "5/s").await;
        regions[0].proxy.set(Break::Nothing);
        applies(&node, "60/s").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_record_decides_by_the_floor() {
    let region = Region::start("eu").await;
    let node = Node::start("eu", &region.control());
    eventually("missing", async || node.has_told(&RegionEvent::Missing).then_some(())).await;
    assert_eq!(node.limit(), "5/s");
    let driver =
        tidegate_redis::fleet::RegionsControl::new([("eu".to_owned(), region.control())].into_iter().collect());
    driver.init(&first_shares(&[("eu", 60)])).await.unwrap();
    applies(&node, "60/s").await;
    region.server.run::<()>(&["FLUSHALL"]);
    applies(&node, "5/s").await;
    assert!(node.has_told(&RegionEvent::Lost));
    // A node of another region at the same Redis does not use the record.
    driver.init(&first_shares(&[("eu", 60)])).await.unwrap();
    let stranger = Node::start("us", &region.control());
    let foreign = RegionEvent::Foreign { region: "eu".to_owned() };
    eventually("foreign", async || stranger.has_told(&foreign).then_some(())).await;
    assert_eq!(stranger.limit(), "5/s");
}
