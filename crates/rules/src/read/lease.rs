//! `lease`: whether and how the nodes of a fleet lease a limit.

use super::{percent, whole_millis};
use crate::rule_limit::RuleLimit;
use crate::yaml::{Node, Reader, Value};
use tidegate_core::lease::{Block, Leasing, Terms};
use tidegate_core::{Limit, Micros};

pub(crate) const LEASE: [&str; 2] = ["at_most", "every"];

pub(crate) const LEASINGS: [(&str, Leasing); 2] = [("auto", Leasing::AUTO), ("off", Leasing::OFF)];

pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<Leasing> {
    if !matches!(node.value, Value::Map(_)) {
        return reader.choice(node, "`lease`", &LEASINGS);
    }
    let fields = reader.fields(node, "`lease`", &LEASE)?;
    let percent = match fields.get("at_most") {
        Some(node) => percent(reader, node, "`at_most`", &(1..=Leasing::MOST_PERCENT))?,
        None => Leasing::MOST_PERCENT,
    };
    let millis = match fields.get("every") {
        Some(node) => whole_millis(reader, node, "`every`", &(Leasing::SHORTEST_MILLIS..=Leasing::LONGEST_MILLIS))?,
        None => Leasing::LONGEST_MILLIS,
    };
    if fields.map.is_empty() {
        reader.error(node.at, "`lease` is an empty map", "write `auto`, `off` or `{ at_most: 10%, every: 100ms }`");
        return None;
    }
    Leasing::within(percent, millis)
}

const LEASABLE: &str = "remove it; buckets and windows that last for 100 ms are leased from 40 a second on, or from 2000 at once \
                     (windows of more than an hour: from 64000), slots from 64 on with a `ttl` of a second or more";

fn can_be_leased(limit: &Limit) -> bool {
    Terms::under(limit, Leasing::AUTO).is_some() || Block::limit(limit).is_some()
}

/// Warns of `lease` for a whole rule if it has no effect, because none of the limits can be leased.
pub(super) fn warn_if_none_leasable<'l>(
    reader: &mut Reader<'_>,
    node: &Node,
    leasing: Option<Leasing>,
    limits: impl Iterator<Item = &'l mut RuleLimit>,
) {
    let is_wanted = leasing.is_some_and(|leasing| !leasing.is_off());
    let mut limits = limits.peekable();
    if is_wanted
        && limits.peek().is_some()
        && limits.all(|limit| limit.reserve.is_some() || !can_be_leased(&limit.limit))
    {
        reader.warning(node.at, "`lease` on a rule without a limit that can be leased", LEASABLE);
    }
}

/// Warns of `lease` if it has no effect, because the limit cannot be leased.
pub(super) fn warn_if_not_leasable(
    reader: &mut Reader<'_>,
    node: &Node,
    leasing: Option<Leasing>,
    limit: &Limit,
    reserve: Option<Micros>,
) {
    let is_wanted = leasing.is_some_and(|leasing| !leasing.is_off());
    if is_wanted && (reserve.is_some() || !can_be_leased(limit)) {
        let problem = if reserve.is_some() {
            "`lease` on a limit whose cost is reserved, which is never leased".to_owned()
        } else {
            format!("`lease` on `{limit}`, which is never leased")
        };
        reader.warning(node.at, problem, LEASABLE);
    }
}
