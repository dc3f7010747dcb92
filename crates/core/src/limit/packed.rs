//! States in sixteen bytes, for stores that keep many of them.

use smallvec::SmallVec;

use super::bucket::{Bucket, Level, SpendingLine, Tat};
use super::fixed_window::{FixedWindow, Window};
use super::sliding_window::Sliding;
use super::{Algorithm, Gcra, Limit, Meter, State, TokenBucket};
use crate::decision::Decision;
use crate::time::Timestamp;

/// A state of sixteen bytes.
pub(crate) type PackedState = [u64; 2];

/// A state that always fits into a [`PackedState`].
trait PackState: Sized {
    fn pack(&self) -> PackedState;
    fn unpack(packed: PackedState) -> Self;
}

impl PackState for Level {
    #[inline]
    fn pack(&self) -> PackedState {
        [self.spent, self.at.as_micros()]
    }

    #[inline]
    fn unpack([spent, at]: PackedState) -> Level {
        Level { spent, at: Timestamp::read_back(at) }
    }
}

impl PackState for Tat {
    #[inline]
    fn pack(&self) -> PackedState {
        [self.whole, self.part]
    }

    #[inline]
    fn unpack([whole, part]: PackedState) -> Tat {
        Tat { whole, part }
    }
}

impl PackState for Window {
    #[inline]
    fn pack(&self) -> PackedState {
        [self.start.as_micros(), self.spent]
    }

    #[inline]
    fn unpack([start, spent]: PackedState) -> Window {
        Window { start: Timestamp::from_micros(start), spent }
    }
}

/// The state of a sliding window with one part: 44 bits for its number (milliseconds until the year 2527), 42 for each counter.
impl PackState for Sliding {
    fn pack(&self) -> PackedState {
        let counter = |index| self.spent.get(index).copied().unwrap_or(0);
        let (present, previous) = (counter(0), counter(1));
        [self.part << 20 | present >> 22, present << 42 | previous]
    }

    fn unpack([high, low]: PackedState) -> Sliding {
        let present = (high & ((1 << 20) - 1)) << 22 | low >> 42;
        let previous = low & ((1 << 42) - 1);
        Sliding { part: high >> 20, spent: SmallVec::from_buf([present, previous]) }
    }
}

impl Limit {
    /// Whether all states of this limit can be packed.
    #[inline]
    pub(crate) const fn packs(&self) -> bool {
        match &self.algorithm {
            Algorithm::TokenBucket(_)
            | Algorithm::Meter(_)
            | Algorithm::Gcra(_)
            | Algorithm::Shaper(_)
            | Algorithm::FixedWindow(_) => true,
            Algorithm::SlidingWindow(limit) => limit.parts() == 1,
            Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => false,
        }
    }

    /// Packs a state; `None` if the states of this limit do not fit.
    pub(crate) fn pack(&self, state: &State) -> Option<PackedState> {
        match state {
            State::Level(level) => Some(level.pack()),
            State::Tat(tat) => Some(tat.pack()),
            State::Window(window) => Some(window.pack()),
            State::Sliding(sliding) if self.packs() => Some(sliding.pack()),
            State::Sliding(_) | State::Log(_) | State::Slots(_) | State::Leased(_) => None,
        }
    }

    /// The state that this limit [packed](Limit::pack).
    pub(crate) fn unpack(&self, packed: PackedState) -> State {
        match &self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::Meter(_) => State::Level(Level::unpack(packed)),
            Algorithm::Gcra(_) | Algorithm::Shaper(_) => State::Tat(Tat::unpack(packed)),
            Algorithm::FixedWindow(_) => State::Window(Window::unpack(packed)),
            Algorithm::SlidingWindow(_) => State::Sliding(Sliding::unpack(packed)),
            Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => self.fresh(),
        }
    }

    /// Decides on a packed state, and updates it.
    #[inline(always)]
    pub(crate) fn decide_packed(&self, packed: &mut PackedState, cost: u64, now: Timestamp) -> Decision {
        match &self.algorithm {
            Algorithm::TokenBucket(TokenBucket { bucket }) | Algorithm::Meter(Meter { bucket }) => {
                decide_line::<Level>(bucket, packed, cost, now)
            }
            Algorithm::Gcra(Gcra { bucket }) => decide_line::<Tat>(bucket, packed, cost, now),
            // Functions that are not inlined take the state by value. A reference would force it from registers into the stack
            // frame for the other algorithms too.
            Algorithm::FixedWindow(limit) => {
                let (after, decision) = decide_window(limit, *packed, cost, now);
                *packed = after;
                decision
            }
            _ => {
                let (after, decision) = self.decide_unpacked(*packed, cost, now);
                *packed = after;
                decision
            }
        }
    }

    #[inline(never)]
    fn decide_unpacked(&self, packed: PackedState, cost: u64, now: Timestamp) -> (PackedState, Decision) {
        let mut state = self.unpack(packed);
        let decision = self.decide(&mut state, cost, now);
        (self.pack(&state).unwrap_or(packed), decision)
    }
}

#[inline(always)]
fn decide_line<L: SpendingLine + PackState>(
    bucket: &Bucket,
    packed: &mut PackedState,
    cost: u64,
    now: Timestamp,
) -> Decision {
    let mut line = L::unpack(*packed);
    let (decision, changed) = bucket.decide(&mut line, cost, now);
    if changed {
        *packed = line.pack();
    }
    decision
}

#[inline(never)]
fn decide_window(limit: &FixedWindow, packed: PackedState, cost: u64, now: Timestamp) -> (PackedState, Decision) {
    let mut window = Window::unpack(packed);
    if limit.is_ahead(&window, now) {
        limit.resync(&mut window, now);
    }
    let decision = limit.evaluate(&window, cost, now);
    if decision.is_allowed() && cost > 0 {
        limit.charge(&mut window, cost, now);
    }
    (window.pack(), decision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MAX_EXACT;

    #[test]
    fn a_packed_sliding_window_unpacks_to_itself() {
        for (part, present, previous) in [(0, 0, 0), (1, 2, 3), (MAX_EXACT / 1_000, 1 << 41, (1 << 41) - 1)] {
            let state = Sliding { part, spent: SmallVec::from_buf([present, previous]) };
            assert_eq!(Sliding::unpack(state.pack()), state);
        }
    }
}
