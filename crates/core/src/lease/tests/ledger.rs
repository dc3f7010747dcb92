//! Examples for the ledger.

use super::super::{EPOCH, LeaseGeneration, Ledger, Renewal};
use crate::limit::{Limit, State};
use crate::time::{Micros, Timestamp};
use crate::{Decision, Outcome};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

fn wanting(tokens: u64) -> Renewal {
    Renewal { wanted: tokens, least: tokens, ..Renewal::default() }
}

fn outstanding(state: &State) -> u64 {
    match state {
        State::Leased(ledger) => ledger.outstanding(),
        _ => 0,
    }
}

fn remaining(limit: &Limit, state: &State, now: Timestamp) -> u64 {
    limit.evaluate(state, 0, now).remaining
}

#[test]
fn twenty_nodes_that_wait_and_then_spend_their_leases_get_no_second_burst() {
    let limit = limit("10000/s burst 10000");
    let mut state = limit.fresh();
    let granted: u64 = (0..20).map(|_| limit.lease(&mut state, &wanting(250), START).tokens).sum();
    assert_eq!((granted, outstanding(&state)), (5_000, 5_000));
    assert_eq!(remaining(&limit, &state, START), 5_000);
    let later = START + Micros::from_millis(1_500);
    assert_eq!(remaining(&limit, &state, later), 5_000, "leased tokens do not drain");
    assert!(limit.decide(&mut state, 5_000, later).is_allowed());
    assert!(!limit.decide(&mut state, 1, later).is_allowed());
}

#[test]
fn half_of_a_limit_at_most_is_outstanding() {
    let limit = limit("20/s burst 20");
    let mut state = limit.fresh();
    let granted: Vec<u64> = (0..40).map(|_| limit.lease(&mut state, &wanting(1), START).tokens).collect();
    assert_eq!(granted.iter().sum::<u64>(), 10);
    assert!(limit.decide(&mut state, 10, START).is_allowed());
}

#[test]
fn a_lease_that_is_not_reported_counts_as_spent_when_it_ends() {
    for text in ["10/s burst 100", "gcra 10/s burst 100", "meter 10/s burst 100"] {
        let limit = limit(text);
        let mut state = limit.fresh();
        let grant = limit.lease(&mut state, &wanting(40), START);
        assert_eq!((grant.tokens, grant.ends_after), (40, Micros::from_secs(4)));
        let end = START + grant.ends_after;
        assert_eq!(remaining(&limit, &state, end - Micros::new(1)), 60);
        assert_eq!(remaining(&limit, &state, end + Micros::from_secs(1)), 70);
        assert!(limit.is_recovered(&state, end + Micros::from_secs(4)));
        assert!(!limit.is_recovered(&state, end + Micros::from_secs(4) - Micros::new(1)));
        assert!(limit.decide(&mut state, 1, end + Micros::from_secs(8)).is_allowed());
        assert!(!matches!(state, State::Leased(_)), "{text}: an ordinary state again");
    }
}

#[test]
fn returned_tokens_are_available_at_once() {
    for text in ["10/s burst 100", "gcra 10/s burst 100", "fixed 100/min", "sliding 100/min", "sliding 100/min parts 6"]
    {
        let limit = limit(text);
        let mut state = limit.fresh();
        let grant = limit.lease(&mut state, &wanting(40), START);
        assert_eq!(grant.tokens, 40, "{text}");
        let returned = Renewal { generation: Some(grant.generation), used: 10, returned: 30, ..Renewal::default() };
        let answer = limit.lease(&mut state, &returned, START);
        assert_eq!((answer.outstanding, answer.decision.remaining), (0, 90), "{text}");
    }
}

#[test]
fn a_lease_of_a_window_ends_with_it() {
    for (text, end) in [("fixed 100/s", 1_000), ("sliding 100/s", 1_000), ("sliding 100/s parts 2", 500)] {
        let limit = limit(text);
        let mut state = limit.fresh();
        let now = START + Micros::from_millis(200);
        let grant = limit.lease(&mut state, &wanting(40), now);
        assert_eq!((grant.tokens, grant.ends_after), (40, Micros::from_millis(end - 200)), "{text}");
        let late = Renewal { generation: Some(grant.generation), returned: 40, ..Renewal::default() };
        let answer = limit.lease(&mut state, &late, START + Micros::from_secs(1));
        assert_eq!(answer.outstanding, 0);
        let expected = if text.starts_with("fixed") { 100 } else { 60 };
        assert_eq!(answer.decision.remaining, expected, "{text}: a return after the end is void");
    }
}

#[test]
fn long_windows_lease_little_at_once() {
    let limit = limit("fixed 64000/month calendar");
    let mut state = limit.fresh();
    let granted: u64 = (0..100).map(|_| limit.lease(&mut state, &wanting(100), START).tokens).sum();
    assert_eq!(granted, 1_000);
}

#[test]
fn refunds_credits_and_resets_leave_outstanding_tokens_charged() {
    for text in ["10/s burst 100", "gcra 10/s burst 100", "fixed 100/min", "sliding 100/min"] {
        let limit = limit(text);
        let mut state = limit.fresh();
        assert!(limit.decide(&mut state, 20, START).is_allowed());
        assert_eq!(limit.lease(&mut state, &wanting(40), START).tokens, 40);
        limit.credit(&mut state, 1_000, START);
        assert_eq!(remaining(&limit, &state, START), 60, "{text}");
        assert!(limit.decide(&mut state, 60, START).is_allowed());
        limit.reset(&mut state, START);
        assert_eq!((remaining(&limit, &state, START), outstanding(&state)), (60, 40), "{text}");
    }
}

