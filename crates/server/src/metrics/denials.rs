//! Sampled denials, for the log and for live views.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tidegate_core::{Outcome, Timestamp};
use tidegate_rules::{DecidedBy, Mode, Ruled};

/// Number of denials kept.
const KEPT: usize = 256;
/// Maximum number of log lines per epoch.
const MOST_LINES: usize = 100;

/// A request that was denied, or would have been by a rule in shadow mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Sequence number, from 1.
    pub number: u64,
    /// Time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Limit that denied it.
    pub rule: String,
    /// Mode of the rule.
    pub mode: Mode,
    /// Key of the request; secrets are hidden, long parts cut.
    pub key: Vec<String>,
    /// Time to wait before a retry, in milliseconds; `None` if it is too large and can never succeed.
    pub retry_after_ms: Option<u64>,
    /// Whether the store was unavailable, and the rule's failure policy decided.
    pub without_store: bool,
}

/// Most recent sampled denials.
#[derive(Debug, Default)]
pub(super) struct RecentDenials(Mutex<DenialRing>);

#[derive(Debug, Default)]
struct DenialRing {
    number: u64,
    denials: VecDeque<Arc<Denial>>,
}

impl RecentDenials {
    pub(super) fn push(&self, ruled: &Ruled<'_>, key: Vec<String>, at: Timestamp) -> Arc<Denial> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.number += 1;
        let denial = Arc::new(Denial {
            number: kept.number,
            at_ms: at.as_micros() / 1_000,
            rule: ruled.id.as_str().to_owned(),
            mode: ruled.mode,
            key,
            retry_after_ms: match ruled.decision.outcome {
                Outcome::Deny { retry_after } => Some(retry_after.get().div_ceil(1_000)),
                Outcome::Allow { .. } | Outcome::TooLarge { .. } => None,
            },
            without_store: ruled.by != DecidedBy::Store,
        });
        if kept.denials.len() >= KEPT {
            kept.denials.pop_front();
        }
        kept.denials.push_back(Arc::clone(&denial));
        denial
    }

    /// Denials with a higher number, oldest first.
    pub(super) fn after(&self, number: u64) -> Vec<Arc<Denial>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.denials.iter().filter(|denial| denial.number > number).cloned().collect()
    }
}

/// Logs one line for each limit that denied requests, with the first denial and their number.
pub(super) fn log(lines: &[(&str, u64, Option<Arc<Denial>>)]) {
    for (rule, denials, first) in lines.iter().take(MOST_LINES) {
        match first {
            Some(first) => {
                // The first denial represents the others: the mode is the same until the rules change.
                let what = if first.mode == Mode::Shadow { "would deny (shadow mode)" } else { "denied" };
                tracing::info!(
                    target: "tidegate::denials",
                    rule,
                    mode = %first.mode,
                    denials,
                    first_key = first.key.join(", "),
                    first_retry_after_ms = first.retry_after_ms,
                    without_store = first.without_store,
                    "{what}"
                );
            }
            None => tracing::info!(target: "tidegate::denials", rule, denials, "denied"),
        }
    }
    if let Some(more) = lines.len().checked_sub(MOST_LINES).filter(|more| *more > 0) {
        tracing::info!(target: "tidegate::denials", limits = more, "denials of further limits are not listed");
    }
}
