//! Callers whose requests have keys in several slots, and the record of their admissions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{Charge, Key, Limit, RuleId, Store, StoreError};
use tidegate_redis::RedisStore;
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Cluster;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::slots::shared;

const CALLERS: u64 = 16;

/// Some limits are soon used up, so that requests are denied by one slot after they were charged in another. None recovers
/// during a test.
const LIMITS: [&str; 6] = [
    "1/h burst 1000000",
    "gcra 1/day burst 300",
    "log 500/30d",
    "fixed 1000000/year calendar",
    "sliding 400/30d",
    "concurrent 900 ttl 1d",
];

/// A limit on a client, and its known spending.
pub(crate) struct Target {
    rule: RuleId,
    key: Key<'static>,
    limit: Limit,
    slot: u16,
    admitted: AtomicU64,
    /// The amount that may have been charged: the answer of the last slot was lost or not awaited.
    unknown: AtomicU64,
}

impl Target {
    pub(crate) fn charge(&self) -> Charge<'_> {
        Charge::new(&self.rule, &self.key, &self.limit)
    }

    /// The node of its slot at the start.
    pub(crate) fn node(&self) -> usize {
        Cluster::first_owner(self.slot)
    }
}

#[derive(Default)]
struct Counts {
    admitted: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
    left: AtomicU64,
}

pub(crate) struct Spenders {
    pub(crate) targets: Arc<Vec<Target>>,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    callers: JoinSet<()>,
}

impl Spenders {
    pub(crate) fn start(store: &Arc<RedisStore>, seed: u64) -> Spenders {
        // Two clients on each node, under every limit.
        let target = |(key, limit): (&Key<'static>, usize)| Target {
            rule: RuleId::new(&format!("limit {limit}")),
            key: key.clone(),
            limit: LIMITS[limit].parse().unwrap(),
            slot: shared::slot(&String::from_utf8_lossy(key.parts().next().unwrap())),
            admitted: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
        };
        let clients = shared::clients(&[0, 1, 2, 0, 1, 2]);
        let all = clients.iter().flat_map(|key| (0..LIMITS.len()).map(move |limit| (key, limit)));
        let targets: Arc<Vec<Target>> = Arc::new(all.map(target).collect());
        let (counts, stop) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
        let mut callers = JoinSet::new();
        for number in 0..CALLERS {
            let (store, targets, counts, stop) = (store.clone(), targets.clone(), counts.clone(), stop.clone());
            callers.spawn(async move {
                let mut dice = fastrand::Rng::with_seed(seed.wrapping_mul(CALLERS).wrapping_add(number));
                while !stop.load(Ordering::Relaxed) {
                    ask(&store, &targets, &counts, &mut dice).await;
                }
            });
        }
        Spenders { targets, counts, stop, callers }
    }

    /// The number of requests that the store has decided so far.
    pub(crate) fn decided(&self) -> u64 {
        self.counts.admitted.load(Ordering::Relaxed) + self.counts.denied.load(Ordering::Relaxed)
    }

    /// Ends the load, once some requests were admitted and some denied: on a busy machine that takes longer.
    pub(crate) async fn stop(mut self, what: &str) -> Arc<Vec<Target>> {
        let has_some = |count: &AtomicU64| count.load(Ordering::Relaxed) > 0;
        let is_mixed = || has_some(&self.counts.admitted) && has_some(&self.counts.denied);
        eventually("admissions and denials", async || is_mixed().then_some(())).await;
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended.unwrap();
        }
        let Counts { admitted, denied, failed, lost, left } = &*self.counts;
        println!(
            "{what}: admitted {admitted:?}, denied {denied:?}, failed {failed:?}, answers lost {lost:?}, not waited for {left:?}"
        );
        self.targets
    }
}

/// Makes one request over some of the targets.
async fn ask(store: &RedisStore, targets: &[Target], counts: &Counts, dice: &mut fastrand::Rng) {
    let some = dice.choose_multiple(targets.iter(), 4);
    let some = &some[..dice.usize(2..=4)];
    let charges: Vec<Charge<'_>> = some.iter().map(|target| target.charge().cost(dice.u64(1..4))).collect();
    // Sometimes the answer is not awaited.
    let patience = if dice.u8(..6) == 0 { Duration::from_micros(dice.u64(..4_000)) } else { Duration::from_secs(60) };
    let answer = timeout(patience, store.decide(&charges)).await;
    let last = some.iter().map(|target| target.slot).max();
    let may_have_spent = || {
        for (target, charge) in some.iter().zip(&charges).filter(|(target, _)| Some(target.slot) == last) {
            target.unknown.fetch_add(charge.cost, Ordering::Relaxed);
        }
    };
    let count = match answer {
        Ok(Ok(answer)) if answer.is_allowed() => {
            for (target, charge) in some.iter().zip(&charges) {
                target.admitted.fetch_add(charge.cost, Ordering::Relaxed);
            }
            &counts.admitted
        }
        Ok(Ok(_)) => &counts.denied,
        Ok(Err(StoreError::AnswerLost { .. })) => {
            may_have_spent();
            &counts.lost
        }
        Ok(Err(_)) => {
            sleep(Duration::from_millis(1)).await;
            &counts.failed
        }
        Err(_) => {
            may_have_spent();
            &counts.left
        }
    };
    count.fetch_add(1, Ordering::Relaxed);
}

/// Checks that all admissions were charged, and all charges of denied requests were refunded.
pub(crate) async fn check<'a>(store: &RedisStore, targets: impl Iterator<Item = &'a Target>) {
    for target in targets {
        let spent = shared::spent(store, target.charge()).await;
        let (admitted, unknown) = (target.admitted.load(Ordering::Relaxed), target.unknown.load(Ordering::Relaxed));
        let what =
            format!("{} of {:?}: spent {spent}, admitted {admitted}, unknown {unknown}", target.limit, target.key);
        assert!(admitted <= target.limit.capacity(), "{what}");
        assert!((admitted..=admitted + unknown).contains(&spent), "{what}");
    }
}
