//! Flows: a rate over time, and arrivals at it.
//!
//! A flow is a list of phases, each with a rate that is constant or changes linearly. The `n`-th arrival comes when the
//! integral of the rate reaches `n`; by chance, when it reaches the sum of `n` exponential draws. So the same few lines make
//! every shape, evenly or by chance.

use tidegate_core::Micros;
use tidegate_core::limit::Rate;

use crate::random::Random;

/// A rate over time. `None` stands for no arrivals at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Always the same.
    Steady(Rate),
    /// Half of each period at the peak, half at the base.
    Square {
        /// The rate of the first half.
        peak: Rate,
        /// The rate of the second.
        base: Option<Rate>,
        /// How long both take together.
        period: Micros,
    },
    /// From one rate to another, and from then on at the other.
    Ramp {
        /// The rate at the beginning.
        from: Option<Rate>,
        /// The rate at the end.
        to: Option<Rate>,
        /// How long it takes.
        over: Micros,
    },
    /// On and off by turns.
    OnOff {
        /// The rate while it is on.
        rate: Rate,
        /// How long it is on.
        on: Micros,
        /// How long it is off.
        off: Micros,
    },
}

/// How arrivals lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Evenly.
    Even,
    /// By chance: a Poisson process.
    Random,
}

/// A stretch in which the rate changes linearly, or not at all.
#[derive(Clone, Copy, Debug)]
struct Phase {
    from: Option<Rate>,
    to: Option<Rate>,
    /// In microseconds; infinite for the last one of a flow that does not repeat.
    length: f64,
}

const fn float(number: u64) -> f64 {
    number as f64
}

/// Arrivals in a microsecond.
fn per_micro(rate: Option<Rate>) -> f64 {
    rate.map_or(0.0, |rate| float(rate.tokens()) / float(rate.period().get()))
}

impl Phase {
    const fn level(rate: Option<Rate>, length: f64) -> Phase {
        Phase { from: rate, to: rate, length }
    }

    fn is_level(&self) -> bool {
        self.from == self.to
    }

    /// What the first `time` microseconds bring.
    fn count(&self, time: f64) -> f64 {
        match self.from {
            // In this order, so that what can be exact is: 20 a second for five seconds are 100.
            Some(rate) if self.is_level() => time * float(rate.tokens()) / float(rate.period().get()),
            None if self.is_level() => 0.0,
            _ => {
                let (from, to) = (per_micro(self.from), per_micro(self.to));
                time * from + time * time * (to - from) / (2.0 * self.length)
            }
        }
    }

    /// When so many have come.
    fn time_of(&self, count: f64) -> f64 {
        match self.from {
            None if self.is_level() => f64::INFINITY,
            _ if count <= 0.0 => 0.0,
            Some(rate) if self.is_level() => count * float(rate.period().get()) / float(rate.tokens()),
            _ => {
                let (from, to) = (per_micro(self.from), per_micro(self.to));
                let root = (from * from + 2.0 * (to - from) * count / self.length).max(0.0).sqrt();
                2.0 * count / (from + root)
            }
        }
    }
}

impl Shape {
    /// The phases, and whether they repeat.
    fn phases(&self) -> (Vec<Phase>, bool) {
        match *self {
            Shape::Steady(rate) => (vec![Phase::level(Some(rate), f64::INFINITY)], false),
            Shape::Square { peak, base, period } => {
                let first = period.get() / 2;
                let second = period.get() - first;
                (vec![Phase::level(Some(peak), float(first)), Phase::level(base, float(second))], true)
            }
            Shape::Ramp { from, to, over } => {
                let climb = Phase { from, to, length: float(over.get()) };
                (vec![climb, Phase::level(to, f64::INFINITY)], false)
            }
            Shape::OnOff { rate, on, off } => {
                (vec![Phase::level(Some(rate), float(on.get())), Phase::level(None, float(off.get()))], true)
            }
        }
    }

    /// How many arrivals the first `time` microseconds bring on average.
    #[must_use]
    pub fn count_by(&self, time: Micros) -> f64 {
        let (phases, repeat) = self.phases();
        let mut left = float(time.get());
        let mut count = 0.0;
        if repeat {
            let length: f64 = phases.iter().map(|phase| phase.length).sum();
            let each: f64 = phases.iter().map(|phase| phase.count(phase.length)).sum();
            let cycles = if length > 0.0 { (left / length).floor() } else { 0.0 };
            count += cycles * each;
            left -= cycles * length;
        }
        for phase in phases {
            let time = left.min(phase.length);
            count += phase.count(time);
            left -= time;
        }
        count
    }

    /// The shortest stretch in which the rate is one thing: what a step of a numerical model should stay well below.
    pub(crate) fn shortest_phase(&self) -> Option<Micros> {
        match *self {
            Shape::Steady(_) => None,
            Shape::Square { period, .. } => Some(Micros::new(period.get() / 2)),
            Shape::Ramp { over, .. } => Some(over),
            Shape::OnOff { on, off, .. } => Some(on.min(off)),
        }
    }
}

/// The instants of a flow's arrivals, in microseconds from its beginning.
#[derive(Debug)]
pub(super) struct Flow {
    phases: Vec<Phase>,
    repeat: bool,
    spacing: Spacing,
    random: Random,
    /// Which phase it is in, when that began, and what had come by then.
    phase: usize,
    began: f64,
    before: f64,
    /// What the integral of the rate must reach for the next arrival.
    target: f64,
}

