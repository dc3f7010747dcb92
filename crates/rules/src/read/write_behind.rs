//! `write_behind`: how far the nodes of a fleet decide a limit by their own copies.

use super::{percent, whole_millis};
use crate::rule_limit::RuleLimit;
use crate::rule_limits::Limits;
use crate::yaml::{Node, Reader};
use tidegate_core::lease::Leasing;
use tidegate_core::write_behind::WriteBehind;
use tidegate_core::{Limit, Micros};

pub(crate) const WRITE_BEHIND: [&str; 2] = ["at_most", "every"];

pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<WriteBehind> {
    let fields = reader.fields(node, "`write_behind`", &WRITE_BEHIND)?;
    let Some(at_most) = fields.get("at_most") else {
        if fields.understood {
            let help = "write the most that the fleet may admit beyond the limit, such as `{ at_most: 5% }`";
            reader.error(node.at, "`write_behind` without `at_most`", help);
        }
        return None;
    };
    let percent = percent(reader, at_most, "`at_most`", &(1..=WriteBehind::MOST_PERCENT))?;
    let millis = match fields.get("every") {
        Some(node) => {
            let bounds = WriteBehind::SHORTEST_MILLIS..=WriteBehind::LONGEST_MILLIS;
            whole_millis(reader, node, "`every`", &bounds)?
        }
        None => WriteBehind::DEFAULT_MILLIS,
    };
    WriteBehind::within(percent, millis)
}

/// Refuses a limit that copies cannot decide.
pub(super) fn check(
    reader: &mut Reader<'_>,
    node: &Node,
    limit: &Limit,
    reserve: Option<Micros>,
    leasing: Option<Leasing>,
) {
    if let Some((problem, help)) = obstacle(limit, reserve, leasing) {
        reader.error(node.at, problem, help);
    }
}

/// Checks the limits of a rule with `write_behind`. A limit that copies cannot decide is an error: its requests would wait
/// for the store, which the rule is meant to avoid.
pub(super) fn check_rule(reader: &mut Reader<'_>, node: &Node, limits: &mut Limits) {
    let found = limits.all_mut().find_map(|limit: &mut RuleLimit| obstacle(&limit.limit, limit.reserve, limit.leasing));
    if let Some((problem, help)) = found {
        reader.error(node.at, problem, help);
    }
}

fn obstacle(limit: &Limit, reserve: Option<Micros>, leasing: Option<Leasing>) -> Option<(String, &'static str)> {
    let choose = "write it on limits that are token buckets, `gcra`, `meter` or `fixed`";
    if !WriteBehind::supports(limit) {
        Some((format!("`write_behind` on `{limit}`, which only the store can decide"), choose))
    } else if reserve.is_some() {
        Some(("`write_behind` on a limit whose cost is reserved, which only the store can decide".to_owned(), choose))
    } else if leasing.is_some_and(|leasing| !leasing.is_off()) {
        Some((
            "`write_behind` and `lease` on one limit".to_owned(),
            "keep one of them: leases never admit more than the limit",
        ))
    } else {
        None
    }
}
