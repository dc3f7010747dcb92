//! Nodes: the shares that they apply, and their floor when they cannot confirm them.

use std::collections::BTreeMap;

use tidegate_core::Micros;
use tidegate_core::regions::{CONFIRMED_AFTER, Share};
use tidegate_redis::fleet::{DemandSource, RegionEvent, RegionRecord, RegionsControl};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Break;

use crate::regions::world::{Node, Region, control, first_shares, regions, regions_with, sum};

async fn applies(node: &Node, limit: &str) {
    eventually(limit, async || (node.limit() == limit).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_follow_a_transfer() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let nodes = ["eu", "us"].map(|name| Node::start(name, &regions[usize::from(name == "us")].control()));
    applies(&nodes[0], "60/s").await;
    applies(&nodes[1], "40/s").await;
    let begun = driver.begin("eu", "us", "", Share::percent(20)).await.unwrap().begun;
    applies(&nodes[0], "40/s").await;
    assert!(driver.resume().await.is_over());
    applies(&nodes[1], "60/s").await;
    // The burst had to settle: 5 seconds, plus one in which it recovers.
    let RegionRecord { ledger, now } = regions[1].control().region_record().await.unwrap();
    let arrived = ledger.unwrap().shares[""].arrivals[0].at;
    assert!(now.since(arrived) >= Micros::from_secs(6), "{:?}", now.since(arrived));
    // The nodes of the other region had confirmed the smaller share, or fallen back to the floor.
    assert!(arrived.since(begun) >= CONFIRMED_AFTER, "{:?}", arrived.since(begun));
}

/// One region has all of the demand. Each round moves half of the gap.
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
    let share = |text: &str| text.parse::<Share>().unwrap();
    assert_eq!(driver.balance().await.resumed.outcomes.len(), 1);
    assert_eq!(regions[1].share().await, share("67.5%"));
    for [eu, us] in [["18.75%", "81.25%"], ["5%", "95%"]] {
        eventually("another move", async || (!driver.balance().await.resumed.outcomes.is_empty()).then_some(())).await;
        assert_eq!((regions[0].share().await, regions[1].share().await), (share(eu), share(us)));
    }
}

/// Shares follow demand between the regions that answer, although a share is parked and its rule has a transfer that cannot arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_cannot_be_reached_does_not_stop_the_others() {
    let shares = [("ap", 20, None), ("eu", 50, Some(50)), ("us", 30, Some(50))];
    let (regions, driver) = regions_with(&shares).await;
    let source = |name: &str, each: u64| {
        let mut sum = 0;
        let requests = Box::new(move || {
            sum += each;
            BTreeMap::from(["", "own"].map(|rule| (rule.to_owned(), sum)))
        });
        DemandSource { node: format!("{name}-1"), requests }
    };
    let _nodes = [(1, "eu", 0), (2, "us", 1_000)]
        .map(|(place, name, each)| Node::with_demand(name, &regions[place].control(), source(name, each)));
    regions[0].proxy.set(Break::Refuse);
    driver.begin("eu", "ap", "own", Share::POINT).await.unwrap();
    driver.begin("eu", "ap", "", Share::POINT).await.unwrap();
    eventually("another move", async || {
        let step = driver.balance().await;
        assert_eq!(step.resumed.problems.len(), 1, "{step:?}");
        let moved = step.resumed.outcomes.iter().filter(|outcome| outcome.is_over()).count();
        assert!(step.resumed.outcomes.len() == moved && step.settling.is_empty(), "{step:?}");
        (moved == 2).then_some(())
    })
    .await;
    // Of 79%, with floors of 5%.
    assert_eq!((regions[1].share().await, regions[2].share().await), ("27%".parse().unwrap(), "52%".parse().unwrap()));
}

