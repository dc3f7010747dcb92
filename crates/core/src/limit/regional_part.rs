//! The part of a limit that belongs to a share of it.

use super::bucket::{Bucket, DEEPEST_OF_PART};
use super::rate::gcd;
use super::{
    Algorithm, Concurrency, FixedWindow, Gcra, LONGEST_PERIOD, Limit, Meter, Rate, Shaper, SlidingLog, SlidingWindow,
    TokenBucket, Windows,
};
use crate::regions::Share;
use crate::time::Micros;

impl Limit {
    /// The part of this limit that belongs to `share`: of its rate and its burst, or of its count.
    ///
    /// All values are rounded down, so parts whose shares add up to at most the whole admit no more than the limit. A part
    /// that is too small admits nothing. Nodes that count one key by different parts keep all of its debt.
    ///
    /// ```
    /// use tidegate_core::Limit;
    /// use tidegate_core::regions::Share;
    ///
    /// let limit: Limit = "20/s burst 50".parse()?;
    /// assert_eq!(limit.regional_part(Share::percent(60)).to_string(), "12/s burst 30");
    /// # Ok::<(), tidegate_core::NotationError>(())
    /// ```
    #[must_use]
    pub fn regional_part(&self, share: Share) -> Limit {
        let count = |whole: u64| share.of(whole);
        let built = match *self.algorithm() {
            Algorithm::TokenBucket(TokenBucket { bucket }) => {
                return TokenBucket { bucket: part_of_bucket(&bucket, share) }.into();
            }
            Algorithm::Gcra(Gcra { bucket }) => return Gcra { bucket: part_of_bucket(&bucket, share) }.into(),
            Algorithm::Meter(Meter { bucket }) => return Meter { bucket: part_of_bucket(&bucket, share) }.into(),
            Algorithm::Shaper(Shaper { bucket }) => return Shaper { bucket: part_of_bucket(&bucket, share) }.into(),
            Algorithm::FixedWindow(limit) => match limit.windows() {
                Windows::Every(window) => FixedWindow::new(count(limit.limit()), window).map(Limit::from),
                Windows::Calendar(calendar) => FixedWindow::calendar(count(limit.limit()), calendar).map(Limit::from),
            },
            Algorithm::SlidingWindow(limit) => {
                SlidingWindow::with_parts(count(limit.limit()), limit.window(), limit.parts()).map(Limit::from)
            }
            Algorithm::SlidingLog(limit) => SlidingLog::new(count(limit.limit()), limit.window()).map(Limit::from),
            Algorithm::Concurrency(limit) => Concurrency::new(count(limit.slots()), limit.ttl()).map(Limit::from),
        };
        // A smaller count is valid wherever a larger one is.
        built.unwrap_or(*self)
    }

    /// Returns `true` if this is a bucket that is a [part](Limit::regional_part) of a limit, whose debt is not capped.
    #[must_use]
    pub fn is_part_of_bucket(&self) -> bool {
        self.bucket().is_some_and(Bucket::is_part)
    }
}

fn part_of_bucket(whole: &Bucket, share: Share) -> Bucket {
    let part = part_of_rate(whole.rate(), share, whole.capacity())
        .and_then(|rate| Bucket::new(share.of(whole.capacity()), rate).ok());
    // The rate is too low to be counted, so it is replaced by a bucket without capacity: neither admits anything.
    let nothing = || Bucket::new(0, whole.rate()).unwrap_or(*whole);
    part.unwrap_or_else(nothing).as_part()
}

