//! Transfers: complete, interrupted after each step, and to unreachable regions.

use tidegate_core::Timestamp;
use tidegate_core::regions::{Offer, Share, Transfer};
use tidegate_redis::fleet::{Inheritance, RegionsControl, RegionsError, Resumption, TakenBack};
use tidegate_test_support::redis::Break;

use crate::regions::world::{Region, first_shares, first_shares_with, regions, regions_with, repair, sum};

fn percent(percent: u32) -> Share {
    Share::percent(percent)
}

fn arrived(resumed: &Resumption) -> bool {
    !resumed.outcomes.is_empty() && resumed.is_over()
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

/// A driver crashes after each step. Another driver continues, possibly more than once.
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
            assert!(driver.resume().await.is_over());
            assert_eq!((regions[0].share().await, regions[1].share().await), (percent(40), percent(60)));
        }
        // A driver that was stopped all the time.
        driver.deliver(&transfer).await.unwrap();
        driver.finish(&transfer).await.unwrap();
        assert_eq!((regions[1].share().await, sum(&regions).await), (percent(60), 100));
        assert!(regions[0].ledger().await.outgoing.is_empty());
    }
}

/// Either both directions are cut or only answers are lost: the share is parked, and arrives exactly once when the network
/// recovers.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: make nightly"]
async fn a_share_waits_for_a_region_that_cannot_be_reached() {
    for breaks in [Break::Refuse, Break::BlackHole, Break::BeforeRequest, Break::BeforeReply, Break::MidReply] {
        let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
        regions[1].proxy.set(breaks);
        let moved = driver.move_share("eu", "us", "", percent(20)).await.unwrap();
        assert!(moved.outcomes.len() == 1 && moved.outcomes[0].parked.is_some(), "{breaks:?}: {moved:?}");
        // The transfers that this region has begun are unknown.
        assert!(
            matches!(moved.problems.as_slice(), [RegionsError::Region { region, .. }] if region == "us"),
            "{moved:?}"
        );
        let ledger = regions[0].ledger().await;
        assert_eq!((ledger.shares[""].share, ledger.parked(""), sum(&regions).await), (percent(40), percent(20), 100));
        // Shares cannot be set while a share is parked.
        let targets = [("eu".to_owned(), percent(50)), ("us".to_owned(), percent(50))];
        assert!(driver.set("", &targets.into()).await.is_err());
        repair(&regions[1], &driver).await;
        assert!(arrived(&driver.resume().await), "{breaks:?}");
        assert_eq!((regions[1].share().await, sum(&regions).await), (percent(60), 100));
        assert_eq!(driver.resume().await, Resumption::default());
    }
}

