//! `on_store_failure` and `store_deadline`: what happens to requests that the store cannot decide, and after which time.

use super::{cost, span_of};
use crate::rule::OnStoreFailure;
use crate::rule_limits::Limits;
use crate::yaml::{Node, Position, Reader, Value};
use tidegate_core::Micros;

pub(crate) const ON_STORE_FAILURE: [&str; 2] = ["allow_for", "local_percent"];

pub(crate) const FAILURE_POLICIES: [(&str, OnStoreFailure); 3] = [
    ("allow", OnStoreFailure::Allow { at_most: None }),
    ("deny", OnStoreFailure::Deny),
    ("local", OnStoreFailure::Local { percent: 100 }),
];

const SHORTEST_DEADLINE: Micros = Micros::from_millis(1);
const LONGEST_DEADLINE: Micros = Micros::from_secs(10);

pub(super) fn policy(reader: &mut Reader<'_>, node: &Node) -> Option<OnStoreFailure> {
    if !matches!(node.value, Value::Map(_)) {
        return reader.choice(node, "`on_store_failure`", &FAILURE_POLICIES);
    }
    let fields = reader.fields(node, "`on_store_failure`", &ON_STORE_FAILURE)?;
    match (fields.get("allow_for"), fields.get("local_percent")) {
        (Some(span), None) => {
            let at_most = span_of(reader, span, "`allow_for`")?;
            Some(OnStoreFailure::Allow { at_most: Some(at_most) })
        }
        (None, Some(percent)) => match reader.count(percent, "`local_percent`")? {
            number @ 1..=100 => Some(OnStoreFailure::Local { percent: u8::try_from(number).unwrap_or(100) }),
            number => {
                reader.error(percent.at, format_args!("`local_percent` cannot be {number}"), "write 1 to 100");
                None
            }
        },
        _ => {
            let help = "write `allow`, `deny`, `local`, `{ allow_for: 30s }` or `{ local_percent: 20 }`";
            reader.error(node.at, "expected `allow_for` or `local_percent`", help);
            None
        }
    }
}

pub(super) fn deadline(reader: &mut Reader<'_>, node: &Node) -> Option<Micros> {
    let span = span_of(reader, node, "`store_deadline`")?;
    if (SHORTEST_DEADLINE..=LONGEST_DEADLINE).contains(&span) {
        return Some(span);
    }
    let problem = format_args!("`store_deadline` cannot be {span}");
    reader.error(node.at, problem, format!("write {SHORTEST_DEADLINE} to {LONGEST_DEADLINE}"));
    None
}

/// Computes the share of each limit that this process may decide alone. `at` is the position of the policy.
pub(super) fn share(reader: &mut Reader<'_>, at: Position, policy: OnStoreFailure, limits: &mut Limits) {
    let OnStoreFailure::Local { percent } = policy else { return };
    for limit in limits.all_mut() {
        match limit.limit.share(percent) {
            Ok(share) => {
                if percent < 100 {
                    warn_if_too_small(reader, at, share.capacity(), cost::most(&limit.cost));
                }
                limit.share = Some(Box::new(share));
            }
            Err(error) => {
                reader.error(at, format_args!("{percent}% of `{}` cannot be counted", limit.limit), error.to_string());
            }
        }
    }
}

fn warn_if_too_small(reader: &mut Reader<'_>, at: Position, holds: u64, cost: u64) {
    if cost > holds && holds > 0 {
        let problem = format_args!("a request that costs {cost} cannot pass a share that holds {holds}");
        reader.warning(
            at,
            problem,
            "it is denied while the store is unavailable: raise `local_percent`, or lower the cost",
        );
    }
}
