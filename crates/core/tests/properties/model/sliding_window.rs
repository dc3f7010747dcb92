//! Sliding window counter: all spending, by part.

use tidegate_core::limit::SlidingWindow;

use super::{Model, ModelMark};

#[derive(Clone)]
pub(crate) struct SlidingWindowModel {
    limit: u64,
    parts: i128,
    /// The length of a part.
    part: i128,
    /// The spending in each part, by its number, which is negative if the clock steps back to the epoch.
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

    /// The instant that applies: the start of the latest part if the clock has stepped back before it.
    fn instant(&self, now: u64) -> i128 {
        i128::from(now).max(self.latest * self.part)
    }

    /// The estimate times the length of a part. Each part is weighted by its overlap with the window, and the present part
    /// counts in full.
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
            // Moves to the start of the next part, where no spending has expired yet.
            for (number, _) in &mut self.history {
                *number -= self.latest - (present + 1);
            }
            self.latest = present + 1;
        }
        ahead
    }

    fn charge(&mut self, cost: u64, now: u64, _id: u128) -> ModelMark {
        let estimate = u64::try_from((self.weight(now) + self.part - 1) / self.part).unwrap();
        let present = self.touch(now);
        self.history.push((present, cost.min((2 * self.limit).saturating_sub(estimate))));
        present
    }

    fn refund(&mut self, cost: u64, spot: ModelMark, now: u64, _id: u128) -> u64 {
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