/// The answer to each call of a transfer is lost once, in either region. No share is assigned twice.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: make nightly"]
async fn a_lost_answer_hands_out_nothing_twice() {
    for side in 0..2 {
        for breaks in [Break::BeforeRequest, Break::BeforeReply, Break::MidReply] {
            let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
            regions[side].proxy.once(breaks);
            let _ = driver.move_share("eu", "us", "", percent(10)).await;
            assert_eq!(sum(&regions).await, 100, "{breaks:?} at {side}");
            assert!(driver.resume().await.is_over());
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
        let _: Resumption = moved.await.unwrap().unwrap();
    }
    assert!(driver.resume().await.is_over());
    assert_eq!(
        (regions[0].share().await, regions[1].share().await, sum(&regions).await),
        (percent(60), percent(40), 100)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_that_is_down_leaves_its_shares_to_another() {
    let (mut regions, driver) = regions(&[("ap", 20), ("eu", 50), ("us", 30)]).await;
    regions[2].server.kill();
    // A share is in transit to it.
    driver.begin("ap", "us", "", percent(5)).await.unwrap();
    let retirement = driver.retire("us", None).await.unwrap();
    assert_eq!(retirement.inherited[""], Inheritance { heir: "eu".to_owned(), share: percent(35) });
    let (ap, eu) = (regions[0].ledger().await, regions[1].ledger().await);
    assert_eq!((ap.shares[""].share, eu.shares[""].share, ap.outgoing.len()), (percent(15), percent(85), 0));
    // Nothing is left to inherit.
    assert_eq!(driver.retire("us", None).await.unwrap().inherited[""].share, Share::NONE);
    assert_eq!(regions[1].share().await, percent(85));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_record_gets_what_the_others_leave() {
    let shares = [("eu", 60), ("us", 40)];
    let (regions, driver) = regions(&shares).await;
    assert!(arrived(&driver.move_share("eu", "us", "", percent(40)).await.unwrap()));
    let parked = driver.begin("eu", "us", "", percent(5)).await.unwrap();
    regions[0].server.run::<()>(&["FLUSHALL"]);
    let error = driver.move_share("eu", "us", "", percent(1)).await.unwrap_err();
    assert_eq!(error, RegionsError::NoRecord { region: "eu".to_owned() });
    assert_eq!(driver.init(&first_shares(&shares)).await.unwrap(), ["eu"]);
    assert_eq!((regions[0].share().await, regions[1].share().await), (percent(20), percent(80)));
    // The transfer of the lost record no longer arrives, because its share was reassigned.
    assert!(driver.deliver(&parked).await.is_err());
    assert_eq!(regions[1].share().await, percent(80));
    assert!(driver.init(&first_shares(&shares)).await.unwrap().is_empty());
    // The new record moves shares like the lost one, and is consistent with the others.
    let targets = [("eu".to_owned(), percent(20)), ("us".to_owned(), percent(80))];
    assert_eq!(driver.set("", &targets.into()).await, Ok(Resumption::default()));
    assert!(arrived(&driver.move_share("eu", "us", "", percent(10)).await.unwrap()));
    assert_eq!((regions[1].share().await, sum(&regions).await), (percent(90), 100));
    // So does the other region, to the new record.
    assert!(arrived(&driver.move_share("us", "eu", "", percent(30)).await.unwrap()));
    regions[0].server.run::<()>(&["FLUSHALL"]);
    assert_eq!(driver.init(&first_shares(&shares)).await.unwrap(), ["eu"]);
    assert!(arrived(&driver.move_share("us", "eu", "", percent(5)).await.unwrap()));
    assert_eq!((regions[0].share().await, sum(&regions).await), (percent(45), 100));
}

/// Shares that were moved stay, whatever the rules say by now, and so do transfers on their way.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_exist_are_not_created_again() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    assert!(arrived(&driver.move_share("eu", "us", "", percent(20)).await.unwrap()));
    let parked = driver.begin("us", "eu", "", percent(5)).await.unwrap();
    let before = [regions[0].ledger().await, regions[1].ledger().await];
    for again in [[("eu", 60), ("us", 40)], [("eu", 90), ("us", 10)]] {
        assert!(driver.init(&first_shares(&again)).await.unwrap().is_empty());
        assert_eq!([regions[0].ledger().await, regions[1].ledger().await], before);
    }
    driver.deliver(&parked).await.unwrap();
    assert_eq!((regions[0].share().await, regions[1].share().await), (percent(45), percent(55)));
}

/// Two commands replace a lost record at the same time. In either order, the other regions receive from the new record.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_record_is_replaced_by_two_at_once() {
    let shares = [("eu", 60), ("us", 40)];
    let (regions, driver) = regions(&shares).await;
    for _ in 0..10 {
        regions[0].server.run::<()>(&["FLUSHALL"]);
        let both = [driver.clone(), driver.clone()].map(|driver| {
            let shares = first_shares(&shares);
            tokio::spawn(async move { driver.init(&shares).await })
        });
        for done in both {
            done.await.unwrap().unwrap();
        }
        assert_eq!(sum(&regions).await, 100);
        let transfer = driver.begin("eu", "us", "", Share::POINT).await.unwrap();
        driver.deliver(&transfer).await.unwrap();
        driver.finish(&transfer).await.unwrap();
    }
}

/// A rule with fewer regions than there are. Its shares are set, retired and lost as others are, and a transfer that could not arrive
/// does not begin.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_may_have_regions_of_its_own() {
    let (mut regions, driver) = regions_with(&[("ap", 20, Some(10)), ("eu", 50, Some(80)), ("us", 30, None)]).await;
    let error = driver.move_share("eu", "us", "own", percent(10)).await.unwrap_err();
    assert_eq!(error.to_string(), "region `us`: the region has no share of the rule `own`");
    assert!(regions[1].ledger().await.outgoing.is_empty());
    let targets = [("ap".to_owned(), percent(40)), ("eu".to_owned(), percent(50))];
    assert!(arrived(&driver.set("own", &targets.into()).await.unwrap()));
    let shares = async |regions: &[Region]| {
        let [ap, eu] = [regions[0].ledger().await, regions[1].ledger().await];
        [ap, eu].map(|ledger| ledger.shares["own"].share)
    };
    assert_eq!(shares(&regions).await, [percent(40), percent(50)]);
    // A tenth of the rule is nobody's, and stays so.
    regions[1].server.run::<()>(&["FLUSHALL"]);
    let written = first_shares_with(&[("ap", 20, Some(10)), ("eu", 50, Some(80)), ("us", 30, None)]);
    assert_eq!(driver.init(&written).await.unwrap(), ["eu"]);
    assert_eq!(shares(&regions).await, [percent(40), percent(50)]);
    regions[1].server.kill();
    let retirement = driver.retire("eu", Some("us")).await.unwrap();
    assert_eq!(retirement.inherited["own"], Inheritance { heir: "ap".to_owned(), share: percent(50) });
    assert_eq!(retirement.inherited[""], Inheritance { heir: "us".to_owned(), share: percent(50) });
    assert_eq!(regions[0].ledger().await.shares["own"].share, percent(90));
}

/// A transfer that cannot arrive began while its receiver could not be asked. It holds back no other, and is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_that_cannot_arrive_is_taken_back() {
    let (regions, driver) = regions_with(&[("eu", 60, Some(90)), ("us", 40, None)]).await;
    regions[1].proxy.set(Break::Refuse);
    let poison = driver.begin("eu", "us", "own", percent(10)).await.unwrap();
    repair(&regions[1], &driver).await;
    let moved = driver.move_share("eu", "us", "", percent(20)).await.unwrap();
    let parked: Vec<Option<&str>> = moved.outcomes.iter().map(|outcome| outcome.parked.as_deref()).collect();
    assert_eq!(parked, [Some("region `us`: the region has no share of the rule `own`"), None]);
    assert_eq!(regions[1].share().await, percent(60));
    // Shares of other rules can be set meanwhile.
    let targets = [("eu".to_owned(), percent(50)), ("us".to_owned(), percent(50))];
    let set = driver.set("", &targets.into()).await.unwrap();
    assert_eq!((set.outcomes.len(), regions[1].share().await), (2, percent(50)));
    let taken_back = driver.cancel("eu", "us", poison.number, false).await.unwrap();
    assert_eq!(taken_back, TakenBack { transfer: poison.clone(), is_reserved: false });
    assert_eq!(regions[0].ledger().await.shares["own"].share, percent(90));
    assert_eq!(driver.resume().await, Resumption::default());
    assert!(driver.deliver(&poison).await.is_err());
    let gone = driver.cancel("eu", "us", poison.number, true).await.unwrap_err();
    assert_eq!(gone.to_string(), "region `eu` has no transfer 1 to `us` on its way");
}

