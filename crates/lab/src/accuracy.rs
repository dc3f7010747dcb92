//! The accuracy of an algorithm, compared with an exact log.
//!
//! `L/W` is commonly understood as "at most L in any window W", and only the sliding log guarantees exactly that. Here each
//! decision of another algorithm is compared with the requests that it has itself admitted in the past window:
//!
//! - *wrongly admitted*: a request was admitted although the window then holds more than L;
//! - *wrongly denied*: a request was denied although it would have fitted;
//! - *worst*: the most that any window held.
//!
//! As in the engine, a denied request does not count. A client that sends more than its limit then keeps its window almost
//! full, so that every decision is close. [`Judge::counting_all`] counts every request, admitted or not; then only
//! decisions on clients close to their limit can be wrong.
//!
//! A further count, *unlike the log*, compares each decision with that of an exact log on the same arrivals. It is larger,
//! because the two have different histories after the first difference.

use std::collections::VecDeque;

use serde::Serialize;
use tidegate_core::limit::{Algorithm, SlidingLog, State, Windows};
use tidegate_core::receipt::ReceiptId;
use tidegate_core::{Limit, Micros, Timestamp};

use crate::traffic::Arrival;

/// The promise that algorithms are judged by: at most `limit` in any window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The most that a window may hold.
    pub limit: u64,
    /// The length of the window.
    pub window: Micros,
}

impl Promise {
    /// The promise `L/W` of a limit. `None` for a concurrency limit.
    #[must_use]
    pub fn of(limit: &Limit) -> Option<Promise> {
        let rate = |rate: tidegate_core::limit::Rate| Promise { limit: rate.tokens(), window: rate.period() };
        Some(match limit.algorithm() {
            Algorithm::TokenBucket(bucket) => rate(bucket.refill()),
            Algorithm::Gcra(gcra) => rate(gcra.rate()),
            Algorithm::Meter(meter) => rate(meter.outflow()),
            Algorithm::Shaper(shaper) => rate(shaper.outflow()),
            Algorithm::FixedWindow(fixed) => match fixed.windows() {
                Windows::Every(window) => Promise { limit: fixed.limit(), window },
                Windows::Calendar(calendar) => Promise { limit: fixed.limit(), window: calendar.longest() },
            },
            Algorithm::SlidingWindow(sliding) => Promise { limit: sliding.limit(), window: sliding.window() },
            Algorithm::SlidingLog(log) => Promise { limit: log.limit(), window: log.window() },
            Algorithm::Concurrency(_) => return None,
        })
    }
}

/// The exact cost admitted in the past window.
#[derive(Clone, Debug, Default)]
pub struct ExactWindow {
    admitted: VecDeque<(u64, u64)>,
    sum: u64,
}

impl ExactWindow {
    /// The cost in the window that ends at `now`, inclusive.
    #[inline]
    pub fn holds(&mut self, now: Timestamp, window: Micros) -> u64 {
        while let Some(&(at, cost)) = self.admitted.front()
            && at + window.get() <= now.as_micros()
        {
            self.sum -= cost;
            self.admitted.pop_front();
        }
        self.sum
    }

    /// Adds a cost admitted at `now`.
    #[inline]
    pub fn add(&mut self, now: Timestamp, cost: u64) {
        self.sum += cost;
        match self.admitted.back_mut() {
            Some((at, last)) if *at == now.as_micros() => *last += cost,
            _ => self.admitted.push_back((now.as_micros(), cost)),
        }
    }
}

/// The accuracy of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// Requests that were admitted.
    pub admitted: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// Requests that were admitted although the window was full.
    pub wrongly_admitted: u64,
    /// Requests that were denied although they would have fitted.
    pub wrongly_denied: u64,
    /// Requests that an exact log on its own decided differently.
    pub unlike_the_log: u64,
    /// The most that any window held.
    pub worst: u64,
}

