//! Position in a run, which is the id of its events.

use std::fmt;

use tidegate_lab::simulate::Totals;

/// Position after an event: how much of the run has been sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunPosition {
    /// Number of arrivals.
    pub(super) arrivals: u64,
    /// Time in microseconds.
    pub(super) until: u64,
    /// Totals of each limit, for runs in Redis. Runs in memory compute them again.
    pub(super) totals: Vec<Totals>,
}

/// Formats the position as an event id.
impl fmt::Display for RunPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.arrivals, self.until)?;
        for totals in &self.totals {
            let Totals { cost, admitted, admitted_cost, denied, too_large, .. } = totals;
            let Totals { delayed, longest_delay, longest_wait, .. } = totals;
            write!(f, ".{cost}-{admitted}-{admitted_cost}-{denied}-{too_large}")?;
            write!(f, "-{delayed}-{longest_delay}-{longest_wait}")?;
        }
        Ok(())
    }
}

impl RunPosition {
    /// Parses an event id.
    pub(super) fn read(text: &str) -> Option<RunPosition> {
        let mut parts = text.split('.');
        let (arrivals, until) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let totals = parts.map(|part| read_totals(part, arrivals)).collect::<Option<_>>()?;
        Some(RunPosition { arrivals, until, totals })
    }
}

/// `None` if the totals are malformed or inconsistent.
fn read_totals(text: &str, arrivals: u64) -> Option<Totals> {
    let numbers: Vec<u64> = text.split('-').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [cost, admitted, admitted_cost, denied, too_large, delayed, longest_delay, longest_wait] = numbers[..] else {
        return None;
    };
    let decided = admitted.checked_add(denied)?.checked_add(too_large)?;
    (decided == arrivals && delayed <= admitted).then_some(Totals {
        arrivals,
        cost,
        admitted,
        admitted_cost,
        denied,
        too_large,
        delayed,
        longest_delay,
        longest_wait,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_written_and_read_alike() {
        let totals = Totals {
            arrivals: 512,
            cost: 1_024,
            admitted: 500,
            admitted_cost: 1_000,
            denied: 10,
            too_large: 2,
            delayed: 7,
            longest_delay: 30,
            longest_wait: 90,
        };
        for totals in [vec![], vec![totals], vec![totals; 4]] {
            let position = RunPosition { arrivals: 512, until: 1_000_001, totals };
            assert_eq!(RunPosition::read(&position.to_string()), Some(position));
        }
        for wrong in ["", "5", "5.", ".5", "a.b", "1.2.3", "-1.0", "1.0.1-1-1-0-0-0-0", "1.0.1-1-1-1-0-0-0-0"] {
            assert_eq!(RunPosition::read(wrong), None, "{wrong}");
        }
    }
}
