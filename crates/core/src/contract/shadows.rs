//! Rules in shadow mode: decided with the request, without an effect on it.

use super::{Subject, assert_denied, five_of_each, limit, rule};
use crate::charge::Charge;
use crate::key::Key;
use crate::question::Question;
use crate::receipt::Settlement;
use crate::time::Micros;

/// A rule in shadow mode decides all of its charges or none. If it denies, the request still goes ahead.
pub fn a_rule_in_the_shadow_is_decided_by_itself_and_never_denies(subject: &impl Subject) {
    let (key, tight) = (Key::from("alice"), limit("fixed 1/day"));
    for roomy in &five_of_each() {
        let rules = ["counts", "dark", "darker", "tight"].map(|name| rule(name, roomy));
        let dark = [Charge::new(&rules[1], &key, roomy), Charge::new(&rules[3], &key, &tight)];
        let darker = [Charge::new(&rules[2], &key, roomy)];
        let question = Question { counting: &[Charge::new(&rules[0], &key, roomy)], shadows: &[&dark, &darker] };
        for round in 0..3 {
            let answer = subject.decide(question);
            assert!(answer.is_allowed(), "{roomy}: {answer:?}");
            assert_eq!(answer.decisions.len(), 1, "{roomy}");
            assert_eq!(answer.decisions[0].remaining, 4 - round, "{roomy}");
            let [one, other] = &*answer.shadows else { panic!("{roomy}: two rules are in the shadow: {answer:?}") };
            assert_eq!(one.is_allowed(), round == 0, "{roomy}");
            assert_eq!(one.decisions[0].remaining, 4, "{roomy}: was charged although its rule would have denied");
            assert_eq!(other.decisions[0].remaining, 4 - round, "{roomy}");
        }
    }
}

/// If the request is denied, charges in shadow mode are only peeked at.
pub fn a_denied_request_takes_nothing_in_the_shadow(subject: &impl Subject) {
    let (key, tight) = (Key::from("alice"), limit("fixed 1/day"));
    for roomy in &five_of_each() {
        let (counts, dark) = (rule("counts alone", roomy), rule("only peeked at", roomy));
        let shadow = [Charge::new(&dark, &key, roomy).cost(2)];
        let question = Question { counting: &[Charge::new(&counts, &key, &tight)], shadows: &[&shadow] };
        assert!(subject.decide(question).is_allowed(), "{roomy}");
        let peeked = subject.peek(shadow[0]);
        for _ in 0..3 {
            let answer = subject.decide(question);
            assert_denied(&answer.decisions[0]);
            assert_eq!(answer.shadows[0].decisions[..], [peeked], "{roomy}");
            assert_eq!((&answer.receipt, &answer.shadows[0].receipt), (&None, &None), "{roomy}");
        }
        assert_eq!(subject.peek(shadow[0].cost(0)).remaining, 3, "{roomy}");
    }
}

/// The receipt of a rule in shadow mode is settled separately.
pub fn a_rule_in_the_shadow_has_a_receipt_of_its_own(subject: &impl Subject) {
    let key = Key::from("alice");
    for limit in &five_of_each() {
        let (counts, dark) = (rule("counts, held", limit), rule("in the shadow, held", limit));
        let hour = Micros::from_secs(3_600);
        let counting = [Charge::new(&counts, &key, limit).cost(2).reserve(hour)];
        let in_shadow = [Charge::new(&dark, &key, limit).cost(3).reserve(hour)];
        let question = Question { counting: &counting, shadows: &[&in_shadow] };
        let answer = subject.decide(question);
        let (Some(receipt), Some(shadow)) = (&answer.receipt, &answer.shadows[0].receipt) else {
            panic!("{limit}: both hold something: {answer:?}")
        };
        assert_ne!(receipt.id, shadow.id, "{limit}");
        // Two more counting charges fit, but three more in shadow mode do not.
        let denied = subject.decide(question);
        assert!(denied.is_allowed() && denied.receipt.is_some(), "{limit}: {denied:?}");
        assert!(!denied.shadows[0].is_allowed() && denied.shadows[0].receipt.is_none(), "{limit}: {denied:?}");
        assert_eq!(subject.settle(shadow, &[0]), Settlement::Settled { given_back: 3, charged: 0 }, "{limit}");
        assert_eq!(subject.peek(in_shadow[0].cost(0)).remaining, 5, "{limit}");
        assert_eq!(subject.peek(counting[0].cost(0)).remaining, 1, "{limit}");
    }
}

/// If no charge counts, nothing denies the request.
pub fn a_request_may_be_governed_by_shadows_alone(subject: &impl Subject) {
    let (key, tight) = (Key::from("alice"), limit("1/day"));
    let dark = rule("shadows alone", &tight);
    let shadow = [Charge::new(&dark, &key, &tight)];
    for is_allowed in [true, false] {
        let answer = subject.decide(Question { counting: &[], shadows: &[&shadow] });
        assert!(answer.is_allowed() && answer.decisions.is_empty(), "{answer:?}");
        assert_eq!(answer.shadows[0].is_allowed(), is_allowed);
    }
}
