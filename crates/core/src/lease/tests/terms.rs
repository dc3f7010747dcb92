//! The limits that are leased, as described in `docs/leases.md`.

use super::super::{Leasing, Terms};
use crate::limit::Limit;

#[test]
fn limits_are_leased_as_the_guide_says() {
    let leased = [
        "1000/s burst 100",
        "gcra 1000/s burst 100",
        "meter 1000/s burst 100",
        "40/s",
        "100/min burst 2000",
        "fixed 40/s",
        "fixed 2000/h",
        "fixed 64000/day",
        "sliding 1000/s parts 10",
        "sliding 2000/h",
        "fixed 1000000/day",
    ];
    let not_leased = [
        "1000/s burst 99",
        "1000/s burst 10",
        "39/s",
        "100/min",
        "100/min burst 1999",
        "fixed 1000/h",
        "fixed 1999/h",
        "fixed 10000/day",
        "fixed 63999/day",
        "sliding 1000/s parts 20",
        "log 100000/s",
        "shaper 10000/s queue 10000",
        "concurrent 100000",
    ];
    let is_leased = |text: &str| Terms::under(&text.parse::<Limit>().unwrap(), Leasing::AUTO).is_some();
    assert_eq!(leased.map(|text| (text, is_leased(text))), leased.map(|text| (text, true)));
    assert_eq!(not_leased.map(|text| (text, is_leased(text))), not_leased.map(|text| (text, false)));
}

#[test]
fn a_node_holds_at_most_half_of_a_limit_or_a_64th_of_a_long_window() {
    let most = |text: &str, percent| {
        let leasing = Leasing::within(percent, Leasing::LONGEST_MILLIS).unwrap();
        Terms::under(&text.parse::<Limit>().unwrap(), leasing).unwrap().most_outstanding()
    };
    assert_eq!([50, 10].map(|percent| most("fixed 1000000/h", percent)), [500_000, 100_000]);
    // The bound for long windows is tighter.
    assert_eq!([50, 10].map(|percent| most("fixed 1000000/day", percent)), [15_625, 15_625]);
}

#[test]
fn keys_are_leased_from_the_demand_that_the_guide_names() {
    let limit: Limit = "20000/s".parse().unwrap();
    let busy_from = |leasing| Terms::under(&limit, leasing).unwrap().busy_from();
    assert_eq!(busy_from(Leasing::AUTO), 40);
    assert_eq!(busy_from(Leasing::within(50, 20).unwrap()), 400);
}