#[test]
fn a_wait_knows_when_leases_end() {
    let limit = limit("10/s burst 100");
    let mut state = limit.fresh();
    limit.lease(&mut state, &wanting(50), START);
    for cost in [1, 50, 51, 80, 100] {
        let mut state = state.clone();
        assert!(limit.decide(&mut state, 50, START).is_allowed());
        let Decision { outcome: Outcome::Deny { retry_after }, reset_after, .. } = limit.evaluate(&state, cost, START)
        else {
            panic!("{cost} is allowed");
        };
        let allowed_after = |wait: u64| limit.evaluate(&state, cost, START + Micros::new(wait)).is_allowed();
        assert!(allowed_after(retry_after.get()), "{cost}: {retry_after}");
        assert!(!allowed_after(retry_after.get() - 1), "{cost}: {retry_after}");
        assert!(limit.is_recovered(&state, START + reset_after));
        assert!(!limit.is_recovered(&state, START + reset_after - Micros::new(1)));
    }
}

#[test]
fn a_server_that_lost_its_data_takes_the_word_of_the_nodes() {
    let limit = limit("10/s burst 100");
    let mut state = limit.fresh();
    let grant = limit.lease(&mut state, &wanting(40), START);
    let mut forgotten = limit.fresh();
    let report = Renewal { generation: Some(grant.generation), used: 10, kept: 30, ..Renewal::default() };
    let answer = limit.lease(&mut forgotten, &report, START + Micros::from_secs(1));
    assert_eq!((answer.outstanding, answer.decision.remaining), (30, 70));
    // A server that has taken over claims them in the same way, even if it knows older ones.
    let claim = Renewal { claims: true, ..report };
    let answer = limit.lease(&mut state, &claim, START + Micros::from_secs(1));
    assert_eq!(answer.outstanding, 70);
}

#[test]
fn a_clock_that_steps_back_ends_no_lease_early() {
    let limit = limit("10/s burst 100");
    for back in [1, 3, 10, 1_000_000] {
        let mut state = limit.fresh();
        limit.lease(&mut state, &wanting(40), START);
        assert!(limit.decide(&mut state, 60, START).is_allowed());
        let stepped = START - Micros::from_secs(back);
        assert!(!limit.decide(&mut state, 1, stepped).is_allowed());
        let lasts = |span: u64| remaining(&limit, &state, stepped + Micros::from_secs(span)) <= 60;
        assert!(lasts(3), "{back}");
        assert!(limit.is_recovered(&state, stepped + Micros::from_secs(6 + 10 + back.min(20))), "{back}");
    }
}

#[test]
fn a_reset_after_a_step_back_keeps_the_leases_of_the_window_ahead() {
    let limit = limit("fixed 100/3s");
    let mut state = limit.fresh();
    assert_eq!(limit.lease(&mut state, &wanting(40), START).tokens, 40);
    let stepped = START - Micros::from_secs(1);
    limit.reset(&mut state, stepped);
    assert_eq!(remaining(&limit, &state, stepped), 60);
    // The node may spend them until the end of the window in which they were granted.
    assert_eq!(remaining(&limit, &state, START + Micros::from_secs(1)), 60);
}

#[test]
fn a_renewal_that_claims_more_than_can_be_counted_is_cut_down() {
    let limit = limit("10/s burst 100");
    let mut state = limit.fresh();
    for _ in 0..3 {
        let claim = Renewal {
            generation: Some(LeaseGeneration::default()),
            kept: u64::MAX,
            used: 1,
            claims: true,
            ..wanting(1)
        };
        assert_eq!(limit.lease(&mut state, &claim, START).tokens, 0);
    }
    assert!(!limit.decide(&mut state, 1, START + Micros::from_secs(6)).is_allowed());
    assert!(limit.is_recovered(&state, START + Micros::from_secs(6 + 20)), "the debt is that of any other key");
}

#[test]
fn outstanding_tokens_are_carried_over_to_a_changed_limit() {
    let old = limit("10/s burst 100");
    let mut state = old.fresh();
    assert_eq!(old.lease(&mut state, &wanting(40), START).tokens, 40);
    for text in ["gcra 7/s burst 120", "1/min burst 120", "fixed 120/min", "sliding 120/min parts 4"] {
        let new = limit(text);
        let later = START + Micros::from_secs(3);
        let carried = new.carry(&old, &state, later);
        assert_eq!((remaining(&new, &carried, later), outstanding(&carried)), (80, 40), "{text}");
        let mut carried = carried;
        new.credit(&mut carried, 100, later);
        assert_eq!(remaining(&new, &carried, later), 80, "{text}");
    }
    let log = limit("log 120/min");
    let carried = log.carry(&old, &state, START);
    assert!(!matches!(carried, State::Leased(_)), "what cannot be leased counts as spent");
    assert_eq!(remaining(&log, &carried, START), 80);
}

#[test]
fn a_share_is_by_demand_when_tokens_are_scarce() {
    let limit = limit("1000/s burst 1000");
    let mut state = limit.fresh();
    assert!(limit.decide(&mut state, 950, START).is_allowed());
    let asking = |demand| Renewal { wanted: 1_000, demand, ..Renewal::default() };
    let first = limit.lease(&mut state, &asking(900), START);
    assert!(first.is_short);
    // Half of the 50 that are available, plus nine tenths of the 200 that recover in an interval, but no more than are
    // available.
    assert_eq!(first.tokens, 50);
    let later = START + Micros::from_millis(100);
    let second = limit.lease(&mut state, &asking(100), later);
    // 100 are available; this is a tenth of the demand.
    assert_eq!(second.tokens, 24);
}

#[test]
fn the_record_of_a_key_is_small() {
    assert!(size_of::<Ledger>() <= 112, "{}", size_of::<Ledger>());
    assert_eq!(EPOCH, Micros::from_secs(2));
    assert_eq!(LeaseGeneration::default().part, None);
}
