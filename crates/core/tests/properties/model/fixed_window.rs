//! Fixed window: all spending, by window.

use std::sync::LazyLock;

use tidegate_core::limit::{Calendar, FixedWindow, Windows};

use super::{Model, ModelMark};

const DAY: u64 = 86_400_000_000;

#[derive(Clone)]
pub(crate) struct FixedWindowModel {
    limit: u64,
    windows: Windows,
    /// The spending in each window, by its number.
    history: Vec<(u64, u64)>,
    /// The last window in which anything happened.
    latest: u64,
}

impl FixedWindowModel {
    pub(crate) fn new(limit: FixedWindow) -> FixedWindowModel {
        FixedWindowModel { limit: limit.limit(), windows: limit.windows(), history: Vec::new(), latest: 0 }
    }

    /// The number of the window that applies. If the clock has stepped back, later than that of the clock.
    fn current(&self, now: u64) -> u64 {
        self.latest.max(number_of(self.windows, now))
    }

    fn spent(&self, now: u64) -> u64 {
        let current = self.current(now);
        self.history.iter().filter(|(window, _)| *window == current).map(|(_, cost)| cost).sum()
    }

    fn take_off(&mut self, cost: u64, now: u64) -> u64 {
        let (current, given) = (self.current(now), cost.min(self.spent(now)));
        let left = self.spent(now) - given;
        self.history.retain(|(window, _)| *window != current);
        self.history.push((current, left));
        self.latest = current;
        given
    }
}

impl Model for FixedWindowModel {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn fits(&self, cost: u64, now: u64) -> bool {
        self.spent(now) + cost <= self.limit
    }

    fn counts(&self, now: u64) -> bool {
        self.spent(now) > 0
    }

    fn resync(&mut self, now: u64) -> bool {
        let present = number_of(self.windows, now);
        let ahead = self.latest > present + 1;
        if ahead {
            let spent = self.spent(now);
            self.history = vec![(present, spent)];
            self.latest = present;
        }
        ahead
    }

    fn charge(&mut self, cost: u64, now: u64, _id: u128) -> ModelMark {
        let (current, spent) = (self.current(now), self.spent(now));
        self.history.push((current, cost.min((2 * self.limit).saturating_sub(spent))));
        self.latest = current;
        ModelMark::from(current)
    }

    fn refund(&mut self, cost: u64, spot: ModelMark, now: u64, _id: u128) -> u64 {
        if spot == ModelMark::from(self.current(now)) { self.take_off(cost, now) } else { 0 }
    }

    fn credit(&mut self, cost: u64, now: u64) -> u64 {
        self.take_off(cost, now)
    }

    fn reset_after(&self, now: u64) -> u64 {
        end_of(self.windows, self.current(now)) - now
    }
}

/// The number of the window that contains `now`, counted from the epoch.
pub(crate) fn number_of(windows: Windows, now: u64) -> u64 {
    match windows {
        Windows::Every(length) => now / length.get(),
        Windows::Calendar(calendar) => {
            let days = starts_of(calendar);
            days.partition_point(|&day| day <= now / DAY) as u64 - 1
        }
    }
}

fn end_of(windows: Windows, number: u64) -> u64 {
    match windows {
        Windows::Every(length) => (number + 1) * length.get(),
        Windows::Calendar(calendar) => starts_of(calendar)[usize::try_from(number).unwrap() + 1] * DAY,
    }
}

/// The days on which each unit of a calendar begins, found by counting day by day.
fn starts_of(calendar: Calendar) -> &'static [u64] {
    static STARTS: LazyLock<[Vec<u64>; 4]> = LazyLock::new(walk);
    let [days, weeks, months, years] = &*STARTS;
    match calendar {
        Calendar::Day => days,
        Calendar::Week => weeks,
        Calendar::Month => months,
        Calendar::Year => years,
    }
}

fn walk() -> [Vec<u64>; 4] {
    let [mut days, mut weeks, mut months, mut years] = [const { Vec::new() }; 4];
    // 1970-01-01 was a Thursday. The first units begin at the epoch.
    let (mut year, mut month, mut day_of_month, mut weekday) = (1970, 1, 1, 4);
    for day in 0..110_000 {
        days.push(day);
        if weekday == 1 || day == 0 {
            weeks.push(day);
        }
        if day_of_month == 1 {
            months.push(day);
            if month == 1 {
                years.push(day);
            }
        }
        weekday = weekday % 7 + 1;
        day_of_month += 1;
        if day_of_month > length_of(month, year) {
            (month, day_of_month) = (month % 12 + 1, 1);
            year += u64::from(month == 1);
        }
    }
    [days, weeks, months, years]
}

fn length_of(month: u64, year: u64) -> u64 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
