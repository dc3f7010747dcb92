//! States in sixteen bytes.

use smallvec::SmallVec;

use super::table::Cell;
use crate::limit::{Algorithm, Level, Limit, Sliding, State, Tat, Window};
use crate::time::Timestamp;

/// Whether all states of this limit fit in a cell.
pub(super) const fn fits(limit: &Limit) -> bool {
    match limit.algorithm() {
        Algorithm::TokenBucket(_)
        | Algorithm::Meter(_)
        | Algorithm::Gcra(_)
        | Algorithm::Shaper(_)
        | Algorithm::FixedWindow(_) => true,
        Algorithm::SlidingWindow(limit) => limit.parts() == 1,
        Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => false,
    }
}

/// The state as a cell; `None` if it is of a limit whose states do not fit.
#[inline]
pub(super) fn pack(state: &State) -> Option<Cell> {
    match state {
        State::Level(level) => Some([level.spent, level.at.as_micros()]),
        State::Tat(tat) => Some([tat.whole, tat.part]),
        State::Window(window) => Some([window.start.as_micros(), window.spent]),
        State::Sliding(sliding) => match sliding.spent[..] {
            // 44 bits of part number (milliseconds until the year 2527) and 42 for each counter.
            [present, previous] => Some([sliding.part << 20 | present >> 22, present << 42 | previous]),
            _ => None,
        },
        State::Log(_) | State::Slots(_) => None,
    }
}

/// The state that a limit [packed](pack).
#[inline]
pub(super) fn unpack(limit: &Limit, [first, second]: Cell) -> State {
    match limit.algorithm() {
        Algorithm::TokenBucket(_) | Algorithm::Meter(_) => {
            State::Level(Level { spent: first, at: Timestamp::from_micros(second) })
        }
        Algorithm::Gcra(_) | Algorithm::Shaper(_) => State::Tat(Tat { whole: first, part: second }),
        Algorithm::FixedWindow(_) => State::Window(Window { start: Timestamp::from_micros(first), spent: second }),
        Algorithm::SlidingWindow(_) => {
            let present = (first & ((1 << 20) - 1)) << 22 | second >> 42;
            let previous = second & ((1 << 42) - 1);
            State::Sliding(Sliding { part: first >> 20, spent: SmallVec::from_buf([present, previous]) })
        }
        Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => limit.fresh(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MAX_EXACT;

    #[test]
    fn a_packed_sliding_window_unpacks_to_itself() {
        let limit = "sliding 1000/min".parse().unwrap();
        for (part, present, previous) in [(0, 0, 0), (1, 2, 3), (MAX_EXACT / 1_000, 1 << 41, (1 << 41) - 1)] {
            let state = State::Sliding(Sliding { part, spent: SmallVec::from_buf([present, previous]) });
            assert_eq!(unpack(&limit, pack(&state).unwrap()), state);
        }
    }
}
