//! Sliding window counter: the fixed window with its boundary smoothed out, in constant memory.
//!
//! Time is divided into parts of `window / parts`. There is a counter for the present part and for each of the `parts` before it.
//! The oldest is weighted by the share of it that the window still covers. With one part this is the well-known counter
//! that weights the previous window; more parts approximate the exact log more closely.

use smallvec::SmallVec;

use super::bounds::SHORTEST_WINDOW;
use super::charge_mark::ChargeMark;
use super::error::LimitError;
use super::fixed_window::window_length;
use super::floor::Part;
use crate::decision::{Decision, Outcome};
use crate::time::{MAX_EXACT, Micros, Timestamp};

/// Maximum number of parts of a sliding window.
pub const MOST_PARTS: u32 = 360;

/// The largest limit, chosen so that two counters and the number of a part fit in sixteen bytes.
const MOST: u64 = 1 << 40;

/// The largest limit that can be weighted exactly with parts of this length.
const fn most_with(part: u64) -> u64 {
    let most = MAX_EXACT / 4 / part;
    if most < MOST { most } else { MOST }
}

/// At most `limit` in a sliding window, by an estimate. Exactly: at most `limit` in any window aligned to the parts, and at
/// most `2 · limit − 1` in any other window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    limit: u64,
    window: Micros,
    parts: u32,
    part: u64,
}

/// The spending in each part of the window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sliding {
    /// The number of the present part, counted from the epoch.
    pub part: u64,
    /// The sums of costs spent in the present part and in those before it, in this order.
    pub spent: SmallVec<[u64; 2]>,
}

impl Sliding {
    pub(super) fn heap_bytes(&self) -> usize {
        if self.spent.spilled() { self.spent.capacity() * size_of::<u64>() } else { 0 }
    }
}

/// A [`Sliding`] as of some instant.
struct SlidingView<'a> {
    sliding: &'a Sliding,
    /// Number of parts that have begun since the state was written.
    shift: u64,
    /// The present instant, or the instant of the state if the clock has stepped back behind it.
    now: Timestamp,
    /// The time from the beginning of the present part to `now`.
    into: u64,
}

impl SlidingView<'_> {
    /// The sum of costs spent in the part `back` parts before the present one.
    fn spent(&self, back: u64) -> u64 {
        let index = back.checked_sub(self.shift).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.sliding.spent.get(index)).copied().unwrap_or(0)
    }
}

impl SlidingWindow {
    /// The heap size of a state, in bytes: one counter for each part, and one for the oldest part.
    pub(super) const fn heap_bytes(&self) -> usize {
        if self.parts == 1 { 0 } else { (self.parts as usize + 1).next_power_of_two() * size_of::<u64>() }
    }

    /// At most `limit` in a sliding `window`, with one counter for the previous window.
    ///
    /// # Errors
    /// As [`SlidingWindow::with_parts`].
    pub fn new(limit: u64, window: impl Into<Micros>) -> Result<SlidingWindow, LimitError> {
        SlidingWindow::with_parts(limit, window, 1)
    }

    /// At most `limit` in a sliding `window` of `parts` parts. A limit of zero admits nothing.
    ///
    /// # Errors
    /// A window (or a part of one) shorter than a millisecond, one longer than 366 days, a number of parts that does not
    /// divide it, or a limit too large to weight exactly: more parts allow a larger one.
    pub fn with_parts(limit: u64, window: impl Into<Micros>, parts: u32) -> Result<SlidingWindow, LimitError> {
        let window = window_length(window.into())?;
        if parts == 0 || parts > MOST_PARTS || !window.get().is_multiple_of(parts.into()) {
            return Err(LimitError::UnevenParts { window, parts, most: MOST_PARTS });
        }
        let part = window.get() / u64::from(parts);
        if part < SHORTEST_WINDOW.get() {
            return Err(LimitError::WindowTooShort { window: Micros::new(part), least: SHORTEST_WINDOW });
        }
        let most = most_with(part);
        if limit > most {
            let cuts = (1..=MOST_PARTS).filter(|&parts| window.get().is_multiple_of(parts.into()));
            let enough = cuts.map(u64::from).find(|parts| limit <= most_with(window.get() / parts));
            let instead = match enough {
                Some(parts) => format!("cut the window into {parts} parts"),
                None => "use a fixed window".to_owned(),
            };
            return Err(LimitError::CountTooLarge { limit, most, what: "this sliding window", instead });
        }
        Ok(SlidingWindow { limit, window, parts, part })
    }

