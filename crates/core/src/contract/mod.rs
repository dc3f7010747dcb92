//! The store contract: a suite of tests that every store must pass.
//!
//! Wrap the store in a [`Subject`]. The macro then makes a test of each check:
//!
//! ```
//! use tidegate_core::contract::Subject;
//! use tidegate_core::{ManualClock, MemoryStore, Timestamp};
//! use tidegate_core::store::now_or_never;
//!
//! struct InMemory {
//!     store: MemoryStore<ManualClock>,
//!     clock: ManualClock,
//! }
//!
//! impl InMemory {
//!     fn new() -> InMemory {
//!         let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
//!         InMemory { store: MemoryStore::with_clock(clock.clone()), clock }
//!     }
//! }
//!
//! impl Subject for InMemory {
//!     type Store = MemoryStore<ManualClock>;
//!
//!     fn store(&self) -> &Self::Store {
//!         &self.store
//!     }
//!
//!     fn clock(&self) -> &ManualClock {
//!         &self.clock
//!     }
//!
//!     fn block_on<F: Future>(&self, future: F) -> F::Output {
//!         now_or_never(future).expect("a store in memory never waits")
//!     }
//! }
//!
//! tidegate_core::store_contract!(InMemory::new());
//! ```

pub mod adjustments;
pub mod decisions;
pub mod faulty;
pub mod holds;
pub mod leases;
pub mod races;
pub mod seed;
pub mod shadows;
pub mod traces;

use std::fmt::Debug;
use std::future::Future;

use crate::charge::Charge;
use crate::clock::{Clock, ManualClock};
use crate::decision::{Decision, Outcome};
use crate::key::{Key, RuleId};
use crate::limit::Limit;
use crate::question::Question;
use crate::receipt::{Receipt, Settlement};
use crate::store::{Adjustment, Answer, Store};
use crate::time::{Micros, Timestamp};

/// A store under test. It is empty, and the test controls its clock.
pub trait Subject: Sync {
    /// The kind of store.
    type Store: Store;

    /// The store.
    fn store(&self) -> &Self::Store;

    /// The store's clock.
    fn clock(&self) -> &ManualClock;

    /// Waits for one of the store's futures. Several threads may call this at once.
    fn block_on<F: Future>(&self, future: F) -> F::Output;

    /// Decides charges. Panics if the store fails.
    fn decide<'q>(&self, question: impl Into<Question<'q>>) -> Answer {
        must(self.block_on(self.store().decide(question)))
    }

    /// Decides one charge.
    fn decide_one(&self, charge: Charge<'_>) -> Decision {
        self.decide(&[charge]).decisions[0]
    }

    /// Peeks at one charge.
    fn peek(&self, charge: Charge<'_>) -> Decision {
        must(self.block_on(self.store().peek(&[charge])))[0]
    }

    /// Settles a receipt.
    fn settle(&self, receipt: &Receipt, actual: &[u64]) -> Settlement {
        must(self.block_on(self.store().settle(receipt, actual)))
    }

    /// Renews a receipt.
    fn renew(&self, receipt: &Receipt) -> bool {
        must(self.block_on(self.store().renew(receipt)))
    }

    /// Applies a penalty or a credit.
    fn adjust(&self, charge: Charge<'_>, adjustment: Adjustment) -> Decision {
        must(self.block_on(self.store().adjust(&charge, adjustment)))
    }

    /// Resets a key.
    fn reset(&self, rule: &RuleId, key: &Key<'_>) -> bool {
        must(self.block_on(self.store().reset(rule, key)))
    }

    /// The present instant of the store's clock.
    fn now(&self) -> Timestamp {
        self.clock().now()
    }

    /// Advances the clock.
    fn wait(&self, span: Micros) {
        self.clock().advance(span);
    }
}

#[track_caller]
fn must<T, E: Debug>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("the store failed: {error:?}"),
    }
}

/// A limit of each algorithm that admits exactly five at one instant.
fn five_of_each() -> [Limit; 9] {
    [
        "1/s burst 5",
        "gcra 1/s burst 5",
        "meter 1/s burst 5",
        "shaper 1/s queue 5",
        "fixed 5/min",
        "fixed 5/month calendar",
        "sliding 5/min",
        "log 5/min",
        "concurrent 5 ttl 30s",
    ]
    .map(limit)
}

