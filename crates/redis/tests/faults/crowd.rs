//! Clients that send requests continuously, under rules with each failure policy, and the outcomes of their requests.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_redis::link::{BreakerState, ServerStats};
use tidegate_redis::tier::Tier;
use tidegate_redis::{RedisStore, Settings};
use tidegate_rules::{DecidedBy, Limiter, Request, RuleSet, Ruling};
use tidegate_test_support::eventually;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The time that a request may wait for the store, unless its rules state otherwise.
const DEADLINE: Duration = Duration::from_millis(20);
/// Additional time that a busy machine may need in a test: tasks were observed to be a second late. On an idle machine it
/// is less than 5 milliseconds.
const SLACK: Duration = Duration::from_millis(1_500);

const CALLERS: usize = 12;
/// A crowd asks as fast as it is answered: more of them at once would leave too little of the machine to meet deadlines.
static CROWDS: Semaphore = Semaphore::const_new(2);
/// The most that a client may be admitted by the store, and by this process alone.
const LIMIT: u64 = 50;
const SHARE: u64 = 25;
/// Number of requests of a client before the next client's turn.
const ASKS: u64 = 80;

/// Every request is charged to its user and to its address, whose keys are in different slots of a cluster.
const RULES: &str = "
rules:
  - { id: open, match: { path: /open }, key: user, limit: fixed 50/year calendar, on_store_failure: allow }
  - { id: open-all, match: { path: /open }, key: address, limit: fixed 1000000000/year calendar, on_store_failure: allow }
  - { id: shut, match: { path: /shut }, key: user, limit: fixed 50/year calendar, on_store_failure: deny }
  - { id: shut-all, match: { path: /shut }, key: address, limit: fixed 1000000000/year calendar, on_store_failure: deny }
  - { id: part, match: { path: /part }, key: user, limit: fixed 50/year calendar, on_store_failure: { local_percent: 50 } }
  - { id: part-all, match: { path: /part }, key: address, limit: fixed 1000000000/year calendar, on_store_failure: local }
";

/// The address of all requests.
pub(crate) const ADDRESS: &str = "203.0.113.7";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Policy {
    Allow,
    Deny,
    Local,
}

impl Policy {
    const ALL: [Policy; 3] = [Policy::Allow, Policy::Deny, Policy::Local];

    const fn path(self) -> &'static str {
        match self {
            Policy::Allow => "/open",
            Policy::Deny => "/shut",
            Policy::Local => "/part",
        }
    }

    const fn decides_as(self) -> DecidedBy {
        match self {
            Policy::Allow => DecidedBy::Allow,
            Policy::Deny => DecidedBy::Deny,
            Policy::Local => DecidedBy::Local,
        }
    }
}

/// The number of requests of one client that were admitted.
#[derive(Clone, Copy, Debug, Default)]
struct Admitted {
    by_store: u64,
    by_policy: u64,
}

/// The outcomes of all requests.
#[derive(Default)]
struct Lived {
    admitted: Mutex<HashMap<(Policy, String), Admitted>>,
    by_store: AtomicU64,
    /// By failure policy.
    by_policy: [AtomicU64; 3],
    /// In microseconds.
    longest: AtomicU64,
}

impl Lived {
    fn note(&self, policy: Policy, user: &str, ruling: &Ruling<'_>, took: Duration) {
        self.longest.fetch_max(u64::try_from(took.as_micros()).unwrap(), Ordering::Relaxed);
        assert_eq!(ruling.ruled.len(), 2, "{ruling:?}");
        let is_by_policy = ruling.is_by_policy();
        for ruled in &ruling.ruled {
            let expected = if is_by_policy { policy.decides_as() } else { DecidedBy::Store };
            assert_eq!(ruled.by, expected, "{policy:?}: {ruling:?}");
        }
        if is_by_policy {
            self.by_policy[policy as usize].fetch_add(1, Ordering::Relaxed);
            match policy {
                Policy::Allow => assert!(ruling.is_allowed(), "{ruling:?}"),
                Policy::Deny => assert!(!ruling.is_allowed(), "{ruling:?}"),
                Policy::Local => {}
            }
        } else {
            self.by_store.fetch_add(1, Ordering::Relaxed);
        }
        if ruling.is_allowed() {
            let mut admitted = self.admitted.lock().unwrap();
            let of_user = admitted.entry((policy, user.to_owned())).or_default();
            if is_by_policy {
                of_user.by_policy += 1;
            } else {
                of_user.by_store += 1;
            }
        }
    }

    fn by_policy(&self) -> [u64; 3] {
        self.by_policy.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

pub(crate) struct Crowd {
    pub(crate) limiter: Arc<Limiter<Tier<RedisStore>>>,
    lived: Arc<Lived>,
    stop: Arc<AtomicBool>,
    callers: JoinSet<()>,
    _turn: SemaphorePermit<'static>,
}

async fn ask(limiter: &Limiter<Tier<RedisStore>>, lived: &Lived, policy: Policy, user: &str) -> Ruling<'static> {
    let address = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));
    let request = Request::new("GET", policy.path()).user(user).address(address);
    let began = Instant::now();
    let ruling = limiter.check(&request).await;
    lived.note(policy, user, &ruling, began.elapsed());
    ruling
}

