//! Callers that never stop calling, and what they lived through.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_redis::LinkError;
use tidegate_redis::link::Link;
use tidegate_test_redis::eventually;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::toy::{DEADLINE, add};

/// The time that a busy machine may add to a deadline in a test. On an idle one it is less than 5 milliseconds.
pub(crate) const SLACK: Duration = Duration::from_millis(1_500);

/// Callers, each with a key of its own that it adds to as fast as it is answered.
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
    /// Keys are `{prefix}{number}`, so they lie in as many slots as there are callers.
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
        // Failures come back at once; there is no point in making a million of them.
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
    /// The calls that failed for another reason than that their deadline passed.
    pub(crate) fn failed_in_time(&self) -> u64 {
        self.causes.iter().filter(|(cause, _)| !cause.ends_with("deadline passed")).map(|(_, count)| count).sum()
    }

    /// The calls that may have run, for another reason than that their deadline passed.
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

    /// The calls that failed for another reason than that their deadline passed, as it may on a busy machine.
    pub(crate) fn failed_in_time(&self) -> u64 {
        self.callers.iter().map(Caller::failed_in_time).sum()
    }

    /// Nobody waited past the deadline.
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

    /// Every outcome that a caller got agrees with the server: every call that was answered ran once, none ran that is said
    /// not to have run, and of the others each ran once or not at all.
    pub(crate) fn is_true(&self, value: impl Fn(&str) -> u64) {
        for caller in &self.callers {
            let ran = value(&caller.key);
            let possible = caller.answered..=caller.answered + caller.unknown;
            assert!(possible.contains(&ran), "{}: ran {ran} times, but {caller:?}", caller.key);
        }
    }
}

/// The time from now until several calls in a row are answered.
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
