//! Fixed window: one counter that restarts with every window.
//!
//! Cheap, easy to explain, and well suited to long quotas. Its weakness is the boundary between windows, around which twice
//! the limit can pass in a short time. Windows are aligned to the epoch, or to the UTC calendar, so that every node agrees
//! on them.

use super::bounds::{LONGEST_PERIOD, SHORTEST_WINDOW};
use super::calendar::Calendar;
use super::charge_mark::ChargeMark;
use super::error::LimitError;
use super::floor::Part;
use crate::decision::{Decision, Outcome};
use crate::time::{MAX_EXACT, Micros, Timestamp};

/// At most `limit` in every window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u64,
    windows: Windows,
}

/// The division of time into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Windows {
    /// Windows of one length, counted from the epoch.
    Every(Micros),
    /// Windows of the UTC calendar.
    Calendar(Calendar),
}

/// The spending in the window that began at `start`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The beginning of the window.
    pub start: Timestamp,
    /// The sum of costs spent in the window.
    pub spent: u64,
}

impl Windows {
    pub(crate) fn around(&self, now: Timestamp) -> (Timestamp, Timestamp) {
        match *self {
            Windows::Every(length) => {
                let start = now - Micros::new(now.as_micros() % length.get());
                (start, start + length)
            }
            Windows::Calendar(calendar) => calendar.around(now),
        }
    }
}

impl FixedWindow {
    /// At most `limit` in each `window`, counted from the epoch. A limit of zero admits nothing.
    ///
    /// # Errors
    /// A window shorter than a millisecond or longer than 366 days, or a limit above 2^52.
    pub fn new(limit: u64, window: impl Into<Micros>) -> Result<FixedWindow, LimitError> {
        let window = window_length(window.into())?;
        FixedWindow::with(limit, Windows::Every(window))
    }

    /// At most `limit` in each day, week, month or year of the UTC calendar.
    ///
    /// # Errors
    /// A limit above 2^52.
    pub fn calendar(limit: u64, calendar: Calendar) -> Result<FixedWindow, LimitError> {
        FixedWindow::with(limit, Windows::Calendar(calendar))
    }

    fn with(limit: u64, windows: Windows) -> Result<FixedWindow, LimitError> {
        let most = MAX_EXACT / 2;
        if limit > most {
            let instead = "count in larger units".to_owned();
            return Err(LimitError::CountTooLarge { limit, most, what: "a fixed window", instead });
        }
        Ok(FixedWindow { limit, windows })
    }

    /// The most that one window admits.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The division of time into windows.
    #[must_use]
    pub const fn windows(&self) -> Windows {
        self.windows
    }

    /// The window to which spending at `now` belongs, and its end.
    ///
    /// A window in the future was opened before the clock stepped back. It still counts, so that nothing is admitted twice.
    fn current(&self, window: &Window, now: Timestamp) -> (Window, Timestamp) {
        let (start, end) = self.windows.around(now);
        if window.start > start {
            (*window, self.windows.around(window.start).1)
        } else if window.start == start {
            (*window, end)
        } else {
            (Window { start, spent: 0 }, end)
        }
    }

    pub(super) fn evaluate(&self, window: &Window, cost: u64, now: Timestamp) -> Decision {
        let (window, end) = self.current(window, now);
        let room = self.limit.saturating_sub(window.spent);
        let reset_after = end.since(now);
        let (outcome, remaining) = if cost > self.limit {
            (Outcome::TooLarge { max: self.limit }, room)
        } else if window.spent + cost > self.limit {
            (Outcome::Deny { retry_after: reset_after.max(Micros::new(1)) }, room)
        } else {
            (Outcome::Allow { delay: Micros::ZERO }, room - cost)
        };
        Decision { outcome, limit: self.limit, remaining, reset_after }
    }

    pub(super) fn chargeable(&self, window: &Window, now: Timestamp) -> u64 {
        (2 * self.limit).saturating_sub(self.current(window, now).0.spent)
    }

    pub(super) fn charge(&self, window: &mut Window, cost: u64, now: Timestamp) -> ChargeMark {
        *window = self.current(window, now).0;
        // The debt is at most one limit. A larger debt, inherited from a larger limit, stays as it is.
        window.spent = window.spent.saturating_add(cost).min((2 * self.limit).max(window.spent));
        ChargeMark(window.start.as_micros(), 0)
    }

    /// A charge in a past window is not refunded.
    pub(super) fn refund(&self, window: &mut Window, cost: u64, mark: ChargeMark, now: Timestamp) -> u64 {
        if self.current(window, now).0.start.as_micros() == mark.0 { self.credit(window, cost, now) } else { 0 }
    }

    pub(super) fn credit(&self, window: &mut Window, cost: u64, now: Timestamp) -> u64 {
        *window = self.current(window, now).0;
        let given = cost.min(window.spent);
        window.spent -= given;
        given
    }

    /// Whether the window lies beyond the next one.
    pub(super) fn is_ahead(&self, window: &Window, now: Timestamp) -> bool {
        window.start > self.windows.around(now).1
    }

    /// Moves the window with its spending to the present. So after a long step of the clock, a key waits for the end of one
    /// window at most.
    pub(super) fn resync(&self, window: &mut Window, now: Timestamp) {
        window.start = self.windows.around(now).0;
    }

    pub(super) fn is_recovered(&self, window: &Window, now: Timestamp) -> bool {
        self.spent(window, now) == 0
    }

    pub(super) fn spent(&self, window: &Window, now: Timestamp) -> u64 {
        self.current(window, now).0.spent
    }

    pub(super) fn part_at(&self, window: &Window, now: Timestamp) -> Part {
        let (window, end) = self.current(window, now);
        Part { number: window.start.as_micros(), end }
    }

    /// Raises the spending in the present window to at least `least`.
    pub(super) fn raise(&self, window: &mut Window, least: u64, now: Timestamp) {
        *window = self.current(window, now).0;
        window.spent = window.spent.max(least);
    }
}

pub(super) fn window_length(window: Micros) -> Result<Micros, LimitError> {
    if window < SHORTEST_WINDOW {
        return Err(LimitError::WindowTooShort { window, least: SHORTEST_WINDOW });
    }
    if window > LONGEST_PERIOD {
        return Err(LimitError::PeriodTooLong { period: window });
    }
    Ok(window)
}
