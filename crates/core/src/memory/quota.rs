//! Each rule's share of the store.
//!
//! Memory is counted in units of about one key. A key with spending is never forgotten to make room, so memory that a rule
//! has taken cannot be taken back. A rule that floods the store must therefore be stopped while there is still room for
//! other rules. Each rule has a threshold that sinks as the store fills up: a rule that holds `h` of `cap` units may take
//! another unit while `f` are free and
//!
//! ```text
//! h · cap < 6 · f²
//! ```
//!
//! A single rule can take two thirds of the cap. After one rule has taken its share, a second can take a sixth of the cap,
//! a third 1/16, the tenth 1/320. Rules that fill up at the same pace get equal shares. The number of rules need not be
//! known in advance, a late rule finds room, and a removed rule leaves nothing reserved. Network switches share their
//! packet buffers in this way ("dynamic thresholds"). There the threshold is proportional to the free space, which would
//! halve the rest with every further rule that is flooded. With the square, the n-th still gets about `cap / 6n²`.
//!
//! The counters belong to the whole store. Shares of single shards would be a few keys per rule and would fill unevenly by
//! chance. The counters change only when a key is added or forgotten.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::key::RuleId;

/// The approximate bytes of one key in the tables.
pub(super) const UNIT_BYTES: usize = 48;

/// The number of accounts. Further rules share one.
const ACCOUNTS: usize = 1_024;
/// The number of accounts among which a rule's account is searched.
const WAYS: usize = 16;

/// Suffix of the names of accounts of reservations.
const RESERVATIONS: &str = " (reservations)";

/// The factor of the threshold.
const STEEPNESS: u128 = 6;

/// The units that the rules of a store hold, and the bound on all of them together.
pub(super) struct Quota {
    cap: u64,
    accounts: Box<[QuotaAccount]>,
    opening: Mutex<()>,
    used: UsedUnits,
}

/// The units in use. Aligned to a cache line against false sharing: every new key writes to it.
#[repr(align(64))]
struct UsedUnits(AtomicU64);

#[derive(Default)]
#[repr(align(64))]
struct QuotaAccount {
    /// A hash of the rule; zero if the account is vacant.
    tag: AtomicU64,
    used: AtomicU64,
    overflowed: AtomicU64,
    rule: Mutex<Option<RuleId>>,
}

/// The id of an account. Sixteen bits, to fit into the tag of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccountId(pub(super) u16);

impl AccountId {
    /// The account of shared buckets, whose units are not counted.
    pub(super) const UNCOUNTED: AccountId = AccountId(u16::MAX);
    /// The account of all rules without an account of their own.
    pub(super) const OTHERS: AccountId = AccountId(0);

    pub(super) fn is_counted(self) -> bool {
        self != AccountId::UNCOUNTED
    }
}

/// The memory that one rule takes in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleUsage {
    /// The rule, or the limit of a rule that has several. Reservations are listed separately, as `<rule> (reservations)`.
    /// `None` for all rules beyond the number of those counted separately.
    pub rule: Option<RuleId>,
    /// The units in use, counted as keys.
    pub used: u64,
    /// Number of times that there was no room for one of its keys.
    pub overflowed: u64,
}

impl Quota {
    pub(super) fn new(cap: usize) -> Quota {
        Quota {
            cap: cap as u64,
            accounts: (0..ACCOUNTS).map(|_| QuotaAccount::default()).collect(),
            opening: Mutex::new(()),
            used: UsedUnits(AtomicU64::new(0)),
        }
    }

    pub(super) const fn cap(&self) -> u64 {
        self.cap
    }

    /// Units that all rules hold together.
    pub(super) fn used(&self) -> u64 {
        self.used.0.load(Ordering::Relaxed)
    }

    /// The usage of each rule with units in use or overflows.
    pub(super) fn by_rule(&self) -> Vec<RuleUsage> {
        let usage = |account: &QuotaAccount| RuleUsage {
            rule: account.rule.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            used: account.used.load(Ordering::Relaxed),
            overflowed: account.overflowed.load(Ordering::Relaxed),
        };
        self.accounts.iter().map(usage).filter(|usage| usage.used > 0 || usage.overflowed > 0).collect()
    }

    /// The account of a rule. Opens one if there is none, if necessary by replacing a rule with no units.
    pub(super) fn account(&self, rule: &RuleId) -> AccountId {
        let tag = tag(rule);
        self.find(tag).unwrap_or_else(|| self.open(tag, || rule.clone()))
    }

    /// The account of a rule's reservations. It is separate because a reservation without room is an error, and a flood of keys
    /// must not cause that.
    pub(super) fn account_of_reservations(&self, rule: &RuleId) -> AccountId {
        let tag = tag(rule).rotate_left(32).max(1);
        self.find(tag).unwrap_or_else(|| self.open(tag, || RuleId::new(&format!("{rule}{RESERVATIONS}"))))
    }

