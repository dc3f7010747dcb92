//! The limits of a rule, a tier or a key: one, a list of them, or `unlimited`.

use std::sync::Arc;

use super::{cost, is_name, lease, long_form, settle, span_of, split, write_behind};
use crate::cost::Cost;
use crate::rule_limit::RuleLimit;
use crate::yaml::{Node, Reader, Value};
use tidegate_core::RuleId;
use tidegate_core::disclosure::{Disclosure, QuotaUnit};

/// The fields of a limit: its own, and those of the long form.
pub(crate) const LIMIT: [&str; 19] = [
    "name",
    "show",
    "cost",
    "reserve",
    "settle",
    "lease",
    "write_behind",
    "split",
    "algorithm",
    "rate",
    "limit",
    "slots",
    "window",
    "per",
    "calendar",
    "burst",
    "queue",
    "parts",
    "ttl",
];

/// One limit or a list of them; `unlimited` is an empty list.
pub(super) fn several(reader: &mut Reader<'_>, node: &Node, rule: &str, cost: &Cost) -> Option<Arc<[RuleLimit]>> {
    if node.as_text().as_deref() == Some("unlimited") {
        return Some(Arc::default());
    }
    let items = reader.each(node);
    let mut limits: Vec<RuleLimit> = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let Some((name, limit)) = one(reader, item, cost) else { continue };
        // A rule's only limit is the rule; of several, each has a name or a number.
        let id = match name {
            Some(name) => format!("{rule}/{name}"),
            None if number == 0 => rule.to_owned(),
            None => format!("{rule}/{}", number + 1),
        };
        let id = RuleId::new(&id);
        if limits.iter().any(|known| known.id == id) {
            reader.error(item.at, format_args!("two limits of one rule are called `{id}`"), "give each its own `name`");
        }
        limits.push(RuleLimit { id, ..limit });
        if limits.len() > MOST_LIMITS {
            reader.error(node.at, format_args!("more than {MOST_LIMITS} limits in one rule"), "make several rules");
            return None;
        }
    }
    if items.is_empty() {
        reader.error(node.at, "an empty list of limits", "write `unlimited` if that is intended");
    }
    Some(limits.into())
}

/// Every request that meets a rule is charged for each of its limits.
const MOST_LIMITS: usize = 16;

fn one(reader: &mut Reader<'_>, node: &Node, default_cost: &Cost) -> Option<(Option<String>, RuleLimit)> {
    let (mut name, mut of_cost, mut reserve, mut settled) = (None, default_cost.clone(), None, None);
    let (mut is_shown, mut leasing, mut behind, mut parts) = (true, None, None, None);
    let limit = if let Value::Map(_) = node.value {
        let fields = reader.fields(node, "a limit", &LIMIT)?;
        name = fields.get("name").and_then(|node| limit_name(reader, node));
        if let Some(node) = fields.get("cost") {
            of_cost = cost::read(reader, node)?;
        }
        if let Some(node) = fields.get("show") {
            is_shown = reader.flag(node, "`show`")?;
        }
        if let Some(node) = fields.get("reserve") {
            reserve = Some(span_of(reader, node, "`reserve`")?);
        }
        let limit = long_form::read(reader, &fields)?;
        if let Some(node) = fields.get("settle") {
            settled = Some(settle::read(reader, node, &limit)?);
            reserve = reserve.or(Some(settle::DEFAULT_RESERVE));
        }
        if let Some(node) = fields.get("lease") {
            leasing = Some(lease::read(reader, node)?);
            lease::warn_if_not_leasable(reader, node, leasing, &limit, reserve);
        }
        if let Some(node) = fields.get("write_behind") {
            behind = Some(write_behind::read(reader, node)?);
            write_behind::check(reader, node, &limit, reserve, leasing);
        }
        if let Some(node) = fields.get("split") {
            let split = split::read(reader, node)?;
            split::check(reader, node, &limit, split);
            parts = Some(split);
        }
        limit
    } else {
        reader.limit(node)?
    };
    cost::check(reader, node.at, &limit, &of_cost);
    // Settled costs are counted in the unit of the response.
    let unit = if settled.is_some() { QuotaUnit::Other } else { of_cost.unit() };
    let disclosure = Disclosure { is_shown, unit, ..Disclosure::DEFAULT };
    let id = RuleId::new("");
    let limit = RuleLimit {
        id,
        limit,
        cost: of_cost,
        reserve,
        settle: settled,
        share: None,
        leasing,
        write_behind: behind,
        split: parts,
        disclosure,
        whole: None,
    };
    Some((name, limit))
}

fn limit_name(reader: &mut Reader<'_>, node: &Node) -> Option<String> {
    let text = reader.text(node, "`name`")?;
    is_name(reader, node, &text, "a limit's name").then_some(text)
}
