//! Flows: arrivals at a rate that changes over time.
//!
//! A flow is a list of phases, each with a rate that is constant or changes linearly. The `n`-th arrival of an even flow
//! comes when the integral of the rate reaches `n`; that of a random flow, when it reaches the sum of `n` exponential
//! draws.

use tidegate_core::Micros;
use tidegate_core::limit::Rate;

use crate::random::Random;

/// A rate over time. `None` means no arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowShape {
    /// A constant rate.
    Steady(Rate),
    /// Half of each period at the peak, half at the base.
    Square {
        /// The rate of the first half.
        peak: Rate,
        /// The rate of the second.
        base: Option<Rate>,
        /// The length of both halves together.
        period: Micros,
    },
    /// A linear change from one rate to another, which then stays.
    Ramp {
        /// The rate at the beginning.
        from: Option<Rate>,
        /// The rate at the end.
        to: Option<Rate>,
        /// The length of the change.
        over: Micros,
    },
    /// Alternating bursts and silence.
    OnOff {
        /// The rate of a burst.
        rate: Rate,
        /// The length of a burst.
        on: Micros,
        /// The length of the silence.
        off: Micros,
    },
}

/// The spacing of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Even.
    Even,
    /// Random: a Poisson process.
    Random,
}

/// A phase in which the rate is constant or changes linearly.
#[derive(Clone, Copy, Debug)]
struct FlowPhase {
    from: Option<Rate>,
    to: Option<Rate>,
    /// Length in microseconds; infinite for the last phase of a flow that does not repeat.
    length: f64,
}

const fn float(number: u64) -> f64 {
    number as f64
}

/// Converts a rate to arrivals per microsecond.
fn per_micro(rate: Option<Rate>) -> f64 {
    rate.map_or(0.0, |rate| float(rate.tokens()) / float(rate.period().get()))
}

impl FlowPhase {
    const fn level(rate: Option<Rate>, length: f64) -> FlowPhase {
        FlowPhase { from: rate, to: rate, length }
    }

    fn is_level(&self) -> bool {
        self.from == self.to
    }

    /// The number of arrivals in the first `time` microseconds.
    fn count(&self, time: f64) -> f64 {
        match self.from {
            // Multiplied first and divided last, so that whole results are exact: 20/s for 5 s is 100.
            Some(rate) if self.is_level() => time * float(rate.tokens()) / float(rate.period().get()),
            None if self.is_level() => 0.0,
            _ => {
                let (from, to) = (per_micro(self.from), per_micro(self.to));
                time * from + time * time * (to - from) / (2.0 * self.length)
            }
        }
    }

    /// The time of the arrival with this number.
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

impl FlowShape {
    /// The phases, and whether they repeat.
    fn phases(&self) -> (Vec<FlowPhase>, bool) {
        match *self {
            FlowShape::Steady(rate) => (vec![FlowPhase::level(Some(rate), f64::INFINITY)], false),
            FlowShape::Square { peak, base, period } => {
                let first = period.get() / 2;
                let second = period.get() - first;
                (vec![FlowPhase::level(Some(peak), float(first)), FlowPhase::level(base, float(second))], true)
            }
            FlowShape::Ramp { from, to, over } => {
                let climb = FlowPhase { from, to, length: float(over.get()) };
                (vec![climb, FlowPhase::level(to, f64::INFINITY)], false)
            }
            FlowShape::OnOff { rate, on, off } => {
                (vec![FlowPhase::level(Some(rate), float(on.get())), FlowPhase::level(None, float(off.get()))], true)
            }
        }
    }

    /// The mean number of arrivals in the first `time` microseconds.
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

    /// The shortest phase. Steps of a numerical model should be much shorter.
    pub(crate) fn shortest_phase(&self) -> Option<Micros> {
        match *self {
            FlowShape::Steady(_) => None,
            FlowShape::Square { period, .. } => Some(Micros::new(period.get() / 2)),
            FlowShape::Ramp { over, .. } => Some(over),
            FlowShape::OnOff { on, off, .. } => Some(on.min(off)),
        }
    }
}

/// The instants of a flow's arrivals, in microseconds from its beginning.
#[derive(Debug)]
pub(super) struct Flow {
    phases: Vec<FlowPhase>,
    repeat: bool,
    spacing: Spacing,
    random: Random,
    /// The current phase, its start, and the arrivals before it.
    phase: usize,
    began: f64,
    before: f64,
    /// The value of the rate's integral at the next arrival.
    target: f64,
}

impl Flow {
    pub(super) fn new(shape: &FlowShape, spacing: Spacing, seed: u64) -> Flow {
        let (phases, repeat) = shape.phases();
        let mut random = Random::seeded(seed);
        let target = match spacing {
            Spacing::Even => 0.0,
            Spacing::Random => random.exponential(),
        };
        Flow { phases, repeat, spacing, random, phase: 0, began: 0.0, before: 0.0, target }
    }

