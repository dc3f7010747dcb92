//! Transfers: complete, interrupted after each step, and to regions that cannot be reached.

use tidegate_core::regions::Share;
use tidegate_redis::fleet::{RegionsError, TransferOutcome};
use tidegate_test_redis::Break;

use crate::world::{first_shares, regions, sum};

fn percent(percent: u32) -> Share {
    Share::percent(percent)
}

fn arrived(deliveries: &[TransferOutcome]) -> bool {
    !deliveries.is_empty() && deliveries.iter().all(|delivery| delivery.parked.is_none())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_moves_from_one_region_to_another() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    assert!(arrived(&driver.move_share("eu", "us", "", percent(20)).await.unwrap()));
    assert_eq!((regions[0].share().await, regions[1].share().await), (percent(40), percent(60)));
    assert!(regions[0].ledger().await.outgoing.is_empty());
    let error = driver.move_share("eu", "us", "", percent(36)).await.unwrap_err();
    assert_eq!(error.to_string(), "region `eu`: the region has 40%, and 36% less would be below its floor of 5%");
    let error = driver.move_share("eu", "mars", "", percent(1)).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no region `mars`: configured are eu, us");
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_of_three_regions_are_set() {
    let (regions, driver) = regions(&[("ap", 20), ("eu", 50), ("us", 30)]).await;
    let targets = [("ap", 40), ("eu", 25), ("us", 35)].map(|(name, share)| (name.to_owned(), percent(share)));
    assert!(arrived(&driver.set("", &targets.clone().into()).await.unwrap()));
    for (region, (_, share)) in regions.iter().zip(targets) {
        assert_eq!(region.share().await, share, "{}", region.name);
    }
    assert_eq!(sum(&regions).await, 100);
}

/// A driver crashes after each step. Another one continues, as often as it likes.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_any_two_steps_is_resumed() {
    for crash_after in 1..=3 {
        let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
        let transfer = driver.begin("eu", "us", "", percent(20)).await.unwrap();
        assert_eq!((regions[0].share().await, sum(&regions).await), (percent(40), 100));
        if crash_after > 1 {
            driver.deliver(&transfer).await.unwrap();
            assert_eq!(sum(&regions).await, 100);
        }
        if crash_after > 2 {
            driver.finish(&transfer).await.unwrap();
        }
        for _ in 0..2 {
            driver.resume().await.unwrap();
            assert_eq!((regions[0].share().await, regions[1].share().await), (percent(40), percent(60)));
        }
        // A driver that stood still all the time.
        driver.deliver(&transfer).await.unwrap();
        driver.finish(&transfer).await.unwrap();
        assert_eq!((regions[1].share().await, sum(&regions).await), (percent(60), 100));
        assert!(regions[0].ledger().await.outgoing.is_empty());
    }
}

/// Both directions are cut, or only the answers are lost: the share is parked, and arrives once when the way is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_waits_for_a_region_that_cannot_be_reached() {
    for breaks in [Break::Refuse, Break::BlackHole, Break::BeforeRequest, Break::BeforeReply, Break::MidReply] {
        let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
        regions[1].proxy.set(breaks);
        let deliveries = driver.move_share("eu", "us", "", percent(20)).await.unwrap();
        assert!(deliveries.len() == 1 && deliveries[0].parked.is_some(), "{breaks:?}: {deliveries:?}");
        let ledger = regions[0].ledger().await;
        assert_eq!((ledger.shares[""].share, ledger.parked(""), sum(&regions).await), (percent(40), percent(20), 100));
        // Shares cannot be set while one is parked.
        let targets = [("eu".to_owned(), percent(50)), ("us".to_owned(), percent(50))];
        assert!(driver.set("", &targets.into()).await.is_err());
        regions[1].proxy.set(Break::Nothing);
        assert!(arrived(&driver.resume().await.unwrap()), "{breaks:?}");
        assert_eq!((regions[1].share().await, sum(&regions).await), (percent(60), 100));
        assert!(driver.resume().await.unwrap().is_empty());
    }
}

