//! States in sixteen bytes, for stores that keep many.

use smallvec::SmallVec;

use super::bucket::{Bucket, Level, Line, Tat};
use super::fixed_window::{FixedWindow, Window};
use super::sliding_window::Sliding;
use super::{Algorithm, Gcra, Limit, Meter, State, TokenBucket};
use crate::decision::Decision;
use crate::time::Timestamp;

/// Sixteen bytes of state.
pub(crate) type Cell = [u64; 2];

/// A state that always fits in a cell.
trait Packed: Sized {
    fn pack(&self) -> Cell;
    fn unpack(cell: Cell) -> Self;
}

impl Packed for Level {
    #[inline]
    fn pack(&self) -> Cell {
        [self.spent, self.at.as_micros()]
    }

    #[inline]
    fn unpack([spent, at]: Cell) -> Level {
        Level { spent, at: Timestamp::read_back(at) }
    }
}

impl Packed for Tat {
    #[inline]
    fn pack(&self) -> Cell {
        [self.whole, self.part]
    }

    #[inline]
    fn unpack([whole, part]: Cell) -> Tat {
        Tat { whole, part }
    }
}

impl Packed for Window {
    #[inline]
    fn pack(&self) -> Cell {
        [self.start.as_micros(), self.spent]
    }

    #[inline]
    fn unpack([start, spent]: Cell) -> Window {
        Window { start: Timestamp::from_micros(start), spent }
    }
}

/// Of a sliding window with one part: 44 bits for its number (milliseconds until the year 2527), 42 for each counter.
impl Packed for Sliding {
    fn pack(&self) -> Cell {
        let counter = |index| self.spent.get(index).copied().unwrap_or(0);
        let (present, previous) = (counter(0), counter(1));
        [self.part << 20 | present >> 22, present << 42 | previous]
    }

    fn unpack([high, low]: Cell) -> Sliding {
        let present = (high & ((1 << 20) - 1)) << 22 | low >> 42;
        let previous = low & ((1 << 42) - 1);
        Sliding { part: high >> 20, spent: SmallVec::from_buf([present, previous]) }
    }
}

impl Limit {
    /// Whether all states of this limit fit in a cell.
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

    /// The state as a cell; `None` if this limit's states do not fit.
    pub(crate) fn pack(&self, state: &State) -> Option<Cell> {
        match state {
            State::Level(level) => Some(level.pack()),
            State::Tat(tat) => Some(tat.pack()),
            State::Window(window) => Some(window.pack()),
            State::Sliding(sliding) if self.packs() => Some(sliding.pack()),
            State::Sliding(_) | State::Log(_) | State::Slots(_) => None,
        }
    }

    /// The state that this limit [packed](Limit::pack).
    pub(crate) fn unpack(&self, cell: Cell) -> State {
        match &self.algorithm {
            Algorithm::TokenBucket(_) | Algorithm::Meter(_) => State::Level(Level::unpack(cell)),
            Algorithm::Gcra(_) | Algorithm::Shaper(_) => State::Tat(Tat::unpack(cell)),
            Algorithm::FixedWindow(_) => State::Window(Window::unpack(cell)),
            Algorithm::SlidingWindow(_) => State::Sliding(Sliding::unpack(cell)),
            Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => self.fresh(),
        }
    }

    /// Decides on a packed state, and changes it if the decision does.
    #[inline(always)]
    pub(crate) fn decide_packed(&self, cell: &mut Cell, cost: u64, now: Timestamp) -> Decision {
        match &self.algorithm {
            Algorithm::TokenBucket(TokenBucket { bucket }) | Algorithm::Meter(Meter { bucket }) => {
                decide_line::<Level>(bucket, cell, cost, now)
            }
            Algorithm::Gcra(Gcra { bucket }) => decide_line::<Tat>(bucket, cell, cost, now),
            // What is not inlined gets a copy of the cell, or else the cell would lie in memory for the others too.
            Algorithm::FixedWindow(limit) => {
                let (after, decision) = decide_window(limit, *cell, cost, now);
                *cell = after;
                decision
            }
            _ => {
                let (after, decision) = self.decide_unpacked(*cell, cost, now);
                *cell = after;
                decision
            }
        }
    }

    #[inline(never)]
    fn decide_unpacked(&self, cell: Cell, cost: u64, now: Timestamp) -> (Cell, Decision) {
        let mut state = self.unpack(cell);
        let decision = self.decide(&mut state, cost, now);
        (self.pack(&state).unwrap_or(cell), decision)
    }
}

#[inline(always)]
fn decide_line<L: Line + Packed>(bucket: &Bucket, cell: &mut Cell, cost: u64, now: Timestamp) -> Decision {
    let mut line = L::unpack(*cell);
    let (decision, changed) = bucket.decide(&mut line, cost, now);
    if changed {
        *cell = line.pack();
    }
    decision
}

#[inline(never)]
fn decide_window(limit: &FixedWindow, cell: Cell, cost: u64, now: Timestamp) -> (Cell, Decision) {
    let mut window = Window::unpack(cell);
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