impl Crowd {
    /// Starts clients of a limiter with these servers. Returns once the store decides requests.
    pub(crate) async fn gather(settings: Settings) -> Crowd {
        let turn = CROWDS.acquire().await.unwrap();
        let store = Tier::new(RedisStore::open(settings).unwrap());
        let limiter = Arc::new(Limiter::new(RuleSet::parse("rules.yaml", RULES).unwrap().rules, store));
        let (lived, stop) = (Arc::new(Lived::default()), Arc::new(AtomicBool::new(false)));
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (limiter, lived, stop) = (limiter.clone(), lived.clone(), stop.clone());
            let policy = Policy::ALL[caller % 3];
            callers.spawn(async move {
                let mut asked = 0;
                // Answers by policy return immediately, so the rate is limited.
                let mut pace = interval(Duration::from_millis(1));
                pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !stop.load(Ordering::Relaxed) {
                    let user = format!("{caller}-{}", asked / ASKS);
                    let ruling = ask(&limiter, &lived, policy, &user).await;
                    asked += 1;
                    if ruling.is_by_policy() {
                        pace.tick().await;
                    } else {
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
        let crowd = Crowd { limiter, lived, stop, callers, _turn: turn };
        crowd.some_work().await;
        crowd
    }

    /// Waits until the store has decided more requests.
    pub(crate) async fn some_work(&self) {
        let before = self.lived.by_store.load(Ordering::Relaxed);
        eventually("some work", async || (self.lived.by_store.load(Ordering::Relaxed) > before + 1_000).then_some(()))
            .await;
    }

    /// Waits until every policy has decided some requests.
    pub(crate) async fn policies_decide(&self) {
        self.policies_decide_times(10).await;
    }

    /// Waits until every policy has decided this many requests.
    pub(crate) async fn policies_decide_times(&self, times: u64) {
        let before = self.lived.by_policy();
        eventually("decisions by every policy", async || {
            let now = self.lived.by_policy();
            before.iter().zip(now).all(|(before, now)| now > before + times).then_some(())
        })
        .await;
    }

    /// Waits until this many more requests were decided, by the store or by policies.
    pub(crate) async fn decisions(&self, times: u64) {
        let all = || self.lived.by_store.load(Ordering::Relaxed) + self.lived.by_policy().iter().sum::<u64>();
        let before = all();
        eventually("decisions", async || (all() > before + times).then_some(())).await;
    }

    /// Waits until no calls have been sent to the server for so long, but for probes.
    pub(crate) async fn unavailable_for(&self, span: Duration) {
        let link = self.limiter.store().behind();
        eventually("an outage that lasts", async || {
            let servers = link.stats().servers;
            let is_unavailable =
                |server: &ServerStats| server.breaker != BreakerState::Closed && server.lasting >= span;
            servers.iter().all(is_unavailable).then_some(())
        })
        .await;
    }

    /// The time until the store decides again, several times in a row under every rule.
    pub(crate) async fn back(&self) -> Duration {
        let (began, mut in_a_row) = (Instant::now(), 0);
        eventually("service that is back", async || {
            for policy in Policy::ALL {
                let user = format!("back {}", fastrand::u32(..));
                let ruling = ask(&self.limiter, &self.lived, policy, &user).await;
                in_a_row = if ruling.is_by_policy() { 0 } else { in_a_row + 1 };
            }
            (in_a_row >= 15).then_some(())
        })
        .await;
        began.elapsed()
    }

    /// Stops the clients, and checks the outcomes. The servers have lost their data `losses` times.
    pub(crate) async fn disperse(mut self, what: &str, back: Option<Duration>, losses: u64) {
        eventually("a store that counts as well", async || self.limiter.health().store.is_healthy().then_some(()))
            .await;
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended.unwrap();
        }
        let longest = Duration::from_micros(self.lived.longest.load(Ordering::Relaxed));
        let (health, by_policy) = (self.limiter.health(), self.lived.by_policy());
        println!(
            "{what}: longest wait {longest:?}, back after {back:?}; by the store {}, by policy {by_policy:?}, \
             charged unknown {}, outages {}",
            self.lived.by_store.load(Ordering::Relaxed),
            health.charged_unknown,
            health.outages,
        );
        assert!(longest < DEADLINE + SLACK, "{what}: somebody waited {longest:?}");
        let decided = health.decided;
        let told = [decided.allow, decided.deny, decided.local_allowed + decided.local_denied];
        assert_eq!(told, by_policy.map(|count| 2 * count), "{what}: {health:?}");
        assert_eq!((decided.allow_ended, decided.too_large), (0, 0));
        for ((policy, user), admitted) in &*self.lived.admitted.lock().unwrap() {
            let by_policy = match policy {
                Policy::Allow => u64::MAX,
                Policy::Deny => 0,
                Policy::Local => SHARE,
            };
            let is_bound = admitted.by_store <= LIMIT * (1 + losses) && admitted.by_policy <= by_policy;
            assert!(is_bound, "{what}: {policy:?} {user} {admitted:?}");
        }
    }
}
