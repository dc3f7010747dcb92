//! Admissions held against one bucket, by their instants.

use std::time::{Duration, Instant};

/// Admissions whose instants are known less exactly are left out, which only lowers what is found. A machine that is too slow for this
/// gets [`KNOWN`] of its admissions compared, with their uncertainty added to the bound.
const EXACT: Duration = Duration::from_millis(5);
const KNOWN: f64 = 0.8;

/// A request that was admitted at some instant between these.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Before the request was sent.
    pub asked: Instant,
    /// After its answer had come.
    pub answered: Instant,
}

impl Admission {
    fn uncertainty(&self) -> Duration {
        self.answered - self.asked
    }
}

/// The admissions of a fleet beside one bucket.
#[derive(Debug)]
pub struct Admissions {
    /// In the order of their answers.
    all: Vec<Admission>,
    /// The uncertainty of the instants that are compared.
    exact: Duration,
    burst: f64,
    rate: f64,
}

impl Admissions {
    /// These admissions, beside a bucket of this burst and rate.
    #[must_use]
    pub fn new(mut all: Vec<Admission>, burst: f64, rate: f64) -> Admissions {
        all.sort_unstable_by_key(Admission::uncertainty);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a part of a count"
        )]
        let known = all.get((all.len() as f64 * KNOWN) as usize).map_or(Duration::ZERO, Admission::uncertainty);
        all.sort_unstable_by_key(|admission| admission.answered);
        Admissions { all, exact: known.max(EXACT), burst, rate }
    }

    /// The most that was admitted beyond *burst + rate · t* in any interval *t* at least.
    #[must_use]
    pub fn excess(&self) -> f64 {
        let exact = self.all.iter().filter(|admission| admission.uncertainty() <= self.exact);
        // A request that was answered now may have been admitted a little earlier.
        self.beyond(exact) - self.rate * self.exact.as_secs_f64()
    }

    /// The most that was answered beyond *burst + rate · t* in any interval *t*.
    #[must_use]
    pub fn excess_of_answers(&self) -> f64 {
        self.beyond(self.all.iter())
    }

    fn beyond<'a>(&self, admissions: impl Iterator<Item = &'a Admission>) -> f64 {
        let (mut debt, mut most, mut last) = (0.0_f64, f64::MIN, None);
        for &Admission { answered, .. } in admissions {
            let passed = last.map_or(Duration::ZERO, |last| answered - last);
            debt = (debt - self.rate * passed.as_secs_f64()).max(0.0) + 1.0;
            most = most.max(debt);
            last = Some(answered);
        }
        most - self.burst
    }

    /// The number of admissions that were answered between two instants.
    #[must_use]
    pub fn answered_between(&self, from: Instant, to: Instant) -> usize {
        self.all.iter().filter(|admission| (from..to).contains(&admission.answered)).count()
    }

    /// Compares with the bound, which faults have raised by so much.
    ///
    /// # Panics
    /// If more was admitted.
    pub fn are_within(&self, more: f64) {
        let excess = self.excess();
        println!("{} admitted, known to {:?}, {excess:.0} beyond the limit, bound {more}", self.all.len(), self.exact);
        assert!(excess <= more, "{excess:.0} beyond the limit, bound {more}");
    }
}