impl Judgement {
    /// The number of requests.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.admitted + self.denied
    }

    /// The share of decisions that were wrong, either way.
    #[must_use]
    pub fn wrong(&self) -> f64 {
        (self.wrongly_admitted + self.wrongly_denied) as f64 / self.requests().max(1) as f64
    }

    /// The amount by which the fullest window exceeded the promise.
    #[must_use]
    pub const fn overshoot(&self, promise: &Promise) -> u64 {
        self.worst.saturating_sub(promise.limit)
    }

    /// Combines two judgements: counts are added, and the worst is the larger of the two.
    #[must_use]
    pub fn and(self, other: Judgement) -> Judgement {
        Judgement {
            admitted: self.admitted + other.admitted,
            denied: self.denied + other.denied,
            wrongly_admitted: self.wrongly_admitted + other.wrongly_admitted,
            wrongly_denied: self.wrongly_denied + other.wrongly_denied,
            unlike_the_log: self.unlike_the_log + other.unlike_the_log,
            worst: self.worst.max(other.worst),
        }
    }
}

/// One limit, judged by a promise.
#[derive(Debug)]
pub struct Judge {
    limit: Limit,
    promise: Promise,
    clients: Vec<(State, ExactWindow)>,
    judgement: Judgement,
    counts: AccuracyCounts,
}

/// The requests that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccuracyCounts {
    /// Admitted requests.
    Admitted,
    /// All requests.
    All,
}

impl Judge {
    /// A judge that has not decided anything yet.
    #[must_use]
    pub const fn new(limit: Limit, promise: Promise) -> Judge {
        let judgement =
            Judgement { admitted: 0, denied: 0, wrongly_admitted: 0, wrongly_denied: 0, unlike_the_log: 0, worst: 0 };
        Judge { limit, promise, clients: Vec::new(), judgement, counts: AccuracyCounts::Admitted }
    }

    /// A judge that counts every request, admitted or not.
    #[must_use]
    pub fn counting_all(limit: Limit, promise: Promise) -> Judge {
        Judge { counts: AccuracyCounts::All, ..Judge::new(limit, promise) }
    }

    /// Decides an arrival and judges the decision. Returns whether it was admitted.
    #[inline]
    pub fn take(&mut self, arrival: &Arrival) -> bool {
        let client = arrival.client as usize;
        if client >= self.clients.len() {
            self.clients.resize_with(client + 1, || (self.limit.fresh(), ExactWindow::default()));
        }
        let (state, truth) = &mut self.clients[client];
        let admitted = match self.counts {
            AccuracyCounts::Admitted => self.limit.decide(state, arrival.cost, arrival.at).is_allowed(),
            AccuracyCounts::All => {
                let admitted = self.limit.evaluate(state, arrival.cost, arrival.at).is_allowed();
                self.limit.charge(state, arrival.cost, arrival.at, ReceiptId::ANONYMOUS);
                admitted
            }
        };
        let holds = truth.holds(arrival.at, self.promise.window);
        let fits = holds + arrival.cost <= self.promise.limit;
        if admitted || self.counts == AccuracyCounts::All {
            truth.add(arrival.at, arrival.cost);
        }
        if admitted {
            self.judgement.admitted += 1;
            self.judgement.wrongly_admitted += u64::from(!fits);
            self.judgement.worst = self.judgement.worst.max(holds + arrival.cost);
        } else {
            self.judgement.denied += 1;
            self.judgement.wrongly_denied += u64::from(fits);
        }
        admitted
    }

    /// The judgement so far.
    #[must_use]
    pub const fn judgement(&self) -> Judgement {
        self.judgement
    }
}

/// Several limits on the same arrivals, compared with an exact log.
///
/// ```
/// use tidegate_core::{Limit, Micros};
/// use tidegate_lab::accuracy::AccuracyTable;
/// use tidegate_lab::traffic::Traffic;
///
/// let limits: [Limit; 2] = ["fixed 10/s".parse()?, "sliding 10/s".parse()?];
/// let attack: Traffic = "boundary 10 every 1s".parse()?;
/// let mut table = AccuracyTable::new(&limits, &limits[0]).ok_or("it has a window")?;
/// attack.arrivals(Micros::from_secs(10), 1).for_each(|arrival| table.take(&arrival));
/// let rows: Vec<_> = table.rows().collect();
/// assert_eq!(rows[0].1.worst, 20);
/// assert_eq!(rows[1].1.worst, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AccuracyTable {
    log: Judge,
    judges: Vec<Judge>,
}

