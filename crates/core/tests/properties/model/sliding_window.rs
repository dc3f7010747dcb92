//! Sliding window counter: everything ever spent, with the part of time that it was spent in.

use tidegate_core::limit::SlidingWindow;

use super::{Model, Spot};

#[derive(Clone)]
pub(crate) struct SlidingWindowModel {
    limit: u64,
    parts: i128,
    /// The length of a part.
    part: i128,
    /// Parts, by number, and what was spent in them. A clock that steps back to the epoch puts some before it.
    history: Vec<(i128, u64)>,
    /// The last part in which anything happened.
    latest: i128,
}

impl SlidingWindowModel {
    pub(crate) fn new(limit: SlidingWindow) -> SlidingWindowModel {
        let parts = i128::from(limit.parts());
        let part = i128::from(limit.window().get()) / parts;
        SlidingWindowModel { limit: limit.limit(), parts, part, history: Vec::new(), latest: 0 }
    }

    /// The instant that counts: the start of the latest part, if the clock has stepped back behind it.
    fn instant(&self, now: u64) -> i128 {
        i128::from(now).max(self.latest * self.part)
    }

    /// The estimate, times the length of a part: each part counts by how much of it the window covers, but the present
    /// one counts in full.
    fn weight(&self, now: u64) -> i128 {
        let now = self.instant(now);
        let window_began = now - self.parts * self.part;
        let weigh = |&(number, cost): &(i128, u64)| {
            let ends = (number + 1) * self.part;
            let covered = if now < ends { self.part } else { (ends - window_began).clamp(0, self.part) };
            covered * i128::from(cost)
        };
        self.history.iter().map(weigh).sum()
    }

    fn touch(&mut self, now: u64) -> i128 {
        self.latest = self.instant(now) / self.part;
        self.latest
    }

    fn take_off(&mut self, cost: u64, number: i128) -> u64 {
        let mut left = cost;
        for (_, cost) in self.history.iter_mut().filter(|(part, _)| *part == number) {
            let given = left.min(*cost);
            *cost -= given;
            left -= given;
        }
        cost - left
    }
}

impl Model for SlidingWindowModel {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn fits(&self, cost: u64, now: u64) -> bool {
        self.weight(now) + i128::from(cost) * self.part <= i128::from(self.limit) * self.part
    }

    fn counts(&self, now: u64) -> bool {
        self.weight(now) > 0
    }

    fn resync(&mut self, now: u64) -> bool {
        let present = i128::from(now) / self.part;
        let ahead = self.latest > present + self.parts;
        if ahead {
            // To the part that comes next, whose start has seen nothing fade yet.
            for (number, _) in &mut self.history {
                *number -= self.latest - (present + 1);
            }
            self.latest = present + 1;
        }
        ahead
    }

    fn charge(&mut self, cost: u64, now: u64, _id: u128) -> Spot {
        let estimate = u64::try_from((self.weight(now) + self.part - 1) / self.part).unwrap();
        let present = self.touch(now);
        self.history.push((present, cost.min((2 * self.limit).saturating_sub(estimate))));
        present
    }

    fn refund(&mut self, cost: u64, spot: Spot, now: u64, _id: u128) -> u64 {
        let present = self.touch(now);
        let still_counts = (present - self.parts..=present).contains(&spot);
        if still_counts { self.take_off(cost, spot) } else { 0 }
    }

    fn credit(&mut self, cost: u64, now: u64) -> u64 {
        let present = self.touch(now);
        let youngest_first = (present - self.parts..=present).rev();
        youngest_first.fold(0, |given, number| given + self.take_off(cost - given, number))
    }
}