/// Nobody has begun to deliver the share, so its region knows that it has not arrived, and no driver can deliver it any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_that_was_never_offered_is_taken_back_from_a_region_that_cannot_be_reached() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    regions[1].proxy.set(Break::Refuse);
    let moved = driver.move_share("eu", "us", "", percent(20)).await.unwrap();
    assert!(moved.outcomes[0].parked.is_some(), "{moved:?}");
    let parked = moved.outcomes[0].transfer.clone();
    let taken_back = driver.cancel("eu", "us", parked.number, false).await.unwrap();
    assert!(!taken_back.is_reserved, "{taken_back:?}");
    repair(&regions[1], &driver).await;
    // A driver that stood still.
    let error = driver.deliver(&parked).await.unwrap_err();
    assert_eq!(error.to_string(), "region `us`: the transfer is not offered now");
    assert_eq!((regions[0].share().await, regions[1].share().await), (percent(60), percent(40)));
    assert_eq!(driver.resume().await, Resumption::default());
}

/// A driver has begun to deliver the share, and it is not known whether it has. The share stays parked unless the operator knows that it has
/// not. Then it is reserved until the other region is told, and nothing is given out twice for longer, even if the operator was wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_taken_back_from_a_region_that_cannot_be_reached() {
    for had_arrived in [false, true] {
        let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
        let parked = driver.begin("eu", "us", "", percent(20)).await.unwrap();
        let offered = driver.offer(&parked).await.unwrap().unwrap();
        if had_arrived {
            driver.deliver_offered(&offered).await.unwrap();
            let error = driver.cancel("eu", "us", parked.number, true).await.unwrap_err();
            assert!(error.to_string().contains("has received transfer 1"), "{error}");
        }
        regions[1].proxy.set(Break::Refuse);
        let error = driver.cancel("eu", "us", parked.number, false).await.unwrap_err();
        assert!(matches!(&error, RegionsError::Region { region, .. } if region == "us"), "{error}");
        assert_eq!((regions[0].share().await, sum(&regions).await), (percent(40), 100));
        end_offers(&regions[0]).await;
        let error = driver.cancel("eu", "us", parked.number, false).await.unwrap_err();
        assert!(matches!(&error, RegionsError::Region { region, .. } if region == "us"), "{error}");
        assert!(driver.cancel("eu", "us", parked.number, true).await.unwrap().is_reserved);
        assert_eq!(regions[0].share().await, percent(60));
        // It is not given on, so that it can be given up.
        let error = driver.begin("eu", "us", "", percent(36)).await.unwrap_err();
        assert!(error.to_string().contains("the 20% that it has taken back"), "{error}");
        repair(&regions[1], &driver).await;
        if !had_arrived {
            late_delivery(&driver, &regions[1], &offered).await;
        }
        let resumed = driver.resume().await;
        if had_arrived {
            assert!(matches!(resumed.problems.as_slice(), [RegionsError::TakenBackAfterArrival { .. }]), "{resumed:?}");
        } else {
            assert_eq!(resumed, Resumption::default());
            assert!(driver.deliver(&parked).await.is_err());
        }
        assert_eq!(sum(&regions).await, 100, "{had_arrived}");
        assert!(driver.begin("eu", "us", "", Share::POINT).await.is_ok());
    }
}