/// A share of a limit that takes an hour to settle is not followed by another one.
#[tokio::test(flavor = "multi_thread")]
async fn shares_do_not_run_ahead_of_those_that_settle() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let limits = BTreeMap::from([(String::new(), vec![("api".to_owned(), "1000/h".parse().unwrap())])]);
    let driver = driver.with_limits(limits);
    let mut sum = 0;
    let requests = Box::new(move || {
        sum += 1_000;
        BTreeMap::from([(String::new(), sum)])
    });
    let source = DemandSource { node: "us-1".to_owned(), requests };
    let _node = Node::with_demand("us", &regions[1].control(), source);
    eventually("a move", async || (!driver.balance().await.resumed.outcomes.is_empty()).then_some(())).await;
    eventually("a rule that waits", async || {
        let step = driver.balance().await;
        assert!(step.resumed.is_over() && step.resumed.outcomes.is_empty(), "{step:?}");
        (step.settling == [""]).then_some(())
    })
    .await;
    assert_eq!(regions[0].share().await, "32.5%".parse().unwrap());
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
async fn a_node_without_a_record_owns_nothing_and_one_that_has_lost_it_decides_by_the_floor() {
    let region = Region::start("eu").await;
    let node = Node::start("eu", &region.control());
    eventually("missing", async || node.has_told(&RegionEvent::Missing).then_some(())).await;
    assert!(!node.admits());
    let driver = RegionsControl::new([("eu".to_owned(), region.control())].into_iter().collect());
    driver.init(&first_shares(&[("eu", 60)])).await.unwrap();
    applies(&node, "60/s").await;
    region.server.run::<()>(&["FLUSHALL"]);
    applies(&node, "5/s").await;
    assert!(node.has_told(&RegionEvent::Lost));
    // A node of another region with the same Redis does not use the record.
    driver.init(&first_shares(&[("eu", 60)])).await.unwrap();
    let stranger = Node::start("us", &region.control());
    let foreign = RegionEvent::Foreign { region: "eu".to_owned() };
    eventually("foreign", async || stranger.has_told(&foreign).then_some(())).await;
    assert!(!stranger.admits());
}

/// A node that cannot read its Redis does not know whether its region has a record.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_without_its_redis_decides_by_the_floor() {
    let (regions, _) = regions(&[("eu", 60), ("us", 40)]).await;
    regions[0].proxy.set(Break::Refuse);
    let node = Node::start("eu", &control(&regions[0].proxy.url()));
    eventually("unconfirmed", async || node.is_unconfirmed().then_some(())).await;
    assert_eq!(node.limit(), "5/s");
    regions[0].proxy.set(Break::Nothing);
    applies(&node, "60/s").await;
}

/// Servers of a region that the rules have added start before it has a share. The others own the whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_was_added_owns_nothing_before_a_share_is_moved_to_it() {
    const ADDED: &str = "{ regions: { eu: 50%, us: 40%, ap: 10% }, rules: [{ id: api, limit: 100/s burst 100 }] }";
    let (mut regions, _) = regions(&[("eu", 60), ("us", 40)]).await;
    regions.push(Region::start("ap").await);
    let nodes: Vec<Node> =
        regions.iter().map(|region| Node::with_rules(ADDED, &region.name, &region.control())).collect();
    eventually("missing", async || nodes[2].has_told(&RegionEvent::Missing).then_some(())).await;
    applies(&nodes[0], "60/s").await;
    applies(&nodes[1], "40/s").await;
    assert!(!nodes[2].admits());
    let driver = RegionsControl::new(regions.iter().map(|region| (region.name.clone(), region.control())).collect());
    assert_eq!(driver.init(&first_shares(&[("eu", 50), ("us", 40), ("ap", 10)])).await.unwrap(), ["ap"]);
    eventually("the record", async || nodes[2].has_told(&RegionEvent::Applied { version: 1 }).then_some(())).await;
    assert!(!nodes[2].admits() && sum(&regions).await == 100);
    assert!(driver.move_share("eu", "ap", "", Share::percent(10)).await.unwrap().is_over());
    applies(&nodes[2], "10/s").await;
    assert_eq!(sum(&regions).await, 100);
}
