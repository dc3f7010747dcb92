//! The limits: one file for each algorithm, all of them pure.
//!
//! A limit contains no state and reads no clock. It maps the state of one key, a cost and the present instant to a
//! [`Decision`]. Only an admission changes the state. All arithmetic uses integers, and a limit that could not be computed
//! exactly is rejected when it is built.
//!
//! # Changed limits
//! A key keeps its spending: see [`Limit::carry`].
//!
//! # Clock steps
//! After a step back, nothing is admitted twice, and a key is delayed by no more than the step. After a long step back, the
//! state is moved to the present, which is the only change that a denial can make. So no key waits longer than its limit
//! takes to recover fully. A step ahead admits as much as the skipped time would have.

mod bounds;
mod bucket;
mod calendar;
mod carry_over;
mod charge_mark;
mod concurrency;
mod divisor;
mod error;
mod fixed_window;
mod floor;
mod footprint;
mod gcra;
mod leaky_bucket;
pub(crate) mod leased;
mod limit_rate;
mod packed;
mod rate;
mod recovery;
mod regional_part;
mod shape;
mod share;
mod sliding_log;
mod sliding_window;
mod token_bucket;
mod typed;

pub use bounds::{LONGEST_PERIOD, SHORTEST_WINDOW};
pub use bucket::{Level, Tat};
pub use calendar::Calendar;
pub use charge_mark::ChargeMark;
pub use concurrency::{Concurrency, MOST_SLOTS, Slots};
pub use error::LimitError;
pub use fixed_window::{FixedWindow, Window, Windows};
pub use gcra::Gcra;
pub use leaky_bucket::{Meter, Shaper};
pub use rate::Rate;
pub use recovery::Recovery;
pub use sliding_log::{LONGEST_LOG, Log, SlidingLog};
pub use sliding_window::{MOST_PARTS, Sliding, SlidingWindow};
pub use token_bucket::TokenBucket;

pub(crate) use bucket::Bucket;
pub(crate) use shape::Shape;

use self::leased::Ledger;
use crate::decision::Decision;
use crate::receipt_id::ReceiptId;
use crate::time::{Micros, Timestamp};

/// A validated limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    algorithm: Algorithm,
    shape: Shape,
}

/// The algorithms, with their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Separate burst and sustained rate.
    TokenBucket(TokenBucket),
    /// The token bucket, with a single timestamp as its state.
    Gcra(Gcra),
    /// A leaky bucket that denies requests that would overflow it.
    Meter(Meter),
    /// A leaky bucket that delays requests so that they leave at a fixed rate.
    Shaper(Shaper),
    /// One counter per window.
    FixedWindow(FixedWindow),
    /// The previous window weighted by its overlap.
    SlidingWindow(SlidingWindow),
    /// Exact: records every admission.
    SlidingLog(SlidingLog),
    /// At most a number of slots held at the same time.
    Concurrency(Concurrency),
}

/// The state of one key under a limit. A new key has the state [`Limit::fresh`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The state of a token bucket or a meter.
    Level(Level),
    /// The state of GCRA or a shaper.
    Tat(Tat),
    /// The state of a fixed window.
    Window(Window),
    /// The state of a sliding window.
    Sliding(Sliding),
    /// The state of a sliding log.
    Log(Log),
    /// The state of a concurrency limit.
    Slots(Slots),
    /// The state of a bucket or a window that is partly leased.
    Leased(Box<Ledger>),
}

/// Runs `$body` with the algorithm's limit and state. The three kinds of bucket share one arm, with their [`Bucket`].
macro_rules! with_own_state {
    ($limit:expr, $state:expr; bucket($bucket:ident, $line:ident) => $on_bucket:expr;
     shaper($shaper:ident, $end:ident) => $on_shaper:expr;
     $($variant:ident($own:ident, $own_state:ident) => $body:expr;)*) => {
        match (&$limit.algorithm, $state) {
            (Algorithm::TokenBucket(TokenBucket { bucket: $bucket }), State::Level($line)) => $on_bucket,
            (Algorithm::Meter(Meter { bucket: $bucket }), State::Level($line)) => $on_bucket,
            (Algorithm::Gcra(Gcra { bucket: $bucket }), State::Tat($line)) => $on_bucket,
            (Algorithm::Shaper($shaper), State::Tat($end)) => $on_shaper,
            $((Algorithm::$variant($own), own_state!($variant $own_state)) => $body,)*
            (algorithm, state) => not_its_state(algorithm, &*state),
        }
    };
}