/// The answer to each call of a transfer is lost once, to either region. Nothing is handed out twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_hands_out_nothing_twice() {
    for side in 0..2 {
        for breaks in [Break::BeforeRequest, Break::BeforeReply, Break::MidReply] {
            let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
            regions[side].proxy.once(breaks);
            let _ = driver.move_share("eu", "us", "", percent(10)).await;
            assert_eq!(sum(&regions).await, 100, "{breaks:?} at {side}");
            driver.resume().await.unwrap();
            let ledger = regions[0].ledger().await;
            assert_eq!((ledger.outgoing.len(), sum(&regions).await), (0, 100), "{breaks:?} at {side}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_at_the_same_time_move_what_each_was_told() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let moves = (0..8).map(|number| {
        let driver = driver.clone();
        let (from, to) = if number % 2 == 0 { ("eu", "us") } else { ("us", "eu") };
        tokio::spawn(async move { driver.move_share(from, to, "", Share::POINT).await })
    });
    for moved in moves.collect::<Vec<_>>() {
        moved.await.unwrap().unwrap();
    }
    driver.resume().await.unwrap();
    assert_eq!(
        (regions[0].share().await, regions[1].share().await, sum(&regions).await),
        (percent(60), percent(40), 100)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_is_down_leaves_its_shares_to_another() {
    let (mut regions, driver) = regions(&[("ap", 20), ("eu", 50), ("us", 30)]).await;
    regions[2].server.kill();
    // A share is on its way to it.
    driver.begin("ap", "us", "", percent(5)).await.unwrap();
    let retirement = driver.retire("us", None).await.unwrap();
    assert_eq!((retirement.heir.as_str(), retirement.inherited[""]), ("eu", percent(35)));
    let (ap, eu) = (regions[0].ledger().await, regions[1].ledger().await);
    assert_eq!((ap.shares[""].share, eu.shares[""].share, ap.outgoing.len()), (percent(15), percent(85), 0));
    // Nothing is left to inherit.
    assert_eq!(driver.retire("us", None).await.unwrap().inherited[""], Share::NONE);
    assert_eq!(regions[1].share().await, percent(85));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_record_gets_what_the_others_leave() {
    let shares = [("eu", 60), ("us", 40)];
    let (regions, driver) = regions(&shares).await;
    driver.move_share("eu", "us", "", percent(40)).await.unwrap();
    let parked = driver.begin("eu", "us", "", percent(5)).await.unwrap();
    regions[0].server.run::<()>(&["FLUSHALL"]);
    let error = driver.move_share("eu", "us", "", percent(1)).await.unwrap_err();
    assert_eq!(error, RegionsError::NoRecord { region: "eu".to_owned() });
    assert_eq!(driver.init(&first_shares(&shares)).await.unwrap(), ["eu"]);
    assert_eq!((regions[0].share().await, regions[1].share().await), (percent(20), percent(80)));
    // The transfer of the lost record does not arrive any more: its share was handed out.
    assert!(driver.deliver(&parked).await.is_err());
    assert_eq!(regions[1].share().await, percent(80));
    assert!(driver.init(&first_shares(&shares)).await.unwrap().is_empty());
    // The new record moves shares as the lost one did, and fits the others.
    let targets = [("eu".to_owned(), percent(20)), ("us".to_owned(), percent(80))];
    assert!(driver.set("", &targets.into()).await.unwrap().is_empty());
    assert!(arrived(&driver.move_share("eu", "us", "", percent(10)).await.unwrap()));
    assert_eq!((regions[1].share().await, sum(&regions).await), (percent(90), 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_went_back_in_time_is_told() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let before: String = regions[0].server.run(&["GET", "tidegate:{#steering}:regions"]);
    driver.move_share("eu", "us", "", percent(10)).await.unwrap();
    // A replica that did not know of the transfer has taken over.
    regions[0].server.run::<()>(&["SET", "tidegate:{#steering}:regions", &before]);
    let targets = [("eu".to_owned(), percent(50)), ("us".to_owned(), percent(50))];
    let error = driver.set("", &targets.into()).await.unwrap_err();
    assert_eq!(error, RegionsError::Behind { region: "eu".to_owned(), other: "us".to_owned() });
}
