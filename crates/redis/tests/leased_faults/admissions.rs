//! Admissions held against one bucket, by their instants.

use std::time::Duration;

use tokio::time::Instant;

/// Admissions whose instants are known less exactly are left out, which only lowers what is found.
const EXACT: Duration = Duration::from_millis(5);

/// A request that was admitted at some instant between these.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    pub(super) asked: Instant,
    pub(super) answered: Instant,
}

/// The admissions of a fleet beside one bucket.
pub(super) struct Admissions {
    /// The instants of those that are known exactly, in order.
    instants: Vec<Instant>,
    all: usize,
    burst: f64,
    rate: f64,
}

impl Admissions {
    pub(super) fn new(admissions: Vec<Admission>, burst: f64, rate: f64) -> Admissions {
        let exact = admissions.iter().filter(|admission| admission.answered - admission.asked <= EXACT);
        let mut instants: Vec<Instant> = exact.map(|admission| admission.answered).collect();
        instants.sort_unstable();
        Admissions { instants, all: admissions.len(), burst, rate }
    }

    /// The most that was admitted beyond *burst + rate · t* in any interval *t*.
    pub(super) fn excess(&self) -> f64 {
        let (mut debt, mut most, mut last) = (0.0_f64, f64::MIN, None);
        for &instant in &self.instants {
            let passed = last.map_or(Duration::ZERO, |last| instant - last);
            debt = (debt - self.rate * passed.as_secs_f64()).max(0.0) + 1.0;
            most = most.max(debt);
            last = Some(instant);
        }
        // A request that was answered now may have been admitted a little earlier.
        most - self.burst - self.rate * EXACT.as_secs_f64()
    }

    /// Compares with the bound, which faults have raised by so much.
    pub(super) fn are_within(&self, more: f64) {
        let excess = self.excess();
        println!(
            "{} of {} at known instants, {excess:.0} beyond the limit, bound {more}",
            self.instants.len(),
            self.all
        );
        assert!(self.instants.len() * 10 >= self.all * 8, "most instants are unknown");
        assert!(excess <= more, "{excess:.0} beyond the limit, bound {more}");
    }
}

#[test]
fn one_burst_after_another_is_noticed() {
    let start = Instant::now();
    let at = |millis: u64| {
        let instant = start + Duration::from_millis(millis);
        Admission { asked: instant, answered: instant }
    };
    let excess = |admissions: Vec<Admission>| Admissions::new(admissions, 100.0, 100.0).excess();
    assert!(excess((0..100).map(|_| at(0)).chain((1..200).map(|number| at(10 * number))).collect()) <= 0.0);
    // A standstill is no credit for later.
    let twice = (0..100).map(|_| at(5_000)).chain((0..120).map(|_| at(5_200)));
    assert!((99.0..101.0).contains(&excess((0..10).map(at).chain(twice).collect())));
}