macro_rules! own_state {
    (FixedWindow $state:ident) => {
        State::Window($state)
    };
    (SlidingWindow $state:ident) => {
        State::Sliding($state)
    };
    (SlidingLog $state:ident) => {
        State::Log($state)
    };
    (Concurrency $state:ident) => {
        State::Slots($state)
    };
}

#[cold]
fn not_its_state(algorithm: &Algorithm, state: &State) -> ! {
    panic!("{state:?} is not a state of {algorithm:?}; Limit::carry turns one limit's state into another's")
}

/// Methods that take a state panic if it belongs to another algorithm. [`Limit::carry`] converts a state.
impl Limit {
    /// The algorithm and its parameters.
    #[must_use]
    pub const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The most that the limit can admit at once.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match &self.algorithm {
            Algorithm::TokenBucket(limit) => limit.capacity(),
            Algorithm::Gcra(limit) => limit.capacity(),
            Algorithm::Meter(limit) => limit.capacity(),
            Algorithm::Shaper(limit) => limit.capacity(),
            Algorithm::FixedWindow(limit) => limit.limit(),
            Algorithm::SlidingWindow(limit) => limit.limit(),
            Algorithm::SlidingLog(limit) => limit.limit(),
            Algorithm::Concurrency(limit) => limit.slots(),
        }
    }

    /// The time in which the whole [capacity](Limit::capacity) recovers: the length of a window (for months and years
    /// the longest), or the time in which an empty bucket fills. `None` for slots, which recover when they are released.
    ///
    /// ```
    /// use tidegate_core::{Limit, Micros};
    ///
    /// let window = |limit: &str| Ok::<_, tidegate_core::NotationError>(limit.parse::<Limit>()?.window());
    /// assert_eq!(window("20/s burst 50")?, Some(Micros::from_millis(2_500)));
    /// assert_eq!(window("fixed 1000/day")?, Some(Micros::from_secs(86_400)));
    /// assert_eq!(window("concurrent 10 ttl 30s")?, None);
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    #[must_use]
    #[inline]
    pub const fn window(&self) -> Option<Micros> {
        self.recovery().window()
    }

    /// The longest [delay](Decision::delay) of a request. `None` if requests are never delayed.
    #[must_use]
    #[inline]
    pub const fn longest_delay(&self) -> Option<Micros> {
        match &self.algorithm {
            Algorithm::Shaper(limit) if limit.capacity() > 1 => self.window(),
            _ => None,
        }
    }

    /// Returns `true` if admissions hold slots, which must be released.
    #[must_use]
    pub const fn holds_slots(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrency(_))
    }

    /// Whether the state belongs to the algorithm.
    pub(crate) fn is_state(&self, state: &State) -> bool {
        match (&self.algorithm, state) {
            (_, State::Leased(ledger)) => self.is_leasable() && self.is_state(ledger.plain()),
            (Algorithm::TokenBucket(_) | Algorithm::Meter(_), State::Level(_))
            | (Algorithm::Gcra(_) | Algorithm::Shaper(_), State::Tat(_))
            | (Algorithm::FixedWindow(_), State::Window(_))
            | (Algorithm::SlidingWindow(_), State::Sliding(_))
            | (Algorithm::SlidingLog(_), State::Log(_))
            | (Algorithm::Concurrency(_), State::Slots(_)) => true,
            (_, _) => false,
        }
    }

    pub(crate) const fn shape(&self) -> Shape {
        self.shape
    }

    /// The state of a new key: nothing spent.
    #[must_use]
    pub fn fresh(&self) -> State {
        match self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::Meter(_) => State::Level(Level::default()),
            Algorithm::Gcra(_) | Algorithm::Shaper(_) => State::Tat(Tat::default()),
            Algorithm::FixedWindow(_) => State::Window(Window::default()),
            Algorithm::SlidingWindow(_) => State::Sliding(Sliding::default()),
            Algorithm::SlidingLog(_) => State::Log(Log::default()),
            Algorithm::Concurrency(_) => State::Slots(Slots::default()),
        }
    }

    /// Decides a request for `cost` at `now`, and charges it if it is admitted. A denial changes the state only as
    /// [`Limit::resync`] does.
    ///
    /// ```
    /// use tidegate_core::{Limit, Micros, Timestamp};
    ///
    /// let limit: Limit = "2/s".parse()?;
    /// let mut state = limit.fresh();
    /// let now = Timestamp::from_secs(1_000);
    /// assert!(limit.decide(&mut state, 1, now).is_allowed());
    /// assert!(limit.decide(&mut state, 1, now).is_allowed());
    /// let denied = limit.decide(&mut state, 1, now);
    /// assert_eq!(denied.retry_after(), Some(Micros::from_millis(500)));
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    pub fn decide(&self, state: &mut State, cost: u64, now: Timestamp) -> Decision {
        self.decide_tracking_change(state, cost, now).0
    }

    /// Like [`Limit::decide`], and also returns whether the state has changed.
    #[inline]
    pub(crate) fn decide_tracking_change(&self, state: &mut State, cost: u64, now: Timestamp) -> (Decision, bool) {
        match (&self.algorithm, &mut *state) {
            (
                Algorithm::TokenBucket(TokenBucket { bucket }) | Algorithm::Meter(Meter { bucket }),
                State::Level(level),
            ) => bucket.decide(level, cost, now),
            (Algorithm::Gcra(Gcra { bucket }), State::Tat(tat)) => bucket.decide(tat, cost, now),
            (Algorithm::Shaper(shaper), State::Tat(end)) => shaper.decide(end, cost, now),
            (_, State::Leased(_)) => (self.decide_leased(state, cost, now), true),
            _ => {
                let moved = self.resync(state, now);
                let decision = self.evaluate_present(state, cost, now);
                let spend = decision.is_allowed() && cost > 0;
                if spend {
                    self.charge(state, cost, now, ReceiptId::ANONYMOUS);
                }
                (decision, spend || moved)
            }
        }
    }

    /// The decision that [`Limit::decide`] would make, without spending.
    #[must_use]
    pub fn evaluate(&self, state: &State, cost: u64, now: Timestamp) -> Decision {
        if self.is_ahead(state, now) {
            let mut moved = state.clone();
            self.move_to(&mut moved, now);
            return self.evaluate_present(&moved, cost, now);
        }
        match state {
            State::Leased(ledger) => ledger.evaluate(self, cost, now),
            _ => self.evaluate_present(state, cost, now),
        }
    }

    /// The decision on a state that is not [ahead](Limit::is_ahead).
    fn evaluate_present(&self, state: &State, cost: u64, now: Timestamp) -> Decision {
        with_own_state!(self, state;
            bucket(bucket, line) => bucket.evaluate(line, cost, now);
            shaper(shaper, end) => shaper.evaluate(end, cost, now);
            FixedWindow(limit, window) => limit.evaluate(window, cost, now);
            SlidingWindow(limit, sliding) => limit.evaluate(sliding, cost, now);
            SlidingLog(limit, log) => limit.evaluate(log, cost, now);
            Concurrency(limit, slots) => limit.evaluate(slots, cost, now);
        )
    }

    /// Charges `cost` even if there is no room for it, up to a debt of one capacity. Slots are held under `id`.
    pub fn charge(&self, state: &mut State, cost: u64, now: Timestamp, id: ReceiptId) -> ChargeMark {
        if let Some(mark) = Ledger::change(state, |ledger| ledger.charge(self, cost, now)) {
            return mark;
        }
        with_own_state!(self, state;
            bucket(bucket, line) => { bucket.charge(line, cost, now); ChargeMark::default() };
            shaper(shaper, end) => shaper.charge(end, cost, now);
            FixedWindow(limit, window) => limit.charge(window, cost, now);
            SlidingWindow(limit, sliding) => limit.charge(sliding, cost, now);
            SlidingLog(limit, log) => limit.charge(log, cost, now);
            Concurrency(limit, slots) => limit.charge(slots, cost, now, id);
        )
    }

    /// The most that [`Limit::charge`] can charge before the key reaches its bound on debt.
    #[must_use]
    pub fn chargeable(&self, state: &State, now: Timestamp) -> u64 {
        if let State::Leased(ledger) = state {
            return ledger.chargeable(self, now);
        }
        with_own_state!(self, state;
            bucket(bucket, line) => bucket.chargeable(line, now);
            shaper(shaper, end) => shaper.bucket.chargeable(end, now);
            FixedWindow(limit, window) => limit.chargeable(window, now);
            SlidingWindow(limit, sliding) => limit.chargeable(sliding, now);
            SlidingLog(limit, log) => limit.chargeable(log, now);
            Concurrency(limit, slots) => limit.chargeable(slots, now);
        )
    }

    /// Refunds `cost` of the charge at `mark`, as far as it still counts, and returns the amount. All slots held under `id`
    /// are released.
    pub fn refund(&self, state: &mut State, cost: u64, mark: ChargeMark, now: Timestamp, id: ReceiptId) -> u64 {
        if let Some(given) = Ledger::change(state, |ledger| ledger.refund(self, cost, mark, now)) {
            return given;
        }
        with_own_state!(self, state;
            bucket(bucket, line) => bucket.refund(line, cost, now);
            shaper(shaper, end) => shaper.refund(end, cost, mark, now);
            FixedWindow(limit, window) => limit.refund(window, cost, mark, now);
            SlidingWindow(limit, sliding) => limit.refund(sliding, cost, mark, now);
            SlidingLog(limit, log) => limit.refund(log, cost, mark, now);
            Concurrency(limit, slots) => limit.release(slots, id, mark, now);
        )
    }

    /// Refunds up to `cost` of any spending, and returns the amount. Places in a shaper's queue and held slots belong to
    /// their holders and are not refunded.
    pub fn credit(&self, state: &mut State, cost: u64, now: Timestamp) -> u64 {
        if let Some(given) = Ledger::change(state, |ledger| ledger.credit(self, cost, now)) {
            return given;
        }
        with_own_state!(self, state;
            bucket(bucket, line) => bucket.refund(line, cost, now);
            shaper(_shaper, _end) => 0;
            FixedWindow(limit, window) => limit.credit(window, cost, now);
            SlidingWindow(limit, sliding) => limit.credit(sliding, cost, now);
            SlidingLog(limit, log) => limit.credit(log, cost, now);
            Concurrency(_limit, _slots) => 0;
        )
    }

    /// Restarts the lease held under `id`. `None` if it has ended, or if this limit has no leases.
    pub fn renew(&self, state: &mut State, mark: ChargeMark, now: Timestamp, id: ReceiptId) -> Option<ChargeMark> {
        match (&self.algorithm, state) {
            (Algorithm::Concurrency(limit), State::Slots(slots)) => limit.renew(slots, id, mark, now),
            _ => None,
        }
    }

    /// Returns `true` if a state lies so far in the future that the clock must have stepped back, or its debt exceeds
    /// this limit's bound.
    #[must_use]
    #[inline]
    pub fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        if let State::Leased(_) = state {
            // A ledger moves to the present by itself.
            return false;
        }
        with_own_state!(self, state;
            bucket(bucket, line) => bucket.is_ahead(line, now);
            shaper(shaper, end) => shaper.bucket.is_ahead(end, now);
            FixedWindow(limit, window) => limit.is_ahead(window, now);
            SlidingWindow(limit, sliding) => limit.is_ahead(sliding, now);
            SlidingLog(limit, log) => limit.is_ahead(log, now);
            Concurrency(limit, slots) => limit.is_ahead(slots, now);
        )
    }

    /// Moves a state that [is ahead](Limit::is_ahead) to the present. Returns whether it was.
    #[inline]
    pub fn resync(&self, state: &mut State, now: Timestamp) -> bool {
        let ahead = self.is_ahead(state, now);
        if ahead {
            self.move_to(state, now);
        }
        ahead
    }

    #[cold]
    fn move_to(&self, state: &mut State, now: Timestamp) {
        with_own_state!(self, state;
            bucket(bucket, line) => bucket.resync(line, now);
            shaper(shaper, end) => shaper.bucket.resync(end, now);
            FixedWindow(limit, window) => limit.resync(window, now);
            SlidingWindow(limit, sliding) => limit.resync(sliding, now);
            SlidingLog(limit, log) => limit.resync(log, now);
            Concurrency(limit, slots) => limit.resync(slots, now);
        );
    }

    /// Returns `true` if all spending has recovered. Such a state equals [`Limit::fresh`] and can be forgotten.
    #[must_use]
    pub fn is_recovered(&self, state: &State, now: Timestamp) -> bool {
        if let State::Leased(ledger) = state {
            return ledger.is_recovered(self, now);
        }
        with_own_state!(self, state;
            bucket(bucket, line) => bucket.is_recovered(line, now);
            shaper(shaper, end) => shaper.bucket.is_recovered(end, now);
            FixedWindow(limit, window) => limit.is_recovered(window, now);
            SlidingWindow(limit, sliding) => limit.is_recovered(sliding, now);
            SlidingLog(limit, log) => limit.is_recovered(log, now);
            Concurrency(limit, slots) => limit.is_recovered(slots, now);
        )
    }
}

macro_rules! limit_from {
    ($($algorithm:ident),*) => {$(
        impl From<$algorithm> for Limit {
            fn from(limit: $algorithm) -> Limit {
                let algorithm = Algorithm::$algorithm(limit);
                Limit { shape: Shape::of(&algorithm), algorithm }
            }
        }
    )*};
}
limit_from!(TokenBucket, Gcra, Meter, Shaper, FixedWindow, SlidingWindow, SlidingLog, Concurrency);
