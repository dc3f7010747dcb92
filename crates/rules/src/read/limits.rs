//! `limit`, `limits` and `tiers`: what a rule allows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{adapt, cost, is_name, lease, long_form, overrides, settle, shed, span_of, split, write_behind};
use crate::cost::Cost;
use crate::presets::Preset;
use crate::rule::KeyPart;
use crate::rule_limits::{Limits, RuleLimit, Variants};
use crate::yaml::{Fields, Node, Reader, Value};
use tidegate_core::RuleId;
use tidegate_core::disclosure::{DenialKind, DenialStatus, Disclosure, QuotaUnit};
use tidegate_core::lease::Leasing;

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

/// The meaning of a denial by a rule.
pub(crate) const PROBLEMS: [(&str, DenialKind); 3] = [
    kind_named(DenialKind::QuotaExceeded),
    kind_named(DenialKind::AbnormalUsage),
    kind_named(DenialKind::ReducedCapacity),
];

/// The status of a denial by `shed`: overload is no fault of the client.
const OVERLOAD: Option<DenialStatus> = DenialStatus::new(503);

const fn kind_named(kind: DenialKind) -> (&'static str, DenialKind) {
    (kind.as_str(), kind)
}

pub(super) fn read(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    rule: &str,
    key: &[KeyPart],
    preset: Option<Preset>,
) -> Limits {
    let cost = fields.get("cost").and_then(|node| cost::read(reader, node)).unwrap_or(Cost::Fixed(1));
    let is_shown = fields.get("show").and_then(|node| reader.flag(node, "`show`")).unwrap_or(true);
    let problem = fields.get("problem").and_then(|node| reader.choice(node, "`problem`", &PROBLEMS));
    let status = fields.get("status").and_then(|node| denial_status(reader, node));
    let leasing = fields.get("lease").and_then(|node| lease::read(reader, node));
    let behind = fields.get("write_behind").and_then(|node| write_behind::read(reader, node));
    let mut limits = Limits::default();
    match (fields.get("limit"), fields.get("limits")) {
        (Some(_), Some(both)) => {
            reader.error(both.at, "`limit` and `limits` in one rule", "keep `limits`, with all of them in it");
        }
        (Some(one), None) | (None, Some(one)) => limits.default = several(reader, one, rule, &cost),
        (None, None) => {
            limits.default = preset.map(|preset| {
                let limit = preset.limit();
                cost::check(reader, fields.at, &limit, &cost);
                Arc::new([RuleLimit {
                    id: RuleId::new(rule),
                    limit,
                    cost: cost.clone(),
                    reserve: None,
                    settle: None,
                    share: None,
                    leasing: None,
                    write_behind: None,
                    split: None,
                    disclosure: Disclosure { unit: cost.unit(), ..Disclosure::DEFAULT },
                    whole: None,
                }]) as Arc<[_]>
            });
        }
    }
    if let Some(node) = fields.get("tiers") {
        limits.tiers = by_tier(reader, node, rule, &cost).into_iter().collect();
    }
    warn_if_closed(reader, fields, &limits);
    if let Some(node) = fields.get("overrides") {
        limits.overrides = overrides::read(reader, node, rule, key, &cost);
    }
    let (mut default_problem, mut default_status) = (DenialKind::default(), None);
    if let Some(node) = fields.get("shed") {
        by_priority(reader, fields, node, rule, &mut limits);
        (default_problem, default_status) = (DenialKind::ReducedCapacity, OVERLOAD);
    }
    if let Some(node) = fields.get("adapt") {
        by_rate(reader, fields, node, rule, &cost, &mut limits);
    }
    if let Some(node) = fields.get("lease") {
        lease::warn_if_all_vain(reader, node, leasing, limits.all_mut());
    }
    for limit in limits.all_mut() {
        limit.disclosure.is_shown &= is_shown;
        limit.disclosure.problem = problem.unwrap_or(default_problem);
        limit.disclosure.status = status.or(default_status);
        limit.leasing = limit.leasing.or(leasing);
        limit.write_behind = limit.write_behind.or(behind);
    }
    if let Some(node) = fields.get("write_behind") {
        write_behind::check_rule(reader, node, &mut limits);
    }
    for limit in limits.all_mut().filter(|limit| limit.write_behind.is_some()) {
        limit.leasing = Some(Leasing::OFF);
    }
    if let Some(node) = fields.get("split")
        && let Some(parts) = split::read(reader, node)
    {
        split::apply(reader, node, parts, limits.all_mut());
    }
    let says = |name: &&str| fields.get(name).is_some();
    if fields.understood && !["limit", "limits", "adapt", "shed", "tiers", "overrides", "preset"].iter().any(says) {
        reader.error(fields.at, "a rule without a limit", "write one such as `limit: 20/s burst 50`");
    }
    limits
}

