//! One number out of many.

use std::time::{Duration, Instant};

use crate::machine::Others;

/// More than this share of one processor, and others disturb what is measured.
const DISTURBING: f64 = 0.08;
/// No round is repeated after this time.
const PATIENCE: Duration = Duration::from_secs(6);

/// Runs `round` until other programs left it undisturbed `rounds` times, as far as patience goes. Returns what that many
/// rounds returned: those that were disturbed least.
pub fn quiet_rounds<T>(rounds: usize, mut round: impl FnMut(usize) -> T) -> Vec<T> {
    let mut done: Vec<(f64, T)> = Vec::new();
    let began = Instant::now();
    for number in 0.. {
        let others = Others::watch();
        let result = round(number);
        done.push((others.share(), result));
        let undisturbed = done.iter().filter(|(share, _)| *share <= DISTURBING).count();
        if undisturbed == rounds || (done.len() >= rounds && began.elapsed() > PATIENCE) {
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

/// The middle one. Machines are noisy: a mean would carry their noise.
///
/// # Panics
/// If there are none.
pub fn median(mut samples: Vec<f64>) -> f64 {
    assert!(!samples.is_empty(), "a median of nothing");
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// The one that a quarter are above. Where neighbours make a machine flip between two speeds, a median of rates flips too;
/// nobody makes it quicker than it is.
///
/// # Panics
/// If there are none.
pub fn upper_quartile(mut samples: Vec<f64>) -> f64 {
    assert!(!samples.is_empty(), "a quartile of nothing");
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() * 3 / 4]
}