    /// The most that the window admits.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of the window.
    #[must_use]
    pub const fn window(&self) -> Micros {
        self.window
    }

    /// The number of parts of the window.
    #[must_use]
    pub const fn parts(&self) -> u32 {
        self.parts
    }

    fn view<'a>(&self, sliding: &'a Sliding, now: Timestamp) -> SlidingView<'a> {
        let now = now.max(Timestamp::from_micros(sliding.part * self.part));
        let micros = now.as_micros();
        SlidingView { sliding, shift: micros / self.part - sliding.part, now, into: micros % self.part }
    }

    /// The sum over the parts younger than `back`.
    fn younger_than(&self, view: &SlidingView<'_>, back: u64) -> u64 {
        (0..back).map(|back| view.spent(back)).sum()
    }

    /// The estimate times the length of a part: the parts that lie fully in the window, plus the covered share of the
    /// oldest.
    fn weight(&self, view: &SlidingView<'_>) -> u64 {
        let oldest = u64::from(self.parts);
        view.spent(oldest) * (self.part - view.into) + self.younger_than(view, oldest) * self.part
    }

    pub(super) fn evaluate(&self, sliding: &Sliding, cost: u64, now: Timestamp) -> Decision {
        let view = self.view(sliding, now);
        let room = (self.limit * self.part).saturating_sub(self.weight(&view)) / self.part;
        let (outcome, remaining) = if cost > self.limit {
            (Outcome::TooLarge { max: self.limit }, room)
        } else if self.weight(&view) + cost * self.part > self.limit * self.part {
            let wait = self.wait(&view, cost) + view.now.since(now).get();
            (Outcome::Deny { retry_after: Micros::new(wait) }, room)
        } else {
            (Outcome::Allow { delay: Micros::ZERO }, room - cost)
        };
        let spends = cost > 0 && matches!(outcome, Outcome::Allow { .. });
        Decision { outcome, limit: self.limit, remaining, reset_after: self.reset_after(&view, spends, now) }
    }

    /// The time from `view.now` until the estimate is low enough for `cost`.
    fn wait(&self, view: &SlidingView<'_>, cost: u64) -> u64 {
        let budget = (self.limit - cost) * self.part;
        let oldest = u64::from(self.parts);
        let mut stays = self.younger_than(view, oldest);
        // In `ahead` parts from now, the oldest part will be the one that is `oldest − ahead` parts back now.
        let mut ahead = 0;
        while stays * self.part > budget {
            ahead += 1;
            stays -= view.spent(oldest - ahead);
        }
        let to_spare = budget - stays * self.part;
        let covered = to_spare.checked_div(view.spent(oldest - ahead)).map_or(self.part, |most| most.min(self.part));
        ahead * self.part + (self.part - covered) - view.into
    }

    fn reset_after(&self, view: &SlidingView<'_>, spends: bool, now: Timestamp) -> Micros {
        let oldest = u64::from(self.parts);
        let youngest = if spends { Some(0) } else { (0..=oldest).find(|&back| view.spent(back) > 0) };
        youngest.map_or(Micros::ZERO, |back| {
            let present = view.sliding.part + view.shift;
            Timestamp::from_micros((present + oldest + 1 - back) * self.part).since(now)
        })
    }

    /// Moves the state to the present part.
    fn slide(&self, sliding: &mut Sliding, now: Timestamp) {
        let SlidingView { shift, .. } = self.view(sliding, now);
        let counters = self.parts as usize + 1;
        sliding.spent.resize(counters, 0);
        let shift_within = usize::try_from(shift).map_or(counters, |shift| shift.min(counters));
        sliding.spent.rotate_right(shift_within);
        sliding.spent[..shift_within].fill(0);
        sliding.part += shift;
    }

    pub(super) fn chargeable(&self, sliding: &Sliding, now: Timestamp) -> u64 {
        (2 * self.limit).saturating_sub(self.spent(sliding, now))
    }

    pub(super) fn charge(&self, sliding: &mut Sliding, cost: u64, now: Timestamp) -> ChargeMark {
        self.slide(sliding, now);
        // The debt is at most one limit.
        let estimate = self.spent(sliding, now);
        sliding.spent[0] += cost.min((2 * self.limit).saturating_sub(estimate));
        ChargeMark(sliding.part, 0)
    }

    /// A charge in a part that has left the window is not refunded.
    pub(super) fn refund(&self, sliding: &mut Sliding, cost: u64, mark: ChargeMark, now: Timestamp) -> u64 {
        self.slide(sliding, now);
        let back = sliding.part.checked_sub(mark.0).and_then(|back| usize::try_from(back).ok());
        let Some(spent) = back.and_then(|back| sliding.spent.get_mut(back)) else { return 0 };
        let given = cost.min(*spent);
        *spent -= given;
        given
    }

    /// Refunds the youngest part first, because it would count for longest.
    pub(super) fn credit(&self, sliding: &mut Sliding, cost: u64, now: Timestamp) -> u64 {
        self.slide(sliding, now);
        let mut left = cost;
        for spent in &mut sliding.spent {
            let given = left.min(*spent);
            *spent -= given;
            left -= given;
        }
        cost - left
    }

    /// Whether the state lies more than a whole window ahead.
    pub(super) fn is_ahead(&self, sliding: &Sliding, now: Timestamp) -> bool {
        sliding.part > now.as_micros() / self.part + u64::from(self.parts)
    }

    /// Moves the state with its spending to the next part. In the present part, the spending of the part before it might
    /// expire at once.
    pub(super) fn resync(&self, sliding: &mut Sliding, now: Timestamp) {
        sliding.part = now.as_micros() / self.part + 1;
    }

    pub(super) fn is_recovered(&self, sliding: &Sliding, now: Timestamp) -> bool {
        self.weight(&self.view(sliding, now)) == 0
    }

    /// The estimate, rounded up.
    pub(super) fn spent(&self, sliding: &Sliding, now: Timestamp) -> u64 {
        self.weight(&self.view(sliding, now)).div_ceil(self.part)
    }

    pub(super) fn part_at(&self, sliding: &Sliding, now: Timestamp) -> Part {
        let number = sliding.part + self.view(sliding, now).shift;
        Part { number, end: Timestamp::from_micros((number + 1) * self.part) }
    }

    /// Raises the spending in the present part to at least `least`. The maximum is twice the largest limit that is possible
    /// with parts of this length: more cannot be weighted exactly, and would deny no more.
    pub(super) fn raise(&self, sliding: &mut Sliding, least: u64, now: Timestamp) {
        self.slide(sliding, now);
        sliding.spent[0] = sliding.spent[0].max(least.min(2 * most_with(self.part)));
    }

    /// The length of one part.
    pub(super) const fn part(&self) -> u64 {
        self.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_gap_forgets_the_window_before_it() {
        let limit = SlidingWindow::new(10, Micros::from_secs(1)).unwrap();
        let mut state = Sliding::default();
        limit.charge(&mut state, 10, Timestamp::from_secs(5));
        assert!(!limit.evaluate(&state, 1, Timestamp::from_secs(6)).is_allowed());
        assert_eq!(limit.evaluate(&state, 10, Timestamp::from_secs(7)).remaining, 0);
        assert!(limit.evaluate(&state, 10, Timestamp::from_secs(7)).is_allowed());
    }

    #[test]
    fn the_previous_window_counts_by_its_overlap() {
        let limit = SlidingWindow::new(100, Micros::from_secs(60)).unwrap();
        let mut state = Sliding::default();
        limit.charge(&mut state, 84, Timestamp::from_secs(0));
        limit.charge(&mut state, 36, Timestamp::from_secs(60));
        // A quarter into the window: 36 + 84 · 0.75 = 99.
        let decision = limit.evaluate(&state, 1, Timestamp::from_secs(75));
        assert!(decision.is_allowed());
        assert_eq!(decision.remaining, 0);
        assert!(!limit.evaluate(&state, 2, Timestamp::from_secs(75)).is_allowed());
    }
}
