//! The contract of every store, in a cluster, with every rule's keys in another slot.
//!
//! All checks but the one of random traces, on which limits change and the clock steps back: a request that is denied
//! leaves no trace of that in slots that were only looked at. `agreeing` has traces of its own.

use std::future::Future;

use tidegate_core::contract::Subject;
use tidegate_core::{
    Adjustment, Answer, Charge, Decision, Decisions, Key, ManualClock, Receipt, RuleId, Settlement, Store, StoreError,
    Timestamp,
};
use tidegate_redis::RedisStore;

use crate::shared;

/// Makes the rule a part of the key, and so of what says where it lies.
struct Spread {
    store: RedisStore,
}

fn spread(rule: &RuleId, key: &Key<'_>) -> Key<'static> {
    Key::of(std::iter::once(rule.as_str().as_bytes()).chain(key.parts()))
}

fn keys(charges: &[Charge<'_>]) -> Vec<Key<'static>> {
    charges.iter().map(|charge| spread(charge.rule, charge.key)).collect()
}

fn under<'a>(charges: &[Charge<'a>], keys: &'a [Key<'static>]) -> Vec<Charge<'a>> {
    charges.iter().zip(keys).map(|(charge, key)| Charge { key, ..*charge }).collect()
}

impl Store for Spread {
    async fn decide(&self, charges: &[Charge<'_>]) -> Result<Answer, StoreError> {
        let keys = keys(charges);
        self.store.decide(&under(charges, &keys)).await
    }

    async fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Result<Settlement, StoreError> {
        self.store.settle(receipt, actual).await
    }

    async fn renew(&self, receipt: &Receipt) -> Result<bool, StoreError> {
        self.store.renew(receipt).await
    }

    async fn peek(&self, charges: &[Charge<'_>]) -> Result<Decisions, StoreError> {
        let keys = keys(charges);
        self.store.peek(&under(charges, &keys)).await
    }

    async fn adjust(&self, charge: &Charge<'_>, adjustment: Adjustment) -> Result<Decision, StoreError> {
        let key = spread(charge.rule, charge.key);
        self.store.adjust(&Charge { key: &key, ..*charge }, adjustment).await
    }

    async fn reset(&self, rule: &RuleId, key: &Key<'_>) -> Result<bool, StoreError> {
        self.store.reset(rule, &spread(rule, key)).await
    }
}

struct InCluster {
    store: Spread,
    clock: ManualClock,
}

impl InCluster {
    fn new() -> InCluster {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        InCluster { store: Spread { store: shared::store(&shared::prefix(), clock.clone()) }, clock }
    }
}

impl Subject for InCluster {
    type Store = Spread;

    fn store(&self) -> &Spread {
        &self.store
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        shared::runtime().block_on(future)
    }
}

tidegate_core::store_contract!(@tests InCluster::new();
    deciding {
        every_algorithm_admits_its_capacity_and_says_when_to_come_back
        a_denied_request_spends_nothing
        a_request_is_charged_to_all_of_its_limits_or_to_none
        charges_to_one_key_are_judged_by_their_sum
        what_costs_more_than_the_limit_holds_never_succeeds
        a_cost_of_nothing_asks_without_taking
        peeking_says_what_deciding_would_and_changes_nothing
        keys_and_rules_do_not_share_state
        no_charges_mean_no_limits
    }
    holding {
        a_reservation_is_settled_at_what_it_really_cost
        a_receipt_settles_once
        an_abandoned_reservation_expires_and_stays_spent
        slots_are_given_back_once
        slots_of_a_crashed_holder_come_back_when_the_lease_ends
        a_renewed_lease_runs_anew
        a_denied_request_holds_nothing
        what_was_taken_from_a_window_that_has_passed_is_not_given_back
        only_the_last_in_a_shapers_queue_can_leave_it
    }
    shadowing {
        a_rule_in_the_shadow_is_decided_by_itself_and_never_denies
        a_denied_request_takes_nothing_in_the_shadow
        a_rule_in_the_shadow_has_a_receipt_of_its_own
        a_request_may_be_governed_by_shadows_alone
    }
    changing {
        a_penalty_puts_a_key_into_debt_and_a_credit_takes_it_out
        a_reset_key_is_as_good_as_new
        a_changed_limit_keeps_what_was_spent
        a_lowered_limit_grants_nothing
        a_clock_that_steps_back_admits_nothing_twice
        a_clock_that_steps_far_back_does_not_block_for_long
        a_clock_that_leaps_ahead_admits_one_capacity
    }
    racing {
        parallel_requests_are_admitted_exactly_up_to_the_limit
        parallel_requests_over_two_keys_charge_both_or_none
        a_receipt_settled_by_many_at_once_settles_once
    }
);
