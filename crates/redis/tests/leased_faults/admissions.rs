//! The comparison that these tests make.

use std::time::Duration;

use tidegate_test_support::redis::{Admission, Admissions};
use tokio::time::Instant;

#[test]
fn one_burst_after_another_is_noticed() {
    let start = Instant::now().into_std();
    let at = |millis: u64| {
        let instant = start + Duration::from_millis(millis);
        Admission { asked: instant, answered: instant }
    };
    let excess = |admissions: Vec<Admission>| Admissions::new(admissions, 100.0, 100.0).excess();
    assert!(excess((0..100).map(|_| at(0)).chain((1..200).map(|number| at(10 * number))).collect()) <= 0.0);
    // An idle period gives no credit for later.
    let twice = (0..100).map(|_| at(5_000)).chain((0..120).map(|_| at(5_200)));
    assert!((99.0..101.0).contains(&excess((0..10).map(at).chain(twice).collect())));
}