impl AccuracyTable {
    /// A table that judges all limits by the promise of `reference`. `None` if that is a concurrency limit, or too large
    /// for a log.
    #[must_use]
    pub fn new(limits: &[Limit], reference: &Limit) -> Option<AccuracyTable> {
        let promise = Promise::of(reference)?;
        let log = SlidingLog::new(promise.limit, promise.window).ok()?;
        let judges = limits.iter().map(|&limit| Judge::new(limit, promise)).collect();
        Some(AccuracyTable { log: Judge::new(log.into(), promise), judges })
    }

    /// Decides an arrival under each limit.
    pub fn take(&mut self, arrival: &Arrival) {
        let exact = self.log.take(arrival);
        for judge in &mut self.judges {
            let unlike = judge.take(arrival) != exact;
            judge.judgement.unlike_the_log += u64::from(unlike);
        }
    }

    /// The promise that the limits are judged by.
    #[must_use]
    pub const fn promise(&self) -> Promise {
        self.log.promise
    }

    /// Each limit with its judgement.
    pub fn rows(&self) -> impl Iterator<Item = (&Limit, Judgement)> {
        self.judges.iter().map(|judge| (&judge.limit, judge.judgement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Traffic;

    fn judged(limit: &str, traffic: &str, seconds: u64) -> Judgement {
        let limit: Limit = limit.parse().unwrap();
        let traffic: Traffic = traffic.parse().unwrap();
        let mut table = AccuracyTable::new(&[limit], &limit).unwrap();
        traffic.arrivals(Micros::from_secs(seconds), 4).for_each(|arrival| table.take(&arrival));
        table.rows().next().unwrap().1
    }

    #[test]
    fn the_log_is_never_wrong() {
        let judgement = judged("log 10/s", "poisson 15/s clients 3", 200);
        assert!(judgement.denied > 0);
        assert_eq!((judgement.wrongly_admitted, judgement.wrongly_denied, judgement.unlike_the_log), (0, 0, 0));
        assert_eq!(judgement.worst, 10);
    }

    #[test]
    fn a_fixed_window_only_errs_in_favour_of_its_clients() {
        let judgement = judged("fixed 10/s", "poisson 15/s", 500);
        assert!(judgement.wrongly_admitted > 0 && judgement.worst > 10 && judgement.worst <= 20);
        assert_eq!(judged("fixed 10/s", "boundary 10 every 1s", 10).worst, 20);
    }

    #[test]
    fn a_sliding_counter_stays_below_twice_its_limit() {
        let judgement = judged("sliding 10/s", "square 40/s 1/s every 3s random", 500);
        assert!(judgement.wrongly_admitted > 0 && judgement.wrongly_denied > 0);
        assert!(judgement.worst < 20, "{judgement:?}");
    }

    #[test]
    fn if_all_requests_count_only_clients_near_their_limit_are_judged_wrongly() {
        let wrong = |rate: &str| {
            let limit: Limit = "sliding 600/min".parse().unwrap();
            let traffic: Traffic = format!("poisson {rate}").parse().unwrap();
            let mut judge = Judge::counting_all(limit, Promise::of(&limit).unwrap());
            traffic.arrivals(Micros::from_secs(3_600), 4).for_each(|arrival| {
                judge.take(&arrival);
            });
            judge.judgement().wrong()
        };
        assert!(wrong("10/s") > 0.01);
        assert_eq!(wrong("5/s"), 0.0);
        // The first minute fills the window, and from then on the client is always over its limit.
        assert!(wrong("40/s") < 0.001);
    }

    #[test]
    fn more_parts_are_closer_to_the_log() {
        let wrong = |limit| judged(limit, "square 40/s 1/s every 3s random", 2_000).wrong();
        assert!(wrong("sliding 10/s parts 10") < wrong("sliding 10/s"));
    }
}
