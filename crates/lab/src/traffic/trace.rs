//! Recorded arrivals.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::{Micros, Timestamp};

use super::{Arrival, MOST_CLIENTS};

/// Recorded arrivals in order, relative to the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Time after the first arrival, client, and cost.
    arrivals: Vec<(Micros, u32, u64)>,
    clients: u32,
}

/// A line that is not an arrival.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// The line number, from 1.
    pub line: usize,
    /// The correction.
    pub problem: String,
}

impl Trace {
    /// A trace of these arrivals, in any order. The earliest one is the start.
    #[must_use]
    pub fn new(mut arrivals: Vec<Arrival>) -> Trace {
        arrivals.sort_by_key(|arrival| arrival.at);
        let began = arrivals.first().map_or(Timestamp::EPOCH, |first| first.at);
        let clients = arrivals.iter().map(|arrival| arrival.client.saturating_add(1)).max().unwrap_or(1);
        let arrivals = arrivals.into_iter().map(|arrival| (arrival.at.since(began), arrival.client, arrival.cost));
        Trace { arrivals: arrivals.collect(), clients }
    }

    /// Parses one arrival per line: seconds from any start, then optionally a client and a cost, separated by commas.
    /// Clients may have any names. Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// The first line that is not an arrival.
    pub fn read(text: &str) -> Result<Trace, TraceError> {
        let mut names = HashMap::new();
        let mut arrivals = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |problem: String| TraceError { line: number, problem };
            let mut cells = line.split(',').map(str::trim);
            let at = cells.next().unwrap_or_default();
            let at = seconds(at).ok_or_else(|| wrong(format!("`{at}` is not a time: write seconds, such as 12.5")))?;
            let name = cells.next().unwrap_or("0");
            let known = u32::try_from(names.len()).unwrap_or(u32::MAX);
            if known >= MOST_CLIENTS {
                return Err(wrong(format!("there are more than {MOST_CLIENTS} clients")));
            }
            let client = *names.entry(name).or_insert(known);
            let cost = match cells.next() {
                None => 1,
                Some(cost) => {
                    cost.parse().map_err(|_| wrong(format!("`{cost}` is not a cost: write a whole number")))?
                }
            };
            arrivals.push(Arrival { at, client, cost });
        }
        Ok(Trace::new(arrivals))
    }

    /// The highest client number plus one.
    #[must_use]
    pub const fn clients(&self) -> u32 {
        self.clients
    }

    /// The time from the first arrival to just after the last.
    #[must_use]
    pub fn length(&self) -> Micros {
        self.arrivals.last().map_or(Micros::ZERO, |(at, ..)| Micros::new(at.get() + 1))
    }

    /// The number of arrivals before `time`.
    #[must_use]
    pub fn count_by(&self, time: Micros) -> usize {
        self.arrivals.partition_point(|(at, ..)| *at < time)
    }

    /// The mean cost of an arrival.
    pub(crate) fn mean_cost(&self) -> f64 {
        let cost: u64 = self.arrivals.iter().map(|(_, _, cost)| cost).sum();
        cost as f64 / self.arrivals.len().max(1) as f64
    }

    /// The share of each client in the total cost.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let mut costs = vec![0.0; self.clients as usize];
        for &(_, client, cost) in &self.arrivals {
            if let Some(sum) = costs.get_mut(client as usize) {
                *sum += cost as f64;
            }
        }
        let total: f64 = costs.iter().sum();
        costs.iter().map(|cost| if total > 0.0 { cost / total } else { 0.0 }).collect()
    }

    pub(super) fn within(
        trace: &Arc<Trace>,
        start: Timestamp,
        length: Micros,
    ) -> impl Iterator<Item = Arrival> + Send + use<> {
        let trace = Arc::clone(trace);
        (0..trace.count_by(length)).filter_map(move |number| {
            let &(at, client, cost) = trace.arrivals.get(number)?;
            Some(Arrival { at: start + at, client, cost })
        })
    }
}

/// Parses seconds with up to six decimals; more are cut off.
fn seconds(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let micros = micros.fold(0, |micros, digit| micros * 10 + u64::from(digit - b'0'));
    Some(Timestamp::from_micros(whole.checked_mul(1_000_000)?.checked_add(micros)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_arrivals_from_the_first_one_on() {
        let trace = Trace::read("# when, who, cost\n100.5,ann\n\n100,bob,5\n101.000001,ann,2\n").unwrap();
        let trace = Arc::new(trace);
        let all: Vec<_> = Trace::within(&trace, Timestamp::from_secs(7), Micros::from_secs(60)).collect();
        let arrival = |micros, client, cost| Arrival { at: Timestamp::from_micros(micros), client, cost };
        assert_eq!(all, [arrival(7_000_000, 1, 5), arrival(7_500_000, 0, 1), arrival(8_000_001, 0, 2)]);
        assert_eq!((trace.clients(), trace.length()), (2, Micros::new(1_000_002)));
        assert_eq!(Trace::within(&trace, Timestamp::EPOCH, Micros::from_secs(1)).count(), 2);
    }

    #[test]
    fn errors_name_their_line() {
        let error = Trace::read("1\nsoon,ann\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: `soon` is not a time: write seconds, such as 12.5");
        assert_eq!(Trace::read("1,ann,much").unwrap_err().line, 1);
    }
}