    /// Moves to the next phase, unless this was the last.
    fn next_phase(&mut self) -> Option<()> {
        let phase = self.phases.get(self.phase)?;
        self.began += phase.length;
        self.before += phase.count(phase.length);
        self.phase += 1;
        if self.phase == self.phases.len() && self.repeat {
            self.phase = 0;
            // A flow without arrivals in a whole cycle never has any.
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
            // An arrival exactly at the boundary of two phases belongs to the later one.
            if time < phase.length {
                self.target += match self.spacing {
                    Spacing::Even => 1.0,
                    Spacing::Random => self.random.exponential(),
                };
                // Plus a thousandth, because divisions and roots may round a whole microsecond down.
                return Some((self.began + time + 1e-3) as u64);
            }
            if phase.length.is_infinite() {
                return None;
            }
            self.next_phase()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn millis(shape: &FlowShape, spacing: Spacing, seconds: u64) -> Vec<u64> {
        Flow::new(shape, spacing, 1).take_while(|&at| at < seconds * 1_000_000).map(|at| at / 1_000).collect()
    }

    #[test]
    fn a_steady_flow_is_evenly_apart() {
        assert_eq!(millis(&FlowShape::Steady(rate("4/s")), Spacing::Even, 1), [0, 250, 500, 750]);
        let thirds: Vec<u64> = Flow::new(&FlowShape::Steady(rate("3/s")), Spacing::Even, 1).take(4).collect();
        assert_eq!(thirds, [0, 333_333, 666_666, 1_000_000]);
    }

    #[test]
    fn a_square_wave_changes_its_rate() {
        let shape = FlowShape::Square { peak: rate("4/s"), base: Some(rate("1/s")), period: Micros::from_secs(2) };
        assert_eq!(millis(&shape, Spacing::Even, 4), [0, 250, 500, 750, 1_000, 2_000, 2_250, 2_500, 2_750, 3_000]);
        let silent = FlowShape::Square { peak: rate("2/s"), base: None, period: Micros::from_secs(2) };
        assert_eq!(millis(&silent, Spacing::Even, 3), [0, 500, 2_000, 2_500]);
    }

    #[test]
    fn a_ramp_comes_closer_and_closer() {
        let shape = FlowShape::Ramp { from: None, to: Some(rate("10/s")), over: Micros::from_secs(10) };
        let arrivals = millis(&shape, Spacing::Even, 11);
        // t²/2 arrivals by second t.
        assert_eq!(arrivals.iter().filter(|&&at| at < 2_000).count(), 2);
        assert_eq!(arrivals.iter().filter(|&&at| at < 10_000).count(), 50);
        assert_eq!(arrivals.len(), 60);
        assert!(arrivals.is_sorted());
        let down = FlowShape::Ramp { from: Some(rate("10/s")), to: None, over: Micros::from_secs(10) };
        let arrivals = millis(&down, Spacing::Even, 100);
        // The last one would come as the rate reaches zero.
        assert!((50..=51).contains(&arrivals.len()));
        assert_eq!(arrivals.iter().filter(|&&at| at < 5_000).count(), 38);
    }

    #[test]
    fn chance_brings_the_same_number_on_average() {
        for shape in [
            FlowShape::Steady(rate("1000/s")),
            FlowShape::Square { peak: rate("1800/s"), base: Some(rate("200/s")), period: Micros::from_secs(7) },
            FlowShape::OnOff { rate: rate("5000/s"), on: Micros::from_secs(1), off: Micros::from_secs(4) },
            FlowShape::Ramp { from: Some(rate("500/s")), to: Some(rate("1500/s")), over: Micros::from_secs(100) },
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
        let shape = FlowShape::Ramp { from: None, to: None, over: Micros::from_secs(1) };
        assert_eq!(Flow::new(&shape, Spacing::Random, 1).next(), None);
    }
}