/// A share of a rate, exact if it can be counted, and otherwise slightly lower. Debt up to the whole `capacity` can be
/// counted at it.
fn part_of_rate(rate: Rate, share: Share, capacity: u64) -> Option<Rate> {
    let (all, whole) = (u64::from(Share::WHOLE.parts_per_million()), rate.tokens());
    // Keeps the period of the rate's notation, if the share is a whole number of tokens.
    if let Some(tokens) = whole.checked_mul(u64::from(share.parts_per_million())).filter(|tokens| tokens % all == 0)
        && let Some(rate) = Rate::new(tokens / all, rate.period()).ok()
        && rate.drops_per_token() <= DEEPEST_OF_PART / capacity.max(1)
    {
        return Some(rate);
    }
    let tokens = u128::from(rate.drops_per_micro()) * u128::from(share.parts_per_million());
    let micros = u128::from(rate.drops_per_token()) * u128::from(Share::WHOLE.parts_per_million());
    let divisor = gcd(tokens, micros);
    let (tokens, micros) = (tokens / divisor, micros / divisor);
    let longest = u128::from((DEEPEST_OF_PART / capacity.max(1)).min(LONGEST_PERIOD.get()));
    let most = u128::from(u32::MAX);
    let coarser = micros.div_ceil(longest).max(tokens.div_ceil(most)).max(1);
    let period = (micros / coarser).max(1);
    let tokens = u64::try_from(tokens * period / micros).ok()?;
    Rate::new(tokens, Micros::new(u64::try_from(period).ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Timestamp;

    fn part(limit: &str, percent: u32) -> String {
        let limit: Limit = limit.parse().unwrap();
        limit.regional_part(Share::percent(percent)).to_string()
    }

    #[test]
    fn a_part_is_a_limit_of_the_same_kind() {
        for (limit, part_of_60) in [
            ("20/s burst 50", "12/s burst 30"),
            ("gcra 100/min burst 10", "gcra 60/min burst 6"),
            ("meter 10/s burst 20", "meter 6/s burst 12"),
            ("shaper 10/s queue 50", "shaper 6/s queue 30"),
            ("fixed 1000/day", "fixed 600/day"),
            ("fixed 1000/month calendar", "fixed 600/month calendar"),
            ("sliding 300/min parts 6", "sliding 180/min parts 6"),
            ("log 9/min", "log 5/min"),
            ("concurrent 10 ttl 30s", "concurrent 6 ttl 30s"),
        ] {
            assert_eq!(part(limit, 60), part_of_60);
            assert_eq!(part(limit, 100), limit);
        }
    }

    #[test]
    fn a_part_that_is_too_small_admits_nothing() {
        for (limit, percent) in
            [("log 3/min", 20), ("1/s burst 3", 20), ("concurrent 4 ttl 30s", 10), ("20/s burst 50", 0)]
        {
            let limit: Limit = limit.parse().unwrap();
            assert_eq!(limit.regional_part(Share::percent(percent)).capacity(), 0);
        }
    }

    #[test]
    fn a_smaller_part_forgets_no_debt() {
        let (whole, now): (Limit, _) = ("100/s burst 100".parse().unwrap(), Timestamp::from_secs(1_000));
        let (large, small) = (whole.regional_part(Share::percent(90)), whole.regional_part(Share::percent(5)));
        let mut state = large.fresh();
        assert!(large.decide(&mut state, 90, now).is_allowed());
        let mut seen = small.carry(&large, &state, now);
        assert!(!small.decide(&mut seen, 1, now).is_allowed());
        let mut back = large.carry(&small, &seen, now);
        assert!(!large.decide(&mut back, 1, now).is_allowed());
    }

    fn limits() -> impl Strategy<Value = Limit> {
        let kinds = prop::sample::select(vec!["", "gcra ", "meter "]);
        let units = prop::sample::select(vec!["s", "min", "h", "day", "month"]);
        let buckets = (kinds, 1_u64..3_000, units.clone(), 0_u64..5_000)
            .prop_map(|(kind, rate, unit, burst)| format!("{kind}{rate}/{unit} burst {burst}"));
        let windows = (0_u64..5_000, units).prop_map(|(count, unit)| format!("fixed {count}/{unit}"));
        prop_oneof![3 => buckets, 1 => windows].prop_filter_map("some cannot be counted", |text| text.parse().ok())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(tidegate_test_support::times(2_000)))]

        #[test]
        fn parts_together_are_no_more_than_the_whole(limit in limits(), cuts in prop::collection::vec(0_u32..=1_000_000, 1..4)) {
            let mut ends = cuts;
            ends.extend([0, 1_000_000]);
            ends.sort_unstable();
            let parts: Vec<Limit> =
                ends.windows(2).map(|ends| limit.regional_part(Share::of_million(ends[1] - ends[0]).unwrap())).collect();
            prop_assert!(parts.iter().map(Limit::capacity).sum::<u64>() <= limit.capacity());
            if let Some(whole) = limit.bucket() {
                // Cross-multiplied: the rates add up to at most the whole rate. Doubles are exact enough for a sum of four.
                let per_micro = |rate: Rate| rate.drops_per_micro() as f64 / rate.drops_per_token() as f64;
                let sum: f64 = parts.iter().filter(|part| part.capacity() > 0).map(|part| per_micro(part.bucket().unwrap().rate())).sum();
                prop_assert!(sum <= per_micro(whole.rate()) * (1.0 + 1e-12));
                // Nothing is lost except by rounding.
                if parts.iter().all(|part| part.capacity() > 0) && per_micro(whole.rate()) > 1e-6 {
                    prop_assert!(sum >= per_micro(whole.rate()) * 0.999, "{} of {}", sum, per_micro(whole.rate()));
                }
            }
        }
    }
}