impl Flow {
    pub(super) fn new(shape: &Shape, spacing: Spacing, seed: u64) -> Flow {
        let (phases, repeat) = shape.phases();
        let mut random = Random::seeded(seed);
        let target = match spacing {
            Spacing::Even => 0.0,
            Spacing::Random => random.exponential(),
        };
        Flow { phases, repeat, spacing, random, phase: 0, began: 0.0, before: 0.0, target }
    }

    /// Goes on to the next phase, unless this was the last.
    fn turn(&mut self) -> Option<()> {
        let phase = self.phases.get(self.phase)?;
        self.began += phase.length;
        self.before += phase.count(phase.length);
        self.phase += 1;
        if self.phase == self.phases.len() && self.repeat {
            self.phase = 0;
            // A flow that brings nothing in a whole round never will.
            if self.began <= 0.0 || self.before <= 0.0 {
                return None;
            }
        }
        Some(())
    }
}

impl Iterator for Flow {
    type Item = u64;

    #[inline]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "instants are rounded down on purpose")]
    fn next(&mut self) -> Option<u64> {
        loop {
            let phase = self.phases.get(self.phase)?;
            let time = phase.time_of(self.target - self.before);
            // An arrival on the very edge of two phases belongs to the later one.
            if time < phase.length {
                self.target += match self.spacing {
                    Spacing::Even => 1.0,
                    Spacing::Random => self.random.exponential(),
                };
                // A thousandth more, for what divisions and roots have rounded away from whole microseconds.
                return Some((self.began + time + 1e-3) as u64);
            }
            if phase.length.is_infinite() {
                return None;
            }
            self.turn()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn millis(shape: &Shape, spacing: Spacing, seconds: u64) -> Vec<u64> {
        Flow::new(shape, spacing, 1).take_while(|&at| at < seconds * 1_000_000).map(|at| at / 1_000).collect()
    }

    #[test]
    fn a_steady_flow_is_evenly_apart() {
        assert_eq!(millis(&Shape::Steady(rate("4/s")), Spacing::Even, 1), [0, 250, 500, 750]);
        let thirds: Vec<u64> = Flow::new(&Shape::Steady(rate("3/s")), Spacing::Even, 1).take(4).collect();
        assert_eq!(thirds, [0, 333_333, 666_666, 1_000_000]);
    }

    #[test]
    fn a_square_wave_changes_its_rate() {
        let shape = Shape::Square { peak: rate("4/s"), base: Some(rate("1/s")), period: Micros::from_secs(2) };
        assert_eq!(millis(&shape, Spacing::Even, 4), [0, 250, 500, 750, 1_000, 2_000, 2_250, 2_500, 2_750, 3_000]);
        let silent = Shape::Square { peak: rate("2/s"), base: None, period: Micros::from_secs(2) };
        assert_eq!(millis(&silent, Spacing::Even, 3), [0, 500, 2_000, 2_500]);
    }

    #[test]
    fn a_ramp_comes_closer_and_closer() {
        let shape = Shape::Ramp { from: None, to: Some(rate("10/s")), over: Micros::from_secs(10) };
        let arrivals = millis(&shape, Spacing::Even, 11);
        // t²/2 arrivals by second t.
        assert_eq!(arrivals.iter().filter(|&&at| at < 2_000).count(), 2);
        assert_eq!(arrivals.iter().filter(|&&at| at < 10_000).count(), 50);
        assert_eq!(arrivals.len(), 60);
        assert!(arrivals.is_sorted());
        let down = Shape::Ramp { from: Some(rate("10/s")), to: None, over: Micros::from_secs(10) };
        let arrivals = millis(&down, Spacing::Even, 100);
        // The last one would come as the rate reaches zero.
        assert!((50..=51).contains(&arrivals.len()));
        assert_eq!(arrivals.iter().filter(|&&at| at < 5_000).count(), 38);
    }

    #[test]
    fn chance_brings_the_same_number_on_average() {
        for shape in [
            Shape::Steady(rate("1000/s")),
            Shape::Square { peak: rate("1800/s"), base: Some(rate("200/s")), period: Micros::from_secs(7) },
            Shape::OnOff { rate: rate("5000/s"), on: Micros::from_secs(1), off: Micros::from_secs(4) },
            Shape::Ramp { from: Some(rate("500/s")), to: Some(rate("1500/s")), over: Micros::from_secs(100) },
        ] {
            let expected = shape.count_by(Micros::from_secs(100));
            let came = millis(&shape, Spacing::Random, 100).len() as f64;
            // Five standard deviations.
            assert!((came - expected).abs() < 5.0 * expected.sqrt(), "{shape:?}: {came}, expected {expected}");
            let came = millis(&shape, Spacing::Even, 100).len() as f64;
            assert!((came - expected).abs() <= 1.5, "{shape:?}: {came}, expected {expected}");
        }
    }

    #[test]
    fn a_flow_of_nothing_ends() {
        let shape = Shape::Ramp { from: None, to: None, over: Micros::from_secs(1) };
        assert_eq!(Flow::new(&shape, Spacing::Random, 1).next(), None);
    }
}
