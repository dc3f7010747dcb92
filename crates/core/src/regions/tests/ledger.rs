//! The record of a region, step by step.

use std::collections::BTreeMap;

use crate::regions::{
    ApplyError, BeginError, OFFER_LASTS, Offer, RegionShare, Share, ShareLedger, SharedWindow, TakeBackError, Transfer,
    TransferId, Undelivered,
};
use crate::time::{Micros, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn ledger(region: &str, percent: u32) -> ShareLedger {
    let share = RegionShare::new(Share::percent(percent), Share::percent(5));
    ShareLedger::new(region, BTreeMap::from([(String::new(), share)]), NOW)
}

/// The transfer, offered to its receiver.
fn offered(transfer: &Transfer) -> Transfer {
    Transfer { offer: Some(Offer::new(NOW, NOW)), ..transfer.clone() }
}

#[test]
fn a_transfer_moves_a_share_once() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let transfer = eu.begin("us", "", Share::percent(20), NOW).unwrap();
    assert_eq!((eu.shares[""].share, eu.parked(""), eu.version), (Share::percent(40), Share::percent(20), 2));
    assert_eq!(us.apply(&offered(&transfer), NOW), Ok(true));
    assert_eq!(us.apply(&offered(&transfer), NOW), Ok(false));
    assert_eq!((us.shares[""].share, us.version), (Share::percent(60), 2));
    assert!(eu.finish(&transfer) && !eu.finish(&transfer));
    assert_eq!((eu.parked(""), eu.version), (Share::NONE, 3));
    // A driver that stood still for long.
    assert_eq!(us.apply(&offered(&transfer), NOW), Ok(false));
}

#[test]
fn a_transfer_that_cannot_arrive_holds_back_no_other() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    eu.shares.insert("login".to_owned(), RegionShare::new(Share::percent(60), Share::percent(5)));
    let poison = eu.begin("us", "login", Share::percent(10), NOW).unwrap();
    let later = [1, 2].map(|percent| eu.begin("us", "", Share::percent(percent), NOW).unwrap());
    assert_eq!(us.apply(&offered(&poison), NOW), Err(ApplyError::UnknownRule { rule: "login".to_owned() }));
    assert_eq!([1, 0, 1].map(|place: usize| us.apply(&offered(&later[place]), NOW)), [Ok(true), Ok(true), Ok(false)]);
    assert_eq!((us.shares[""].share, us.has_received(&poison)), (Share::percent(43), false));
    // The rule gets a share there.
    us.shares.insert("login".to_owned(), RegionShare::new(Share::NONE, Share::NONE));
    assert_eq!((us.apply(&offered(&poison), NOW), us.apply(&offered(&poison), NOW)), (Ok(true), Ok(false)));
    assert!(us.has_received(&poison) && !eu.is_behind(&us));
}

#[test]
fn a_transfer_that_was_withdrawn_is_taken_back_and_never_arrives() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let [arrived, parked] = [10, 20].map(|percent| eu.begin("us", "", Share::percent(percent), NOW).unwrap());
    us.apply(&offered(&arrived), NOW).unwrap();
    let withdrawn = [&arrived, &parked, &parked].map(|transfer| us.withdraw(&TransferId::of(transfer)));
    assert_eq!(withdrawn, [Ok(false), Ok(true), Ok(true)]);
    assert_eq!(us.apply(&offered(&parked), NOW), Err(ApplyError::Withdrawn));
    let taken_back = [(); 2].map(|()| eu.take_back(&parked, Undelivered::Withdrawn, NOW));
    assert_eq!(taken_back, [Ok(true), Ok(false)]);
    assert_eq!(
        (eu.shares[""].share, eu.parked(""), us.shares[""].share),
        (Share::percent(50), Share::percent(10), Share::percent(50))
    );
    // It settles: nodes of the region have decided without it meanwhile.
    let limit: crate::Limit = "10/s burst 100".parse().unwrap();
    assert_eq!(eu.shares[""].settled("", &limit, NOW), Share::percent(30));
    assert!(eu.taken_back.is_empty());
}

/// An offer, and the instant at which it is over.
fn offer(ledger: &mut ShareLedger, transfer: &Transfer) -> (Transfer, Timestamp) {
    let offered = ledger.offer(transfer, NOW, NOW).unwrap();
    let over_at = offered.offer.unwrap().over_at;
    (offered, over_at)
}

#[test]
fn a_transfer_arrives_only_while_it_is_offered() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let transfer = eu.begin("us", "", Share::percent(20), NOW).unwrap();
    assert_eq!(us.apply(&transfer, NOW), Err(ApplyError::NotOffered));
    let (offered, over_at) = offer(&mut eu, &transfer);
    let last = NOW + OFFER_LASTS;
    assert_eq!(us.apply(&offered, last + Micros::new(1)), Err(ApplyError::NotOffered));
    assert!(over_at > last, "clocks drift");
    // A second driver offers it for longer, and the first one may use that.
    let later = NOW + Micros::from_secs(5);
    let longer = eu.offer(&transfer, later, later).unwrap();
    assert_eq!(eu.offer(&transfer, NOW, NOW), Some(longer.clone()), "an offer is not shortened");
    assert_eq!((us.apply(&longer, last + Micros::new(1)), us.apply(&longer, NOW + OVER)), (Ok(true), Ok(false)));
    assert!(eu.finish(&transfer));
    assert_eq!(eu.offer(&transfer, NOW, NOW), None);
}

