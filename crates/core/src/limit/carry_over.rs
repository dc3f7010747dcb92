//! Conversion of a key's spending to a changed limit.

use super::bucket::{Bucket, Level, SpendingLine, Tat};
use super::{Algorithm, Gcra, Limit, Meter, Shaper, State, TokenBucket};
use crate::receipt_id::ReceiptId;
use crate::time::Timestamp;

impl Limit {
    /// Converts the state of a key under the limit `old` to a state under this limit.
    ///
    /// A raised limit never denies a request that the old one would have admitted at that instant. A lowered limit grants
    /// nothing.
    ///
    /// | from → to | carried over |
    /// |---|---|
    /// | any limit, only its capacity (count, slots) changed | the state, exactly |
    /// | token bucket, GCRA, meter, shaper → one another, at any rate | the debt in tokens, fractions included |
    /// | fixed window → one of another length | the spending in the present window |
    /// | sliding window → one with parts of another length | the estimate, rounded up, as if spent just now |
    /// | sliding log → one of another window | every entry |
    /// | concurrency → another number or lease | every lease, with its length |
    /// | one of these rows → another | the spending, rounded up, as if spent just now; leases never become spending, nor spending leases |
    ///
    /// The debt of a bucket's key is at most twice the new capacity. Leased spending stays charged in addition, until its
    /// leases end. If the new limit cannot be leased, leased spending counts as spent just now.
    #[must_use]
    pub fn carry(&self, old: &Limit, state: &State, now: Timestamp) -> State {
        if self.shape == old.shape {
            return state.clone();
        }
        if let State::Leased(ledger) = state {
            return ledger.carry(old, self, now);
        }
        let mut carried = self.fresh();
        match (&old.algorithm, &self.algorithm) {
            (Algorithm::SlidingLog(_), Algorithm::SlidingLog(_)) => carried = state.clone(),
            (Algorithm::Concurrency(_), _) | (_, Algorithm::Concurrency(_)) => {}
            _ => match (old.bucket(), self.bucket()) {
                (Some(from), Some(to)) => {
                    let owed = to.convert(old.drops_owed(state, now), &from.rate());
                    carried = self.owing(owed, now);
                }
                _ => {
                    self.charge(&mut carried, old.spent(state, now), now, ReceiptId::ANONYMOUS);
                }
            },
        }
        carried
    }

    pub(crate) fn bucket(&self) -> Option<&Bucket> {
        match &self.algorithm {
            Algorithm::TokenBucket(TokenBucket { bucket })
            | Algorithm::Gcra(Gcra { bucket })
            | Algorithm::Meter(Meter { bucket })
            | Algorithm::Shaper(Shaper { bucket }) => Some(bucket),
            Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::Concurrency(_) => None,
        }
    }

    /// The debt of a bucket's key, in drops.
    pub(crate) fn drops_owed(&self, state: &State, now: Timestamp) -> u64 {
        match (self.bucket(), state) {
            (Some(bucket), State::Level(level)) => level.spent(&bucket.rate(), now),
            (Some(bucket), State::Tat(tat)) => tat.spent(&bucket.rate(), now),
            _ => 0,
        }
    }

    /// The state of a bucket's key that owes `drops`.
    fn owing(&self, drops: u64, now: Timestamp) -> State {
        match (self.bucket(), self.fresh()) {
            (Some(bucket), State::Level(_)) => State::Level(Level::through(drops, &bucket.rate(), now)),
            (Some(bucket), State::Tat(_)) => State::Tat(Tat::through(drops, &bucket.rate(), now)),
            (_, fresh) => fresh,
        }
    }

    /// The spending that counts, rounded up.
    fn spent(&self, state: &State, now: Timestamp) -> u64 {
        match (&self.algorithm, state) {
            (Algorithm::FixedWindow(limit), State::Window(window)) => limit.spent(window, now),
            (Algorithm::SlidingWindow(limit), State::Sliding(sliding)) => limit.spent(sliding, now),
            (Algorithm::SlidingLog(limit), State::Log(log)) => limit.spent(log, now),
            _ => match self.bucket() {
                Some(bucket) => self.drops_owed(state, now).div_ceil(bucket.rate().drops_per_token()),
                None => 0,
            },
        }
    }
}
