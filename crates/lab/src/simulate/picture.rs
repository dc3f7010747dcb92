//! Pictures: the state of an algorithm in a form for drawing.

use serde::Serialize;
use tidegate_core::limit::{Algorithm, Level, Rate, State, Tat, Windows};
use tidegate_core::{Limit, Micros, Timestamp};

/// The maximum number of log entries or leases in a picture. The picture also contains their total number.
pub const MOST_DRAWN: usize = 512;

/// The state of one client under an algorithm at one instant. Instants are microseconds since the epoch, and spans are
/// microseconds. Tokens and water can be fractions of a unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Picture {
    /// A bucket of tokens. Negative values are debt.
    Tokens {
        /// The tokens in the bucket.
        tokens: f64,
        /// The capacity.
        capacity: u64,
        /// The instant at which the bucket is full.
        full_in: u64,
    },
    /// A meter's water.
    Water {
        /// The level of the water.
        level: f64,
        /// The capacity of the bucket.
        capacity: u64,
        /// The instant at which the bucket is empty.
        empty_in: u64,
    },
    /// A shaper's queue.
    Queue {
        /// The waiting requests, including the one about to leave.
        waiting: f64,
        /// The capacity.
        capacity: u64,
        /// The instant at which the queue is empty and the next request would leave.
        empty_in: u64,
    },
    /// GCRA's theoretical arrival time.
    Tat {
        /// The instant.
        tat: u64,
        /// The time from now to that instant; zero if it has passed.
        ahead: u64,
        /// The longest such time: the burst, in time.
        tolerance: u64,
        /// The time that one unit of cost adds.
        step: f64,
    },
    /// A fixed window's counter.
    Window {
        /// The start of the window.
        start: u64,
        /// The end of the window.
        end: u64,
        /// The cost spent in the window.
        spent: u64,
        /// The limit.
        limit: u64,
    },
    /// A sliding window's counters.
    Sliding {
        /// The cost spent in each part, the oldest first and the current one last.
        spent: Vec<u64>,
        /// The start of the current part.
        part_start: u64,
        /// The length of a part.
        part: u64,
        /// The share of the oldest part that still counts.
        covered: f64,
        /// The estimated cost in the window.
        estimate: f64,
        /// The limit.
        limit: u64,
    },
    /// A log's entries in the window, the oldest first.
    Log {
        /// Instants and costs. If there are many entries, only the latest.
        entries: Vec<(u64, u64)>,
        /// The number of entries.
        count: usize,
        /// Their total cost.
        spent: u64,
        /// The limit.
        limit: u64,
        /// The length of the window.
        window: u64,
    },
    /// The slots in use.
    Slots {
        /// The end of each lease and its slots. If there are many leases, only the first to end.
        leases: Vec<(u64, u64)>,
        /// The number of leases.
        count: usize,
        /// The slots in use.
        held: u64,
        /// The slots in total.
        slots: u64,
    },
}

impl Picture {
    /// The picture of a client's state under `limit`. A state of another algorithm is treated as a fresh one.
    #[must_use]
    pub fn of(limit: &Limit, state: &State, now: Timestamp) -> Picture {
        let at = now.as_micros();
        match (limit.algorithm(), state) {
            (Algorithm::TokenBucket(bucket), State::Level(level)) => {
                let spent = Drops::of_level(level, bucket.refill(), at);
                let tokens = bucket.capacity() as f64 - spent.units();
                Picture::Tokens { tokens, capacity: bucket.capacity(), full_in: spent.micros() }
            }
            (Algorithm::Meter(meter), State::Level(level)) => {
                let spent = Drops::of_level(level, meter.outflow(), at);
                Picture::Water { level: spent.units(), capacity: meter.capacity(), empty_in: spent.micros() }
            }
            (Algorithm::Shaper(shaper), State::Tat(end)) => {
                let queue = Drops::of_tat(end, shaper.outflow(), at);
                Picture::Queue { waiting: queue.units(), capacity: shaper.capacity(), empty_in: queue.micros() }
            }
            (Algorithm::Gcra(gcra), State::Tat(tat)) => {
                let rate = gcra.rate();
                let full = Drops { drops: gcra.capacity() * rate.drops_per_token(), rate };
                let step = rate.drops_per_token() as f64 / rate.drops_per_micro() as f64;
                let ahead = Drops::of_tat(tat, rate, at).micros();
                Picture::Tat { tat: tat.whole, ahead, tolerance: full.micros(), step }
            }
            (Algorithm::FixedWindow(fixed), State::Window(window)) => {
                let around = |instant: Timestamp| match fixed.windows() {
                    Windows::Every(length) => {
                        let start = instant - Micros::new(instant.as_micros() % length.get());
                        (start, start + length)
                    }
                    Windows::Calendar(calendar) => calendar.around(instant),
                };
                let (start, end) = around(now.max(window.start));
                let spent = if window.start == start { window.spent } else { 0 };
                Picture::Window { start: start.as_micros(), end: end.as_micros(), spent, limit: fixed.limit() }
            }
            (Algorithm::SlidingWindow(window), State::Sliding(sliding)) => {
                let part = window.window().get() / u64::from(window.parts()).max(1);
                let present = (at / part).max(sliding.part);
                let into = at.saturating_sub(present * part);
                let back = |back: u64| {
                    let index = back.checked_sub(present - sliding.part).and_then(|index| usize::try_from(index).ok());
                    index.and_then(|index| sliding.spent.get(index)).copied().unwrap_or(0)
                };
                let spent: Vec<u64> = (0..=u64::from(window.parts())).rev().map(back).collect();
                let covered = (part - into) as f64 / part as f64;
                let younger: u64 = spent.iter().skip(1).sum();
                let estimate = spent.first().map_or(0.0, |&oldest| oldest as f64 * covered) + younger as f64;
                Picture::Sliding { spent, part_start: present * part, part, covered, estimate, limit: window.limit() }
            }
            (Algorithm::SlidingLog(sliding), State::Log(log)) => {
                let window = sliding.window().get();
                let held = || log.entries().filter(|(entry, _)| entry.as_micros() + window > at);
                let count = held().count();
                let entries = held().skip(count.saturating_sub(MOST_DRAWN)).map(|(at, cost)| (at.as_micros(), cost));
                let spent = held().map(|(_, cost)| cost).sum();
                Picture::Log { entries: entries.collect(), count, spent, limit: sliding.limit(), window }
            }
            (Algorithm::Concurrency(concurrency), State::Slots(slots)) => {
                let running = || slots.leases().filter(|(ends, _)| *ends > now);
                let leases = running().take(MOST_DRAWN).map(|(ends, slots)| (ends.as_micros(), slots)).collect();
                let held = running().map(|(_, slots)| slots).sum();
                Picture::Slots { leases, count: running().count(), held, slots: concurrency.slots() }
            }
            _ => Picture::of(limit, &limit.fresh(), now),
        }
    }
}