    /// The account with a name that [`Quota::name`] returned.
    pub(super) fn account_named(&self, name: &RuleId) -> AccountId {
        match name.as_str().strip_suffix(RESERVATIONS) {
            Some(rule) => self.account_of_reservations(&RuleId::new(rule)),
            None => self.account(name),
        }
    }

    /// The name of an account: a rule, or its reservations. `None` for the account of all rules without an account of their
    /// own.
    pub(super) fn name(&self, id: AccountId) -> Option<RuleId> {
        self.at(id).rule.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, tag: u64) -> Option<AccountId> {
        ways(tag).find(|&id| self.at(id).tag.load(Ordering::Relaxed) == tag)
    }

    #[cold]
    fn open(&self, tag: u64, name: impl FnOnce() -> RuleId) -> AccountId {
        if self.vacant(tag).is_none() {
            return AccountId::OTHERS;
        }
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = self.find(tag);
        if let Some(id) = opened.or_else(|| self.vacant(tag)) {
            let account = self.at(id);
            if opened.is_none() {
                // A thread that still counts for the previous rule counts for this one instead. Entries contain the
                // account, so units are released to the account from which they were claimed.
                *account.rule.lock().unwrap_or_else(PoisonError::into_inner) = Some(name());
                account.overflowed.store(0, Ordering::Relaxed);
                account.tag.store(tag, Ordering::Relaxed);
            }
            return id;
        }
        AccountId::OTHERS
    }

    /// A vacant account, or else that of a rule with no units.
    fn vacant(&self, tag: u64) -> Option<AccountId> {
        let is_new = |id: &AccountId| self.at(*id).tag.load(Ordering::Relaxed) == 0;
        let is_unused = |id: &AccountId| self.at(*id).used.load(Ordering::Relaxed) == 0;
        ways(tag).find(is_new).or_else(|| ways(tag).find(is_unused))
    }

    fn at(&self, id: AccountId) -> &QuotaAccount {
        &self.accounts[usize::from(id.0)]
    }

    /// Claims units if the threshold of the rule permits it.
    pub(super) fn claim(&self, account: AccountId, units: u64) -> Option<QuotaClaim<'_>> {
        if units == 0 || !account.is_counted() || self.take(account, units) {
            Some(QuotaClaim { quota: self, account, units })
        } else {
            None
        }
    }

    /// Claims units that were claimed before a restart, regardless of the rule's threshold, unless the store is full.
    pub(super) fn claim_again(&self, account: AccountId, units: u64) -> Option<QuotaClaim<'_>> {
        if units == 0 || !account.is_counted() {
            return Some(QuotaClaim { quota: self, account, units });
        }
        let more = |used: u64| used.checked_add(units).filter(|used| *used <= self.cap);
        self.used.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        self.at(account).used.fetch_add(units, Ordering::Relaxed);
        Some(QuotaClaim { quota: self, account, units })
    }

    fn take(&self, account: AccountId, units: u64) -> bool {
        let own = &self.at(account).used;
        if !self.admits(own.load(Ordering::Relaxed), self.used(), units) {
            return false;
        }
        // The account is raised before the total and lowered after it. So a reader of the total finds the rule's whole part
        // of it in the account, and concurrent claims cannot exceed the threshold together.
        own.fetch_add(units, Ordering::Relaxed);
        let taken = self.used.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            let held = own.load(Ordering::Relaxed) - units;
            self.admits(held, used, units).then_some(used + units)
        });
        if taken.is_err() {
            own.fetch_sub(units, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Whether a rule that holds `held` units may take `units` more, one by one.
    fn admits(&self, held: u64, used: u64, units: u64) -> bool {
        let Some(free) = self.cap.saturating_sub(used).checked_sub(units - 1) else { return false };
        u128::from(held + (units - 1)) * u128::from(self.cap) < STEEPNESS * u128::from(free).pow(2)
    }

    /// Releases units.
    pub(super) fn release(&self, account: AccountId, units: u64) {
        if units > 0 && account.is_counted() {
            self.used.0.fetch_sub(units, Ordering::AcqRel);
            self.at(account).used.fetch_sub(units, Ordering::Relaxed);
        }
    }

    /// Counts a claim for which there was no room.
    pub(super) fn count_overflow(&self, account: AccountId) {
        self.at(account).overflowed.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "both halves of a hash")]
fn tag(rule: &RuleId) -> u64 {
    let salt = rule.stable_hash();
    ((salt >> 64) as u64 ^ salt as u64).max(1)
}

/// The accounts that a rule may use.
#[expect(clippy::cast_possible_truncation, reason = "there are far fewer accounts")]
fn ways(tag: u64) -> impl Iterator<Item = AccountId> {
    let first = tag % (ACCOUNTS as u64 - 1);
    (first..first + WAYS as u64).map(|way| AccountId(1 + (way % (ACCOUNTS as u64 - 1)) as u16))
}

/// Units claimed for something that is about to be written. Released on drop unless kept.
#[must_use]
pub(super) struct QuotaClaim<'a> {
    quota: &'a Quota,
    account: AccountId,
    units: u64,
}

