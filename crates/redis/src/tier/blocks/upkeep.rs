//! Calls of the store for blocks of slots: taking, renewing and releasing them.

use tidegate_core::lease::{Block, Leasing};
use tidegate_core::limit::{Concurrency, MOST_SLOTS};
use tidegate_core::{Charge, Clock, Decision, Limit, Micros, Receipt, Store};

use super::{BlockKey, Due};
use crate::join_all::join_all;
use crate::tier::TierInner;
use crate::tier::leases::add;

/// Maximum number of calls for one block. The second one asks for the number of slots that the first one found.
const MOST_TRIES: usize = 2;

/// Makes the calls that are due, all at once.
pub(in crate::tier) async fn tend<S: Store, C: Clock>(tier: &TierInner<S, C>, due: Vec<Due>) {
    if let Some(leases) = tier.leases.as_ref().filter(|_| !due.is_empty()) {
        add(&leases.counters.calls, 1);
        add(&leases.counters.renewals, due.len() as u64);
        join_all(due.into_iter().map(|due| make(tier, due))).await;
    }
}

async fn make<S: Store, C: Clock>(tier: &TierInner<S, C>, due: Due) {
    let is_done = match due {
        Due::Take(key) => take(tier, &key).await,
        Due::Poll(key) => poll(tier, &key).await,
        Due::Renew(key, receipt) => renew_block(tier, &key, &receipt).await.is_some(),
        // If the release is lost, the block ends when its time is over.
        Due::Release(receipt) => tier.store.settle(&receipt, &[0]).await.is_ok(),
    };
    if let Some(leases) = tier.leases.as_ref().filter(|_| !is_done) {
        add(&leases.counters.failed, 1);
    }
}

/// Asks for another block. If fewer slots are left than the node wants, for half of those.
async fn take<S: Store, C: Clock>(tier: &TierInner<S, C>, key: &BlockKey) -> bool {
    let mut wanted = key.wanted(tier.clock.now());
    for _ in 0..MOST_TRIES {
        if wanted == 0 {
            break;
        }
        let (generation, sent_at) = (tier.store.server_generation(), tier.clock.now());
        let charge = Charge { leasing: Leasing::OFF, ..charge_of(key, &key.of_blocks).cost(wanted) };
        let answer = tier.store.decide(&[charge]).await;
        let now = tier.clock.now();
        let Ok(answer) = answer else {
            key.not_granted(None, now);
            return false;
        };
        tier.calls.count(std::iter::once((&key.rule, &key.key)), now);
        let decision = answer.decisions.first().copied().unwrap_or(Decision::NONE);
        if let Some(receipt) = answer.receipt {
            if let Some(block) = Block::new(wanted, key.ttl, sent_at) {
                key.granted(receipt, block, generation, decision.remaining, now);
            }
            return true;
        }
        if decision.remaining == 0 {
            key.not_granted(Some(decision.retry_after().unwrap_or(Micros::new(1))), now);
            return true;
        }
        wanted = decision.remaining.div_ceil(2).min(wanted);
    }
    key.not_granted(None, tier.clock.now());
    true
}

/// Looks how many slots the fleet holds. A greater limit of the same key may hold more than this one has.
async fn poll<S: Store, C: Clock>(tier: &TierInner<S, C>, key: &BlockKey) -> bool {
    let Ok(all) = Concurrency::new(MOST_SLOTS, key.ttl).map(Limit::from) else { return true };
    let Ok(decisions) = tier.store.peek(&[charge_of(key, &all).cost(0)]).await else { return false };
    if let Some(decision) = decisions.first() {
        key.polled(MOST_SLOTS.saturating_sub(decision.remaining), tier.clock.now());
    }
    true
}

/// Renews a block. Returns whether the store knows the block; `None` if it does not answer.
pub(in crate::tier) async fn renew_block<S: Store, C: Clock>(
    tier: &TierInner<S, C>,
    key: &BlockKey,
    receipt: &Receipt,
) -> Option<bool> {
    let (generation, sent_at) = (tier.store.server_generation(), tier.clock.now());
    // Renewals are idempotent, so one without an answer is sent again.
    let is_there = tier.store.renew(receipt).await.ok();
    key.renewed(receipt.id, is_there, generation, sent_at, tier.clock.now());
    is_there
}

fn charge_of<'k>(key: &'k BlockKey, limit: &'k Limit) -> Charge<'k> {
    Charge::new(&key.rule, &key.key, limit)
}
