//! `split`: the number of parts of a limit that nodes cannot lease.

use crate::rule_limit::RuleLimit;
use crate::split::{PARTS, Split, can_be_split};
use crate::yaml::{Node, Reader};
use tidegate_core::Limit;
use tidegate_core::lease::{Leasing, Terms};

pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<Split> {
    let parts = reader.count(node, "`split`")?;
    let split = Split::into(parts);
    if split.is_none() {
        let help = format!("write a number of parts from {} to {}, or leave `split` out", PARTS.start(), PARTS.end());
        reader.error(node.at, format_args!("`split` cannot be {parts}"), help);
    }
    split
}

/// Refuses to split limits that can be leased instead, or are too small to split. Returns whether it refused.
pub(super) fn check(reader: &mut Reader<'_>, node: &Node, limit: &Limit, split: Split) -> bool {
    if !can_be_split(limit) {
        let help = match Terms::under(limit, Leasing::AUTO) {
            Some(_) => "remove it: nodes lease the busy keys of this limit, see `lease`",
            None => "remove it: shapers and logs can be split, and busy keys of other limits are leased",
        };
        reader.error(node.at, format_args!("`split` on `{limit}`, which is neither a shaper nor a log"), help);
    } else if limit.capacity() > 0 && split.part_of(limit).is_none() {
        let problem = format_args!("`{limit}` is too small for {} parts: each would admit nothing", split.parts());
        reader.error(node.at, problem, "write fewer parts, or a larger limit");
    } else {
        return false;
    }
    true
}

/// Splits all limits of a rule without a number of parts of their own.
pub(super) fn apply<'l>(
    reader: &mut Reader<'_>,
    node: &Node,
    split: Split,
    limits: impl Iterator<Item = &'l mut RuleLimit>,
) {
    let mut is_refused = false;
    for limit in limits.filter(|limit| limit.split.is_none()) {
        // One error is enough for the limits of all tiers and priorities.
        is_refused = is_refused || check(reader, node, &limit.limit, split);
        limit.split = Some(split);
    }
}