/// Longer than any offer.
const OVER: Micros = Micros::from_secs(3_600);

#[test]
fn a_transfer_that_was_never_offered_is_taken_back_without_asking() {
    let (mut eu, us) = (ledger("eu", 60), ledger("us", 40));
    let transfer = eu.begin("us", "", Share::percent(20), NOW).unwrap();
    assert_eq!(us.receives(&transfer), Ok(true));
    assert_eq!(eu.take_back(&transfer, Undelivered::NeverOffered, NOW), Ok(true));
    assert_eq!((eu.shares[""].share, eu.reserved(""), eu.taken_back.len()), (Share::percent(60), Share::NONE, 1));
    assert_eq!(eu.offer(&transfer, NOW, NOW), None, "no driver can deliver it any more");
}

#[test]
fn a_transfer_that_was_offered_stays_parked_unless_somebody_knows_that_it_did_not_arrive() {
    let (mut eu, us) = (ledger("eu", 60), ledger("us", 40));
    let transfer = eu.begin("us", "", Share::percent(20), NOW).unwrap();
    let (_, over_at) = offer(&mut eu, &transfer);
    for now in [NOW, over_at + OVER] {
        let refused = eu.take_back(&transfer, Undelivered::NeverOffered, now);
        assert_eq!((refused, eu.parked("")), (Err(TakeBackError::MayHaveArrived), Share::percent(20)));
    }
    let early = over_at - Micros::new(1);
    let refused = eu.take_back(&transfer, Undelivered::Asserted, early);
    assert_eq!(refused, Err(TakeBackError::StillOffered { left: Micros::new(1) }));
    assert_eq!((eu.shares[""].share, us.shares[""].share), (Share::percent(40), Share::percent(40)));
    assert_eq!(eu.take_back(&transfer, Undelivered::Asserted, over_at), Ok(true));
}

#[test]
fn a_region_that_was_not_told_is_told_later() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let parked = eu.begin("us", "", Share::percent(20), NOW).unwrap();
    let (late, over_at) = offer(&mut eu, &parked);
    assert_eq!(eu.take_back(&parked, Undelivered::Asserted, over_at), Ok(true));
    assert!(eu.taken_back.iter().all(|taken_back| taken_back.is(&parked)));
    // A driver that stood still, before the region is told.
    assert_eq!(us.apply(&late, over_at), Err(ApplyError::NotOffered));
    let next = eu.begin("us", "", Share::percent(5), NOW).unwrap();
    assert_eq!((us.apply(&offered(&next), NOW), us.withdraw(&TransferId::of(&parked))), (Ok(true), Ok(true)));
    assert_eq!(us.apply(&offered(&parked), NOW), Err(ApplyError::Withdrawn));
    eu.acknowledge_take_back(&parked, false);
    eu.acknowledge_take_back(&parked, true);
    assert_eq!((eu.shares[""].share, us.shares[""].share), (Share::percent(55), Share::percent(45)));
    assert!(eu.taken_back.is_empty());
}

/// The operator was wrong. The share is not given on, so that all of it can be given up.
#[test]
fn a_share_that_had_arrived_after_all_is_reserved_and_given_up_again() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let transfer = eu.begin("us", "", Share::percent(50), NOW).unwrap();
    let (arrived, over_at) = offer(&mut eu, &transfer);
    us.apply(&arrived, NOW).unwrap();
    assert_eq!(eu.take_back(&arrived, Undelivered::Asserted, over_at), Ok(true));
    assert_eq!(eu.reserved(""), Share::percent(50));
    let refused = eu.begin("ap", "", Share::percent(6), NOW).unwrap_err();
    assert!(matches!(refused, BeginError::Reserved { .. }), "{refused}");
    eu.begin("ap", "", Share::percent(5), NOW).unwrap();
    assert_eq!(us.withdraw(&TransferId::of(&arrived)), Ok(false));
    eu.acknowledge_take_back(&arrived, true);
    assert_eq!((eu.shares[""].share, us.shares[""].share), (Share::percent(5), Share::percent(90)));
    assert_eq!(eu.shares[""].settled("", &"10/s burst 100".parse().unwrap(), NOW), Share::percent(5));
    assert_eq!(eu.reserved(""), Share::NONE);
}

