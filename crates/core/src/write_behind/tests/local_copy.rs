//! The copy of a key at one node.

use crate::decision::Decision;
use crate::limit::{Algorithm, Limit};
use crate::time::{Micros, Timestamp};
use crate::write_behind::{LocalAnswer, LocalCopy};

fn admitted(copy: &mut LocalCopy, most: u64, now: Timestamp) -> u64 {
    (0..10_000).take_while(|_| matches!(copy.decide(1, most, now), LocalAnswer::Admitted(..))).count() as u64
}

#[test]
fn a_node_without_answers_stops_at_its_allowance() {
    let now = Timestamp::from_secs(1_000);
    let mut copy = LocalCopy::new("10/s burst 1000".parse().unwrap());
    let mut total = admitted(&mut copy, 10, now);
    for second in 1..100 {
        let now = now + Micros::from_secs(second);
        copy.begin_report();
        if second % 2 == 0 {
            copy.answer_lost(now);
        } else {
            copy.not_sent();
        }
        total += admitted(&mut copy, 10, now);
    }
    assert_eq!(total, 10);
    // The lost costs have recovered after 100 s.
    assert_eq!(admitted(&mut copy, 10, now + Micros::from_secs(200)), 10);
}

#[test]
fn a_denial_says_how_long_to_wait() {
    let now = Timestamp::from_secs(1_000);
    let limit: Limit = "10/s burst 20".parse().unwrap();
    let mut copy = LocalCopy::new(limit);
    copy.begin_report();
    let empty = Decision { limit: 20, remaining: 0, reset_after: Micros::from_secs(2), ..Decision::NONE };
    copy.answered(&empty, now);
    let LocalAnswer::Denied(denied) = copy.decide(1, 5, now) else { panic!("it was empty") };
    let wait = denied.retry_after().unwrap();
    assert!(Micros::from_millis(100) <= wait && wait < Micros::from_millis(103), "{wait}");
    assert!(matches!(copy.decide(1, 5, now + wait), LocalAnswer::Admitted(..)));
    assert!(matches!(
        copy.decide(21, 100, now),
        LocalAnswer::Denied(Decision { outcome: crate::Outcome::TooLarge { max: 20 }, .. })
    ));
}

#[test]
fn a_window_begins_anew_at_its_end() {
    let now = Timestamp::from_secs(1_000);
    let mut copy = LocalCopy::new("fixed 10/min".parse().unwrap());
    copy.begin_report();
    copy.answered(&Decision { limit: 10, remaining: 2, reset_after: Micros::from_secs(30), ..Decision::NONE }, now);
    assert_eq!(admitted(&mut copy, 5, now), 2);
    assert!(matches!(copy.decide(1, 5, now + Micros::from_secs(29)), LocalAnswer::Denied(_)));
    copy.begin_report();
    copy.answered(&Decision { limit: 10, remaining: 0, reset_after: Micros::from_secs(30), ..Decision::NONE }, now);
    assert_eq!(admitted(&mut copy, 5, now + Micros::from_secs(31)), 5);
}

#[test]
fn a_changed_limit_is_decided_by_the_store_until_it_has_answered() {
    let now = Timestamp::from_secs(1_000);
    let mut copy = LocalCopy::new(Limit::per_second(100));
    assert_eq!(admitted(&mut copy, 3, now), 3);
    copy.change_limit(Limit::per_second(50));
    assert_eq!(copy.decide(1, 10, now), LocalAnswer::Ask);
    assert_eq!(copy.begin_report(), Some(3));
    copy.answered(&Decision { limit: 50, remaining: 47, reset_after: Micros::from_millis(60), ..Decision::NONE }, now);
    assert_eq!(admitted(&mut copy, 10, now), 10);
}

#[test]
fn an_answer_under_the_limit_before_leaves_the_key_unknown() {
    let now = Timestamp::from_secs(1_000);
    let (large, small): (Limit, Limit) = ("1000/s burst 1000".parse().unwrap(), "1/s burst 100".parse().unwrap());
    let mut copy = LocalCopy::new(large);
    assert_eq!(admitted(&mut copy, 3, now), 3);
    copy.begin_report();
    copy.change_limit(small);
    // Half of the large burst is spent, which is back in half a second. The small one is used up for minutes.
    let half = Decision { limit: 1_000, remaining: 500, reset_after: Micros::from_millis(500), ..Decision::NONE };
    copy.answered(&half, now);
    assert_eq!((copy.decide(1, 10, now + Micros::from_secs(1)), copy.unreported()), (LocalAnswer::Ask, 0));
    assert!(copy.is_unknown());
    copy.begin_report();
    copy.answered(&Decision { limit: 100, remaining: 0, reset_after: Micros::from_secs(100), ..Decision::NONE }, now);
    assert!(matches!(copy.decide(1, 10, now), LocalAnswer::Denied(_)));
    // A report that was not sent, or lost, is about neither limit.
    copy.begin_report();
    copy.change_limit(large);
    copy.not_sent();
    copy.begin_report();
    copy.answered(&Decision { limit: 1_000, remaining: 1_000, ..Decision::NONE }, now);
    assert_eq!(admitted(&mut copy, 2_000, now), 1_000);
}

#[test]
fn a_copy_is_blank_only_if_nothing_is_forgotten_with_it() {
    let now = Timestamp::from_secs(1_000);
    let mut copy = LocalCopy::new("10/s burst 20".parse().unwrap());
    assert!(copy.is_blank(now));
    admitted(&mut copy, 5, now);
    assert!(!copy.is_blank(now));
    copy.begin_report();
    assert!(!copy.is_blank(now));
    copy.answered(&Decision { limit: 20, remaining: 15, reset_after: Micros::from_millis(500), ..Decision::NONE }, now);
    assert!(!copy.is_blank(now) && copy.is_blank(now + Micros::from_secs(1)));
    assert!(matches!(copy.limit().algorithm(), Algorithm::TokenBucket(_)));
}