impl<'a> QuotaClaim<'a> {
    /// A claim of no units.
    pub(super) const fn nothing(quota: &'a Quota) -> QuotaClaim<'a> {
        QuotaClaim { quota, account: AccountId::UNCOUNTED, units: 0 }
    }

    /// Keeps the units claimed until they are [released](Quota::release).
    pub(super) fn keep(mut self) -> (AccountId, u64) {
        (self.account, std::mem::take(&mut self.units))
    }
}

impl Drop for QuotaClaim<'_> {
    fn drop(&mut self) {
        self.quota.release(self.account, self.units);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fill(quota: &Quota, rule: &str) -> u64 {
        let account = quota.account(&RuleId::new(rule));
        let mut taken = 0;
        while let Some(claim) = quota.claim(account, 1) {
            claim.keep();
            taken += 1;
        }
        taken
    }

    #[test]
    fn rules_that_are_flooded_one_after_the_other_leave_room_for_the_next() {
        let quota = Quota::new(1_000_000);
        let got: Vec<u64> = (0..10).map(|number| fill(&quota, &format!("rule {number}"))).collect();
        assert_eq!(got[..3], [666_667, 166_667, 63_661]);
        assert!(got[9] > 1_000_000 / 320, "{got:?}");
        assert!(got.is_sorted_by(|one, next| one > next), "{got:?}");
    }

    #[test]
    fn rules_that_fill_up_at_the_same_pace_get_equal_shares() {
        let quota = Quota::new(100_000);
        let accounts: Vec<_> = (0..5).map(|number| quota.account(&RuleId::new(&format!("rule {number}")))).collect();
        while accounts.iter().filter_map(|&account| quota.claim(account, 1).map(QuotaClaim::keep)).count() > 0 {}
        let used: Vec<u64> = quota.by_rule().iter().map(|usage| usage.used).collect();
        assert!(used.len() == 5 && used.iter().all(|used| (16_600..=16_700).contains(used)), "{used:?}");
    }

    #[test]
    fn rules_that_hold_nothing_make_room_for_others_to_be_counted_apart() {
        let quota = Quota::new(100_000);
        for number in 0..20_000 {
            let rule = RuleId::new(&format!("reloaded {number}"));
            let claim = quota.claim(quota.account(&rule), 1).expect("room");
            assert!(quota.by_rule().iter().any(|usage| usage.rule.as_ref() == Some(&rule)));
            drop(claim);
        }
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn rules_that_are_too_many_share_an_account_and_all_is_counted() {
        let quota = Quota::new(100_000);
        for number in 0..3_000 {
            let rule = RuleId::new(&format!("rule {number}"));
            quota.claim(quota.account(&rule), 1).expect("room").keep();
        }
        let usage = quota.by_rule();
        assert!(usage.len() <= ACCOUNTS);
        assert_eq!(usage.iter().map(|usage| usage.used).sum::<u64>(), 3_000);
        assert!(usage.iter().any(|usage| usage.rule.is_none() && usage.used > 1_900), "{:?}", usage[0]);
    }

    #[test]
    fn threads_that_claim_at_the_same_time_do_not_pass_the_threshold_together() {
        let quota = Quota::new(30_000);
        let account = quota.account(&RuleId::new("rule"));
        std::thread::scope(|scope| {
            for units in [1, 2, 3, 1] {
                let quota = &quota;
                scope.spawn(move || {
                    for round in 0..60_000 {
                        match quota.claim(account, units) {
                            Some(claim) if round % 3 > 0 => drop(claim.keep()),
                            other => drop(other),
                        }
                        assert!(quota.used() <= 20_000);
                    }
                });
            }
        });
        assert!(quota.used() > 19_990, "{}", quota.used());
        assert_eq!(quota.by_rule()[0].used, quota.used());
    }

    proptest! {
        /// The model claims units one by one and sums over all rules each time.
        #[test]
        fn claims_are_granted_as_the_threshold_says(
            cap in 0_u64..5_000,
            steps in prop::collection::vec((0_usize..6, 1_u64..400, any::<bool>()), 1..200),
        ) {
            let quota = Quota::new(usize::try_from(cap).unwrap());
            let accounts: Vec<_> = (0..6).map(|rule| quota.account(&RuleId::new(&format!("rule {rule}")))).collect();
            let mut held = [0_u64; 6];
            for (rule, units, take) in steps {
                if take {
                    let mut after = held;
                    let granted = (0..units).all(|_| {
                        let free = cap - after.iter().sum::<u64>();
                        let admits = after[rule] * cap < 6 * free * free;
                        after[rule] += 1;
                        admits
                    });
                    let claim = quota.claim(accounts[rule], units);
                    prop_assert_eq!(claim.is_some(), granted);
                    if let Some(claim) = claim {
                        claim.keep();
                        held = after;
                    }
                } else {
                    let units = units.min(held[rule]);
                    quota.release(accounts[rule], units);
                    held[rule] -= units;
                }
                prop_assert!(quota.used() <= cap);
                prop_assert_eq!(quota.used(), held.iter().sum::<u64>());
            }
        }
    }
}