/// A driver has delivered the share, and ends the transfer only after an operator has taken it back.
#[test]
fn a_driver_that_knows_better_proves_the_operator_wrong() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let transfer = eu.begin("us", "", Share::percent(20), NOW).unwrap();
    let (arrived, over_at) = offer(&mut eu, &transfer);
    us.apply(&arrived, NOW).unwrap();
    assert_eq!(eu.take_back(&transfer, Undelivered::Asserted, over_at), Ok(true));
    let before = eu.version;
    assert!(!eu.finish(&arrived) && eu.version > before);
    assert_eq!((eu.shares[""].share, eu.reserved("")), (Share::percent(40), Share::NONE));
}

#[test]
fn a_new_record_receives_what_was_outgoing_to_the_lost_one() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let [first, second, third] = [10, 11, 12].map(|percent| eu.begin("us", "", Share::percent(percent), NOW).unwrap());
    assert_eq!((us.apply(&offered(&second), NOW), eu.finish(&second)), (Ok(true), true));
    let mut new = ledger("us", 10);
    new.received.insert("eu".to_owned(), eu.sent_to("us").unwrap());
    // One driver has stood still since before the loss.
    assert_eq!(
        [&first, &second, &third].map(|transfer| new.apply(&offered(transfer), NOW)),
        [Ok(true), Ok(false), Ok(true)]
    );
    assert_eq!((new.shares[""].share, eu.is_behind(&new)), (Share::percent(32), false));
    assert_eq!(us.sent_to("eu"), None);
}

#[test]
fn a_share_taken_back_from_a_region_that_has_lost_its_record_is_not_given_up() {
    let mut eu = ledger("eu", 60);
    let transfer = eu.begin("us", "", Share::percent(20), NOW).unwrap();
    let (_, over_at) = offer(&mut eu, &transfer);
    assert_eq!(eu.take_back(&transfer, Undelivered::Asserted, over_at), Ok(true));
    let mut new = ledger("us", 40);
    new.received.insert("eu".to_owned(), eu.sent_to("us").unwrap());
    assert_eq!(new.withdraw(&TransferId::of(&transfer)), Ok(true));
    eu.acknowledge_take_back(&transfer, false);
    assert_eq!((eu.shares[""].share, new.apply(&offered(&transfer), NOW).is_err()), (Share::percent(60), true));
}

#[test]
fn shares_do_not_sink_below_the_floor() {
    let mut eu = ledger("eu", 60);
    let error = eu.begin("us", "", Share::percent(56), NOW).unwrap_err();
    assert_eq!(error.to_string(), "the region has 60%, and 56% less would be below its floor of 5%");
    assert!(eu.begin("us", "", Share::percent(55), NOW).is_ok());
    assert_eq!(eu.begin("us", "", Share::NONE, NOW), Err(BeginError::Nothing));
    assert_eq!(eu.begin("eu", "", Share::POINT, NOW), Err(BeginError::Nothing));
    assert!(matches!(eu.begin("us", "login", Share::POINT, NOW), Err(BeginError::UnknownRule { .. })));
}

#[test]
fn rights_move_with_a_share_that_counts_in_the_running_window() {
    let windows = [SharedWindow { id: "quota".to_owned(), limit: "fixed 100/min".parse().unwrap() }];
    let tokens = |transfer: Transfer| -> Vec<(u64, u64)> {
        transfer.slices.iter().map(|slice| (slice.before, slice.after)).collect()
    };
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let transfer = eu.begin_with("us", "", Share::percent(20), &windows, NOW).unwrap();
    us.apply(&offered(&transfer), NOW).unwrap();
    assert_eq!(tokens(transfer), [(60, 40)]);
    // Some of the share has arrived in this window, without rights. In the next one all of it counts.
    let next = NOW + Micros::from_secs(60);
    for (now, moved) in [(NOW, vec![]), (next, vec![(60, 30)])] {
        let begun = us.clone().begin_with("eu", "", Share::percent(30), &windows, now).unwrap();
        assert_eq!(tokens(begun), moved);
    }
}

#[test]
fn a_transfer_of_a_lost_record_is_not_received_after_one_of_the_new_record() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let lost = eu.begin("us", "", Share::percent(10), NOW).unwrap();
    let mut new = ShareLedger { born: Timestamp::from_secs(2_000_000), ..ledger("eu", 10) };
    let transfer = new.begin("us", "", Share::percent(1), NOW).unwrap();
    assert_eq!(us.apply(&offered(&transfer), NOW), Ok(true));
    assert_eq!(us.apply(&offered(&lost), NOW), Err(ApplyError::Outdated));
}

#[test]
fn a_record_that_forgot_a_transfer_is_behind() {
    let (mut eu, mut us) = (ledger("eu", 60), ledger("us", 40));
    let before = eu.clone();
    let transfer = eu.begin("us", "", Share::percent(10), NOW).unwrap();
    us.apply(&offered(&transfer), NOW).unwrap();
    assert!(before.is_behind(&us) && !eu.is_behind(&us) && !us.is_behind(&eu));
    let new = ShareLedger { born: Timestamp::from_secs(2_000_000), ..before };
    assert!(new.is_behind(&us));
}