/// The slots that priorities share. They are all that such a rule limits.
fn by_priority(reader: &mut Reader<'_>, fields: &Fields<'_>, node: &Node, rule: &str, limits: &mut Limits) {
    let others = ["limit", "limits", "tiers", "overrides", "preset", "cost"];
    if let Some(other) = others.into_iter().find(|name| fields.get(name).is_some()) {
        reader.error(node.at, format_args!("`shed` and `{other}` in one rule"), "make two rules of them");
        return;
    }
    let Some(all) = shed::read(reader, node, rule) else { return };
    // Of its own, so that it can still be changed while the rule is read.
    limits.default = all.last().map(|whole| whole.iter().cloned().collect());
    limits.variants = Some(Box::new(Variants::ByPriority(all)));
}

/// The limit at each step of a rate that adapts. It is the only one of such a rule.
fn by_rate(reader: &mut Reader<'_>, fields: &Fields<'_>, node: &Node, rule: &str, cost: &Cost, limits: &mut Limits) {
    let others = ["limits", "shed", "tiers", "overrides", "preset", "write_behind"];
    if let Some(other) = others.into_iter().find(|name| fields.get(name).is_some()) {
        reader.error(node.at, format_args!("`adapt` and `{other}` in one rule"), "make two rules of them");
        return;
    }
    let written = match (fields.get("limit"), limits.default.as_deref()) {
        (None, _) => None,
        (Some(_), Some([limit])) => Some(limit.clone()),
        (Some(limit), Some(_)) => {
            reader.error(limit.at, "`adapt` beside more or less than one limit", "write one, such as `limit: 1000/s`");
            return;
        }
        // Its own error was told.
        (Some(_), None) => return,
    };
    let Some(ladder) = adapt::read(reader, node, rule, written.as_ref(), cost) else { return };
    // Of its own, so that it can still be changed while the rule is read.
    limits.default = ladder.limits.last().map(|highest| highest.iter().cloned().collect());
    limits.variants = Some(Box::new(Variants::ByRate(ladder)));
}

fn denial_status(reader: &mut Reader<'_>, node: &Node) -> Option<DenialStatus> {
    let number = reader.count(node, "`status`")?;
    let status = u16::try_from(number).ok().and_then(DenialStatus::new);
    if status.is_none() {
        let problem = format_args!("`status` is {number}, which does not say that a request failed");
        reader.error(node.at, problem, "write one from 400 to 599, such as `503`; without it a denial is 429");
    }
    status
}

/// Warns of a limit that admits nothing. One for a single key is how that key is blocked, and is meant.
fn warn_if_closed(reader: &mut Reader<'_>, fields: &Fields<'_>, limits: &Limits) {
    let of_tiers = limits.tiers.iter().map(|(_, limits)| limits);
    let closed = limits.default.iter().chain(of_tiers).flat_map(|limits| limits.iter());
    if let Some(closed) = closed.into_iter().find(|limit| limit.limit.capacity() == 0) {
        let at =
            ["limit", "limits", "tiers"].iter().find_map(|name| fields.get(name)).map_or(fields.at, |node| node.at);
        let problem = format!("`{}` admits nothing: every request that it governs is denied", closed.limit);
        reader.warning(at, problem, "raise the limit or its burst, unless that is meant");
    }
}

fn by_tier(reader: &mut Reader<'_>, node: &Node, rule: &str, cost: &Cost) -> BTreeMap<String, Arc<[RuleLimit]>> {
    let Value::Map(map) = &node.value else {
        let help = "write tiers and their limits, such as `{ free: 10/s, paid: 100/s }`";
        reader.error(node.at, format_args!("`tiers` is {} where a map is wanted", node.kind()), help);
        return BTreeMap::new();
    };
    let mut limits = BTreeMap::new();
    for (name, node) in map {
        if let Some(several) = several(reader, node, rule, cost) {
            limits.insert(name.text.clone(), several);
        }
    }
    limits
}

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
        reader.error(node.at, "an empty list of limits", "write `unlimited` if that is meant");
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
            lease::warn_if_vain(reader, node, leasing, &limit, reserve);
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
    // What is settled is counted in what the response says.
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