/// A driver that stood still delivers a share after its offer is over, before the region is told that it was taken back.
async fn late_delivery(driver: &RegionsControl, to: &Region, offered: &Transfer) {
    let over = offered.offer.map(|offer| Offer { until: Timestamp::from_secs(1), ..offer });
    let error = driver.deliver_offered(&Transfer { offer: over, ..offered.clone() }).await.unwrap_err();
    assert_eq!(error.to_string(), "region `us`: the transfer is not offered now");
    assert_eq!(to.share().await, percent(40));
}

/// Lets the time of all offers of a region pass.
async fn end_offers(region: &Region) {
    let key = "tidegate:{#steering}:regions";
    let text: String = region.server.run(&["GET", key]);
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    for transfer in record["outgoing"].as_array_mut().unwrap() {
        assert!(transfer["offer"].is_array(), "{transfer}");
        transfer["offer"] = serde_json::json!([1, 1]);
    }
    region.server.run::<()>(&["SET", key, &record.to_string()]);
}

/// The region that receives has lost its record with what it had received. Its new one is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_is_taken_back_from_a_region_without_a_record() {
    let shares = [("eu", 60), ("us", 40)];
    let (regions, driver) = regions(&shares).await;
    let parked = driver.begin("eu", "us", "", percent(20)).await.unwrap();
    driver.offer(&parked).await.unwrap();
    regions[1].server.run::<()>(&["FLUSHALL"]);
    end_offers(&regions[0]).await;
    assert!(driver.cancel("eu", "us", parked.number, false).await.unwrap().is_reserved);
    assert_eq!(driver.init(&first_shares(&shares)).await.unwrap(), ["us"]);
    assert_eq!(driver.resume().await, Resumption::default());
    assert_eq!((regions[0].share().await, regions[1].share().await), (percent(60), percent(40)));
    assert!(driver.begin("eu", "us", "", percent(55)).await.is_ok(), "nothing is reserved any more");
}

/// A driver stops between the two steps of taking a share back. Another one continues.
#[tokio::test(flavor = "multi_thread")]
async fn taking_back_is_resumed() {
    let (regions, driver) = regions(&[("eu", 60), ("us", 40)]).await;
    let parked = driver.begin("eu", "us", "", percent(20)).await.unwrap();
    assert_eq!(driver.withdraw(&parked).await, Ok(true));
    assert_eq!((regions[0].share().await, sum(&regions).await), (percent(40), 100));
    let resumed = driver.resume().await;
    assert!(resumed.is_over() && resumed.outcomes[0].is_taken_back, "{resumed:?}");
    assert_eq!((regions[0].share().await, regions[1].share().await), (percent(60), percent(40)));
}