/// The cost spent, in the smallest units of a rate.
struct Drops {
    drops: u64,
    rate: Rate,
}

impl Drops {
    fn of_level(level: &Level, rate: Rate, now: u64) -> Drops {
        let came = |micros: u64| micros.saturating_mul(rate.drops_per_micro());
        let drops = match now.checked_sub(level.at.as_micros()) {
            Some(since) => level.spent.saturating_sub(came(since)),
            None => level.spent.saturating_add(came(level.at.as_micros() - now)),
        };
        Drops { drops, rate }
    }

    fn of_tat(tat: &Tat, rate: Rate, now: u64) -> Drops {
        let ahead = tat.whole.checked_sub(now);
        let drops = ahead.map_or(0, |ahead| ahead.saturating_mul(rate.drops_per_micro()).saturating_add(tat.part));
        Drops { drops, rate }
    }

    fn units(&self) -> f64 {
        self.drops as f64 / self.rate.drops_per_token() as f64
    }

    /// The time in which they are refilled, in microseconds.
    fn micros(&self) -> u64 {
        self.drops.div_ceil(self.rate.drops_per_micro())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000_000);

    /// The picture a quarter of a second after `costs` were requested at once.
    fn picture(limit: &str, costs: &[u64]) -> Picture {
        let limit: Limit = limit.parse().unwrap();
        let mut state = limit.fresh();
        for &cost in costs {
            limit.decide(&mut state, cost, NOW);
        }
        Picture::of(&limit, &state, NOW + Micros::from_millis(250))
    }

    #[test]
    fn each_algorithm_shows_what_it_remembers() {
        let start = NOW.as_micros();
        assert_eq!(picture("4/s burst 10", &[5, 1]), Picture::Tokens { tokens: 5.0, capacity: 10, full_in: 1_250_000 });
        assert_eq!(
            picture("meter 4/s burst 10", &[5]),
            Picture::Water { level: 4.0, capacity: 10, empty_in: 1_000_000 }
        );
        assert_eq!(
            picture("shaper 2/s queue 9", &[4]),
            Picture::Queue { waiting: 3.5, capacity: 9, empty_in: 1_750_000 }
        );
        assert_eq!(
            picture("gcra 4/s burst 2", &[1, 1]),
            Picture::Tat { tat: start + 500_000, ahead: 250_000, tolerance: 500_000, step: 250_000.0 }
        );
        assert_eq!(
            picture("fixed 7/s", &[3, 9]),
            Picture::Window { start, end: start + 1_000_000, spent: 3, limit: 7 }
        );
        assert_eq!(
            picture("sliding 9/s parts 2", &[3]),
            Picture::Sliding {
                spent: vec![0, 0, 3],
                part_start: start,
                part: 500_000,
                covered: 0.5,
                estimate: 3.0,
                limit: 9
            }
        );
        assert_eq!(
            picture("log 9/s", &[3, 2]),
            Picture::Log { entries: vec![(start, 5)], count: 1, spent: 5, limit: 9, window: 1_000_000 }
        );
        assert_eq!(
            picture("concurrent 9 ttl 1s", &[3]),
            Picture::Slots { leases: vec![(start + 1_000_000, 3)], count: 1, held: 3, slots: 9 }
        );
    }

    #[test]
    fn ended_requests_are_not_drawn() {
        for (limit, after) in [("log 3/s", 1), ("concurrent 3 ttl 1s", 1), ("fixed 3/s", 1), ("sliding 3/s", 2)] {
            let limit: Limit = limit.parse().unwrap();
            let mut state = limit.fresh();
            limit.decide(&mut state, 3, NOW);
            let later = NOW + Micros::from_secs(after);
            assert_eq!(Picture::of(&limit, &state, later), Picture::of(&limit, &limit.fresh(), later));
        }
    }

    #[test]
    fn pictures_travel_as_json() {
        let json = serde_json::to_value(picture("4/s burst 10", &[5])).unwrap();
        assert_eq!(json["kind"], "tokens");
        assert_eq!(json["tokens"], 6.0);
    }
}