#[track_caller]
fn limit(text: &str) -> Limit {
    must(text.parse())
}

/// The rule of a check and a limit. Every pair has its own rule, so that checks do not share state.
fn rule(check: &str, limit: &Limit) -> RuleId {
    RuleId::new(&format!("{check}: {limit}"))
}

#[track_caller]
fn assert_denied(decision: &Decision) -> Micros {
    match decision.outcome {
        Outcome::Deny { retry_after } => {
            assert!(!retry_after.is_zero(), "a denial never says to retry at once");
            retry_after
        }
        Outcome::Allow { .. } | Outcome::TooLarge { .. } => panic!("expected a denial: {decision:?}"),
    }
}

/// Makes a test of every check of the contract. The argument is an expression for the [`Subject`], which is
/// evaluated for each check.
///
/// `but traces` omits the random traces, for stores that have their own test of them. `leases` makes only the tests
/// for stores that grant leases.
#[macro_export]
macro_rules! store_contract {
    ($subject:expr) => {
        $crate::store_contract!($subject, but traces);
        $crate::store_contract!(@tests $subject; traces { every_decision_on_a_random_trace_is_what_the_limits_say });
    };
    ($subject:expr, but traces) => {
        $crate::store_contract!(@tests $subject;
            decisions {
                every_algorithm_admits_its_capacity_and_says_when_to_come_back
                a_denied_request_spends_nothing
                a_request_is_charged_to_all_of_its_limits_or_to_none
                charges_to_one_key_are_judged_by_their_sum
                costs_above_the_capacity_never_succeed
                a_cost_of_nothing_asks_without_taking
                peeking_says_what_deciding_would_and_changes_nothing
                keys_and_rules_do_not_share_state
                no_charges_mean_no_limits
            }
            holds {
                a_reservation_is_settled_at_what_it_really_cost
                additional_charges_stop_at_the_largest_debt
                a_receipt_settles_once
                an_abandoned_reservation_expires_and_stays_spent
                slots_are_given_back_once
                slots_of_a_crashed_holder_come_back_when_the_lease_ends
                a_renewed_lease_runs_anew
                a_denied_request_holds_nothing
                charges_of_past_windows_are_not_refunded
                only_the_last_in_a_shapers_queue_can_leave_it
                a_reservation_of_a_queue_that_became_a_bucket_is_refunded
            }
            shadows {
                a_rule_in_the_shadow_is_decided_by_itself_and_never_denies
                a_denied_request_takes_nothing_in_the_shadow
                a_rule_in_the_shadow_has_a_receipt_of_its_own
                a_request_may_be_governed_by_shadows_alone
            }
            adjustments {
                a_penalty_puts_a_key_into_debt_and_a_credit_takes_it_out
                refunds_of_a_bucket_that_refills_are_free
                a_reset_key_is_as_good_as_new
                a_changed_limit_keeps_what_was_spent
                a_lowered_limit_grants_nothing
                a_clock_that_steps_back_admits_nothing_twice
                a_clock_that_steps_far_back_does_not_block_for_long
                a_clock_that_leaps_ahead_admits_one_capacity
            }
            races {
                parallel_requests_are_admitted_exactly_up_to_the_limit
                parallel_requests_over_two_keys_charge_both_or_none
                a_receipt_settled_by_many_at_once_settles_once
            }
        );
    };
    ($subject:expr, leases) => {
        $crate::store_contract!(@tests $subject;
            leases {
                a_lease_is_charged_at_once_and_until_it_ends
                returned_tokens_are_available_at_once
                outstanding_tokens_stay_charged
                a_changed_limit_keeps_what_is_outstanding
                tokens_are_returned_to_the_limit_that_the_key_has_by_now
                unleasable_limits_are_not_leased
                parallel_leases_and_requests_take_no_more_than_the_limit
                every_lease_on_a_random_trace_is_what_the_limits_say
            }
        );
    };
    (@tests $subject:expr; $($topic:ident { $($check:ident)* })*) => {$($(
        #[test]
        fn $check() {
            $crate::contract::$topic::$check(&$subject);
        }
    )*)*};
}
