//! Payments of a request: tokens and slots taken from leases, all or none.

use smallvec::SmallVec;
use tidegate_core::lease::Taken;
use tidegate_core::receipt::ReceiptId;
use tidegate_core::store::Decisions;
use tidegate_core::{Charge, Clock, Decision, Receipt};

use super::blocks::TakenSlots;
use super::leases::{Found, Leases};

/// Tokens and slots taken for a request, which are put back if it is not admitted.
pub(super) struct Payments<'l> {
    leases: &'l Leases,
    paid: SmallVec<[Payment; 4]>,
    /// Whether the payments remain valid while the store is asked.
    are_kept: bool,
    /// The receipt under which slots are held.
    id: Option<ReceiptId>,
}

enum Payment {
    Tokens(Found, Taken),
    Slots(Box<TakenSlots>),
}

impl Payment {
    fn put_back(&self) {
        match self {
            Payment::Tokens(found, taken) => {
                if let Some(key) = found.get() {
                    key.put_back(*taken);
                }
            }
            Payment::Slots(slots) => slots.put_back(),
        }
    }
}

impl<'l> Payments<'l> {
    pub(super) fn new(leases: &'l Leases, are_kept: bool) -> Payments<'l> {
        Payments { leases, paid: SmallVec::new(), are_kept, id: None }
    }

    /// Pays for a counting charge, if it is leased and enough tokens or slots are available.
    pub(super) fn pay_counting(&mut self, charge: &Charge<'_>, clock: &impl Clock) -> Option<Decision> {
        if !charge.limit.holds_slots() {
            return self.pay(charge, clock);
        }
        let id = *self.id.get_or_insert_with(|| self.leases.blocks.draw());
        let slots = self.leases.blocks.begin(charge, id, clock.now())?;
        let decision = slots.begun.decision;
        self.paid.push(Payment::Slots(Box::new(slots)));
        Some(decision)
    }

    /// Pays for a charge, if it is leased and enough tokens are available. Slots of rules in shadow mode are taken from the
    /// store.
    #[inline]
    fn pay(&mut self, charge: &Charge<'_>, clock: &impl Clock) -> Option<Decision> {
        let found = self.leases.find(charge)?;
        let key = found.get()?;
        let paid = key.pay(charge.cost, clock)?;
        if paid.is_low {
            self.leases.renew_low(key, clock.now());
        }
        self.paid.push(Payment::Tokens(if self.are_kept { found.keep() } else { found }, paid.taken));
        Some(paid.decision)
    }

    /// Pays for all counting charges, or none.
    pub(super) fn pay_all_counting(
        &mut self,
        charges: &[Charge<'_>],
        clock: &impl Clock,
        decisions: &mut Decisions,
    ) -> bool {
        for charge in charges {
            let Some(decision) = self.pay_counting(charge, clock) else {
                self.put_back(0);
                decisions.clear();
                return false;
            };
            decisions.push(decision);
        }
        true
    }

    /// Pays for all charges of a rule in shadow mode, or none.
    pub(super) fn pay_all(&mut self, charges: &[Charge<'_>], clock: &impl Clock, decisions: &mut Decisions) -> bool {
        let before = self.paid.len();
        for charge in charges {
            let Some(decision) = self.pay(charge, clock) else {
                self.put_back(before);
                decisions.clear();
                return false;
            };
            decisions.push(decision);
        }
        true
    }

    fn put_back(&mut self, from: usize) {
        self.paid.drain(from..).for_each(|payment| payment.put_back());
    }

    /// Keeps the payments of an admitted request. Returns the receipt of its slots; `None` if it has none.
    pub(super) fn commit(mut self) -> Option<Receipt> {
        let slots = |payment: &Payment| match payment {
            Payment::Tokens(..) => None,
            Payment::Slots(slots) => Some(slots.held()),
        };
        // Only counting charges have slots, in the order of the charges.
        let receipt = self.id.map(|id| Receipt { id, held: self.paid.iter().filter_map(slots).collect() });
        self.paid.clear();
        receipt.filter(|receipt| !receipt.held.is_empty())
    }

    /// Like `commit`, for a request of which the store has decided the `rest`. Slots of blocks are held under the store's
    /// receipt, if there is one.
    pub(super) fn commit_with(
        mut self,
        counting: &[Charge<'_>],
        decided: &[Option<Decision>],
        of_store: Option<Receipt>,
    ) -> Option<Receipt> {
        let Some(Receipt { id, held }) = of_store else { return self.commit() };
        let mut own = self.paid.drain(..).filter_map(|payment| match payment {
            Payment::Tokens(..) => None,
            Payment::Slots(slots) => {
                slots.rename(id);
                Some(slots.held())
            }
        });
        let mut of_store = held.into_iter();
        let of = |(charge, decided): (&Charge<'_>, &Option<Decision>)| match decided {
            Some(_) => charge.limit.holds_slots().then(|| own.next()).flatten(),
            None => charge.is_held().then(|| of_store.next()).flatten(),
        };
        Some(Receipt { id, held: counting.iter().zip(decided).filter_map(of).collect() })
    }
}

impl Drop for Payments<'_> {
    fn drop(&mut self) {
        self.put_back(0);
    }
}
