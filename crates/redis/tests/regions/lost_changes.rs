//! Records that have lost changes: a replica that lagged has taken over.

use tidegate_core::regions::Share;
use tidegate_redis::fleet::{RegionEvent, RegionsError};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Break;

use crate::regions::world::{Node, Region, regions, repair};

const RECORD: &str = "tidegate:{#steering}:regions";

fn percent(percent: u32) -> Share {
    Share::percent(percent)
}

fn stored(region: &Region) -> String {
    region.server.run(&["GET", RECORD])
}

/// The record does not change, so nothing hides that it is behind, and a node that knows better keeps to its floor.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_went_back_in_time_is_told_and_left_as_it_is() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    // The second transfer is lost, and the first one not yet finished.
    driver.begin("eu", "us", "", percent(10)).await.unwrap();
    let before = stored(&regions[0]);
    let lost = driver.begin("eu", "us", "", percent(10)).await.unwrap();
    assert!(driver.resume().await.is_over());
    let node = Node::start("eu", &regions[0].control());
    eventually("the share", async || (node.limit() == "40/s").then_some(())).await;
    regions[0].server.run::<()>(&["SET", RECORD, &before]);
    eventually("lost", async || node.has_told(&RegionEvent::Lost).then_some(())).await;

    let behind = RegionsError::Behind { region: "eu".to_owned(), other: "us".to_owned() };
    let targets = [("eu".to_owned(), percent(50)), ("us".to_owned(), percent(50))];
    assert!(driver.set("", &targets.into()).await.unwrap_err().to_string().contains(&behind.to_string()));
    for amount in [5, 10] {
        assert_eq!(driver.move_share("eu", "us", "", percent(amount)).await.unwrap_err(), behind);
        assert_eq!(driver.move_share("us", "eu", "", percent(amount)).await.unwrap_err(), behind);
    }
    let resumed = driver.resume().await;
    assert_eq!(resumed.outcomes.len(), 1, "{resumed:?}");
    assert_eq!(resumed.outcomes[0].parked, Some(behind.to_string()));
    assert_eq!(driver.finish(&lost).await, Err(behind.clone()));
    assert_eq!(driver.deliver(&lost).await, Err(behind));
    assert_eq!((stored(&regions[0]), node.limit().as_str()), (before, "5/s"));
}

/// The region that would notice cannot be reached, so the record changes on. Nodes see that it lacks a transfer.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_keeps_to_its_floor_although_a_record_that_lacks_a_transfer_changes_on() {
    let (regions, driver) = regions(&[("ap", 20), ("eu", 50), ("us", 30)]).await;
    let before = stored(&regions[1]);
    assert!(driver.move_share("eu", "us", "", percent(10)).await.unwrap().is_over());
    let version = regions[1].ledger().await.version;
    let node = Node::start("eu", &regions[1].control());
    eventually("the share", async || (node.limit() == "40/s").then_some(())).await;
    regions[1].server.run::<()>(&["SET", RECORD, &before]);
    eventually("lost", async || node.has_told(&RegionEvent::Lost).then_some(())).await;
    regions[2].proxy.set(Break::Refuse);
    while regions[1].ledger().await.version <= version {
        driver.begin("eu", "ap", "", Share::POINT).await.unwrap();
    }
    // A node that starts now cannot know better, and shows that the record has been read since.
    let late = Node::start("eu", &regions[1].control());
    let applied = RegionEvent::Applied { version: regions[1].ledger().await.version };
    eventually("the present record", async || late.has_told(&applied).then_some(())).await;
    repair(&regions[2], &driver).await;
    let behind = RegionsError::Behind { region: "eu".to_owned(), other: "us".to_owned() };
    assert_eq!(driver.move_share("eu", "ap", "", Share::POINT).await, Err(behind));
    assert!(!node.has_told(&applied) && node.limit() == "5/s");
}
