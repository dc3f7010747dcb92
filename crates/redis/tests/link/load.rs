//! Callers that make calls continuously, and their outcomes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_redis::LinkError;
use tidegate_redis::link::Link;
use tidegate_test_support::eventually;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::link::counter_script::{DEADLINE, add};

/// Additional time to a deadline that a busy machine may need in a test. On an idle machine it is less than 5 milliseconds.
pub(crate) const SLACK: Duration = Duration::from_millis(1_500);

/// Callers, each of which increments its own key as fast as it is answered.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    callers: JoinSet<Caller>,
}

/// The outcomes of one caller's calls.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    pub(crate) key: String,
    pub(crate) answered: u64,
    pub(crate) unknown: u64,
    pub(crate) not_run: u64,
    longest: Duration,
    causes: BTreeMap<String, u64>,
}

impl Load {
    /// Keys are `{prefix}{number}`, so there are as many slots as callers.
    pub(crate) fn start(link: &Arc<Link>, callers: usize, prefix: &str) -> Load {
        Load::start_on(link, (0..callers).map(|number| format!("{prefix}{number}")))
    }

    pub(crate) fn start_on(link: &Arc<Link>, keys: impl IntoIterator<Item = String>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for key in keys {
            let (link, stop) = (link.clone(), stop.clone());
            callers.spawn(async move { Caller { key, ..Caller::default() }.run(&link, &stop).await });
        }
        Load { stop, callers }
    }

    pub(crate) async fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        Report { callers: self.callers.join_all().await }
    }
}

impl Caller {
    async fn run(mut self, link: &Link, stop: &AtomicBool) -> Caller {
        // Failures return immediately, so the rate is limited.
        let mut pace = interval(Duration::from_millis(1));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let result = add(link, &self.key, DEADLINE).await;
            self.longest = self.longest.max(began.elapsed());
            match result {
                Ok(_) => self.answered += 1,
                Err(error) => {
                    match error {
                        LinkError::NotRun(_) => self.not_run += 1,
                        LinkError::Unknown(_) => self.unknown += 1,
                    }
                    *self.causes.entry(error.to_string()).or_default() += 1;
                    pace.tick().await;
                }
            }
        }
        self
    }
}

impl Caller {
    /// The number of calls that failed for a reason other than their deadline.
    pub(crate) fn failed_in_time(&self) -> u64 {
        self.causes.iter().filter(|(cause, _)| !cause.ends_with("deadline passed")).map(|(_, count)| count).sum()
    }

    /// The number of calls that may have run and failed for a reason other than their deadline.
    pub(crate) fn unknown_in_time(&self) -> u64 {
        let unknown = self.causes.iter().filter(|(cause, _)| cause.contains("may have run"));
        unknown.filter(|(cause, _)| !cause.ends_with("deadline passed")).map(|(_, count)| count).sum()
    }
}

pub(crate) struct Report {
    pub(crate) callers: Vec<Caller>,
}

impl Report {
    pub(crate) fn answered(&self) -> u64 {
        self.callers.iter().map(|caller| caller.answered).sum()
    }

    pub(crate) fn unknown(&self) -> u64 {
        self.callers.iter().map(|caller| caller.unknown).sum()
    }

    pub(crate) fn not_run(&self) -> u64 {
        self.callers.iter().map(|caller| caller.not_run).sum()
    }

    /// The number of calls that failed for a reason other than their deadline, which may pass on a busy machine.
    pub(crate) fn failed_in_time(&self) -> u64 {
        self.callers.iter().map(Caller::failed_in_time).sum()
    }

    /// Checks that no call waited beyond its deadline.
    pub(crate) fn nobody_waited(&self, what: &str) {
        let longest = self.callers.iter().map(|caller| caller.longest).max().unwrap();
        let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
        for (cause, count) in self.callers.iter().flat_map(|caller| &caller.causes) {
            *causes.entry(cause).or_default() += count;
        }
        println!(
            "{what}: answered {}, not run {}, unknown {}, longest wait {longest:?}, {causes:#?}",
            self.answered(),
            self.not_run(),
            self.unknown()
        );
        assert!(longest < DEADLINE + SLACK, "{what}: somebody waited {longest:?}");
    }

    /// Checks that every outcome agrees with the server: each answered call ran once, none that is reported as not run has
    /// run, and each of the others ran at most once.
    pub(crate) fn is_true(&self, value: impl Fn(&str) -> u64) {
        for caller in &self.callers {
            let ran = value(&caller.key);
            let possible = caller.answered..=caller.answered + caller.unknown;
            assert!(possible.contains(&ran), "{}: ran {ran} times, but {caller:?}", caller.key);
        }
    }
}

/// The time until several consecutive calls are answered.
pub(crate) async fn recovery(link: &Link, what: &str) -> Duration {
    let began = Instant::now();
    let mut in_a_row = 0;
    eventually("service that is back", async || {
        in_a_row = if add(link, "recovery", DEADLINE).await.is_ok() { in_a_row + 1 } else { 0 };
        (in_a_row == 5).then_some(())
    })
    .await;
    let took = began.elapsed();
    println!("{what}: back after {took:?}");
    took
}
