//! Aggregates samples into one number.

use std::time::{Duration, Instant};

use crate::machine::Others;

/// Processor time of other processes, in processors, above which a round counts as disturbed.
const DISTURBING: f64 = 0.08;
/// No round is repeated after this time.
const TIMEOUT: Duration = Duration::from_secs(6);

/// Runs `round` until `rounds` rounds were undisturbed by other programs, or patience runs out. Returns the results of
/// the `rounds` least disturbed rounds.
pub fn quiet_rounds<T>(rounds: usize, mut round: impl FnMut(usize) -> T) -> Vec<T> {
    let mut done: Vec<(f64, T)> = Vec::new();
    let began = Instant::now();
    for number in 0.. {
        let others = Others::watch();
        let result = round(number);
        done.push((others.share(), result));
        let undisturbed = done.iter().filter(|(share, _)| *share <= DISTURBING).count();
        if undisturbed == rounds || (done.len() >= rounds && began.elapsed() > TIMEOUT) {
            break;
        }
    }
    done.sort_by(|one, other| one.0.total_cmp(&other.0));
    done.truncate(rounds);
    let busiest = done.last().map_or(0.0, |(share, _)| *share);
    if busiest > DISTURBING {
        eprintln!("  (others used {:.0} % of a processor meanwhile: take the next rows with care)", busiest * 100.0);
    }
    done.into_iter().map(|(_, result)| result).collect()
}

/// The median. On a noisy machine, a mean would include the noise.
///
/// # Panics
/// If there are no samples.
pub fn median(mut samples: Vec<f64>) -> f64 {
    assert!(!samples.is_empty(), "a median of nothing");
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// The upper quartile. If a noisy neighbour makes a machine alternate between two speeds, the median of rates
/// alternates too; disturbances only ever slow it down.
///
/// # Panics
/// If there are no samples.
pub fn upper_quartile(mut samples: Vec<f64>) -> f64 {
    assert!(!samples.is_empty(), "a quartile of nothing");
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() * 3 / 4]
}
