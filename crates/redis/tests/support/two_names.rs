//! A limiter during a rotation of the secret, compared with a model in memory with a single name.

use std::time::Duration;

use tidegate_core::{Charge, Clock, ManualClock, MemoryStore, Micros, Receipt, Store};
use tidegate_redis::RedisStore;
use tidegate_rules::{Limiter, Refundable, Request, RuleSet, Ruling, Secret};

const RULES: &str = "
rules:
  - id: api
    key: [method, api_key]
    limits: [fixed 9/day, sliding 14/h, { limit: log 40/h, cost: 3, reserve: 10min }]
  - { id: slots, key: 'header:authorization', limit: concurrent 4 ttl 1h }
  - { id: shadow, key: 'cookie:sid', limit: gcra 6/min burst 6, mode: shadow }
";

fn old() -> Secret {
    Secret::new(b"the previous one")
}

fn new() -> Secret {
    Secret::new(b"the present one!")
}

fn rules() -> RuleSet {
    RuleSet::parse("rules.yaml", RULES).unwrap().rules
}

fn request(client: &str) -> Request {
    Request::new("GET", "/").api_key(client).header("authorization", &format!("Bearer {client}")).cookie("sid", client)
}

fn told(ruling: &Ruling<'_>) -> Vec<(String, bool, u64)> {
    let one = |ruled: &tidegate_rules::Ruled<'_>| {
        (ruled.id.to_string(), ruled.decision.is_allowed(), ruled.decision.remaining)
    };
    ruling.ruled.iter().map(one).collect()
}

/// The remaining amount of each limit under a secret.
async fn left(store: &RedisStore, secret: &Secret, request: &Request) -> Vec<u64> {
    let rules = rules().with_secret(secret.clone());
    let matched = rules.matching(request);
    let free: Vec<Vec<Charge<'_>>> =
        matched.rules.iter().map(|rule| rule.charges().map(|charge| charge.cost(0)).collect()).collect();
    let free: Vec<Charge<'_>> = free.into_iter().flatten().collect();
    store.peek(&free).await.unwrap().iter().map(|decision| decision.remaining).collect()
}

/// Runs a random trace: admissions are charged under both names, and denials under neither, whichever name has less left.
/// `settle` waits until all refunds are made.
pub(crate) async fn both_names_are_charged_or_none(
    store: RedisStore,
    clock: ManualClock,
    seed: u64,
    settled: impl AsyncFn(&RedisStore),
) {
    let both = new().with_previous(&old()).unwrap();
    let limiter = Limiter::with_clock(rules().with_secret(both), store, clock.clone());
    let model = Limiter::with_clock(rules().with_secret(old()), MemoryStore::with_clock(clock.clone()), clock.clone());
    let of_old = rules().with_secret(old());
    let mut dice = fastrand::Rng::with_seed(seed);
    let (mut allowed, mut denied) = (0, 0);
    let mut open: Vec<(Receipt, Receipt)> = Vec::new();
    for step in 0..150 {
        let request = request(["k1", "k2", "k3"][dice.usize(..3)]);
        match dice.u32(..12) {
            0 => clock.advance(Micros::from(Duration::from_secs(dice.u64(1..900)))),
            // A node that knows only the previous secret: only enforced rules, each limit at its own cost.
            1..=3 => {
                let matched = of_old.matching(&request);
                let charges: Vec<Charge<'_>> = matched.rules[0].charges().collect();
                let there = limiter.store().decide(&charges).await.unwrap();
                let here = model.store().decide(&charges).unwrap();
                assert_eq!(there.decisions, here.decisions, "step {step}");
            }
            4..=5 if !open.is_empty() => {
                let (receipt, other) = open.swap_remove(dice.usize(..open.len()));
                let actual = dice.u64(..6);
                let settled = limiter.settle(&receipt, &vec![actual; receipt.held.len()]).await.unwrap();
                let expected = model.settle(&other, &vec![actual; other.held.len()]).await.unwrap();
                assert_eq!(settled, expected, "step {step}");
            }
            _ => {
                let names =
                    [left(limiter.store(), &new(), &request).await, left(limiter.store(), &old(), &request).await];
                let now = clock.now();
                let taken = |matched: &tidegate_rules::Matched<'_, '_>, ruling: &mut Ruling<'_>| {
                    let spent = Refundable::by(matched, ruling, now);
                    (told(ruling), ruling.is_allowed(), spent, std::mem::take(&mut ruling.receipts))
                };
                let (told, is_allowed, spent, receipts) = limiter.check_then(&request, taken).await;
                let (expected, _, other_spent, other_receipts) = model.check_then(&request, taken).await;
                assert_eq!(told, expected, "step {step}");
                settled(limiter.store()).await;
                let after =
                    [left(limiter.store(), &new(), &request).await, left(limiter.store(), &old(), &request).await];
                if is_allowed {
                    allowed += 1;
                    for (before, after) in names.iter().zip(&after) {
                        let enforced = before[..4].iter().zip(&after[..4]);
                        assert!(enforced.clone().all(|(before, after)| before > after), "step {step}: {before:?}");
                    }
                    if dice.bool() {
                        limiter.refund(spent).await.unwrap();
                        model.refund(other_spent).await.unwrap();
                    }
                    assert_eq!(receipts.len(), other_receipts.len());
                    open.extend(receipts.into_iter().zip(other_receipts));
                } else {
                    denied += 1;
                    assert_eq!(after, names, "step {step}");
                }
                // All nodes charge the old name, so the new name never has less left.
                assert!(after[0].iter().zip(&after[1]).all(|(new, old)| new >= old), "step {step}: {after:?}");
            }
        }
    }
    assert!(allowed > 10 && denied > 10, "{allowed} allowed, {denied} denied");
}
