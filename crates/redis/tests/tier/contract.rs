//! A tier is a store.
//!
//! All checks but the one of random traces, which wants every number of a denied request's other charges: those that are
//! answered from memory say less of them. `differential` has traces of its own, and says what may differ.

use std::future::Future;

use tidegate_core::ManualClock;
use tidegate_core::contract::Subject;
use tidegate_redis::tier::Tier;

use crate::support::{Behind, Tiered, finish};

impl Subject for Tiered {
    type Store = Tier<Behind, ManualClock>;

    fn store(&self) -> &Self::Store {
        &self.tier
    }

    fn clock(&self) -> &ManualClock {
        &self.clock
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        finish(future)
    }
}

tidegate_core::store_contract!(@tests Tiered::new();
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
