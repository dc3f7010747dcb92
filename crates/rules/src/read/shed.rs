//! `shed`: slots shared by priorities, each up to its part.

use std::sync::Arc;

use super::{PRIORITIES, percent, span_of};
use crate::rule_limit::RuleLimit;
use crate::yaml::{Node, Reader};
use tidegate_core::Micros;
use tidegate_core::limit::{Concurrency, Limit};

pub(crate) const SHED: [&str; 6] = ["slots", "ttl", "critical", "high", "normal", "low"];

/// The default part of each priority, in percent, from low to critical.
const DEFAULT_PERCENT: [u64; 4] = [50, 80, 90, 100];
/// The default lease of a slot.
const DEFAULT_TTL: Micros = Micros::from_secs(60);

/// The limits of a rule with `shed`: for requests of each priority, from low to critical.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node, rule: &str) -> Option<[Arc<[RuleLimit]>; 4]> {
    let fields = reader.fields(node, "`shed`", &SHED)?;
    let Some(slots) = fields.get("slots") else {
        reader.error(node.at, "`shed` without `slots`", "write how many requests the fleet can work on: `slots: 1000`");
        return None;
    };
    let count = reader.count(slots, "`slots`")?;
    if count == 0 {
        reader.warning(slots.at, "`shed` with 0 slots refuses every request", "raise it, unless that is intended");
    }
    let ttl = match fields.get("ttl") {
        Some(node) => span_of(reader, node, "`ttl`")?,
        None => DEFAULT_TTL,
    };
    let mut percents = DEFAULT_PERCENT;
    for (name, priority) in PRIORITIES {
        if let Some(node) = fields.get(name) {
            percents[priority as usize] = percent(reader, node, &format!("`{name}`"), &(0..=100))?.into();
        }
    }
    if !percents.is_sorted() {
        let problem = "a priority has a larger share than a more important one";
        reader.error(node.at, problem, "let shares grow from `low` to `critical`");
        return None;
    }
    if let Some(node) = fields.get("critical").filter(|_| percents[3] == 0 && count > 0) {
        reader.warning(
            node.at,
            "`shed` without a share for any priority refuses every request",
            "raise it, unless that is intended",
        );
    }
    let limit = |percent: u64| match Concurrency::new(count.saturating_mul(percent).div_ceil(100), ttl) {
        Ok(slots) => Some(Limit::from(slots)),
        Err(error) => {
            reader.error(slots.at, error.to_string(), "write a smaller number");
            None
        }
    };
    let limits: Vec<Limit> = percents.into_iter().map_while(limit).collect();
    let of = |limit: &Limit| -> Arc<[RuleLimit]> { Arc::new([RuleLimit::plain(rule, *limit)]) };
    limits.iter().map(of).collect::<Vec<_>>().try_into().ok()
}
