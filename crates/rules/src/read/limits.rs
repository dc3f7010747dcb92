//! `limit`, `limits` and `tiers`: the limits of a rule.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::limit_list::several;
use super::{adapt, cost, lease, overrides, shed, split, write_behind};
use crate::cost::Cost;
use crate::presets::Preset;
use crate::rule::KeyPart;
use crate::rule_limit::RuleLimit;
use crate::rule_limits::{Limits, Variants};
use crate::yaml::{Fields, Node, Reader, Value};
use tidegate_core::RuleId;
use tidegate_core::disclosure::{DenialKind, DenialStatus, Disclosure};
use tidegate_core::lease::Leasing;

/// The meaning of a denial by a rule.
pub(crate) const PROBLEMS: [(&str, DenialKind); 3] = [
    kind_named(DenialKind::QuotaExceeded),
    kind_named(DenialKind::AbnormalUsage),
    kind_named(DenialKind::ReducedCapacity),
];

/// The status of a denial by `shed`: overload is not the client's fault.
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
            reader.error(both.at, "`limit` and `limits` in one rule", "keep `limits`, and list all limits there");
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
        lease::warn_if_none_leasable(reader, node, leasing, limits.all_mut());
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

/// The slots that priorities share. Such a rule has no other limits.
fn by_priority(reader: &mut Reader<'_>, fields: &Fields<'_>, node: &Node, rule: &str, limits: &mut Limits) {
    let others = ["limit", "limits", "tiers", "overrides", "preset", "cost"];
    if let Some(other) = others.into_iter().find(|name| fields.get(name).is_some()) {
        reader.error(node.at, format_args!("`shed` and `{other}` in one rule"), "make two rules of them");
        return;
    }
    let Some(all) = shed::read(reader, node, rule) else { return };
    // Copied, so that the limits can still be changed while the rule is read.
    limits.default = all.last().map(|whole| whole.iter().cloned().collect());
    limits.variants = Some(Box::new(Variants::ByPriority(all)));
}

/// The limit at each step of an adaptive rate. Such a rule has no other limits.
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
            reader.error(limit.at, "`adapt` requires exactly one limit", "write one, such as `limit: 1000/s`");
            return;
        }
        // The error was reported already.
        (Some(_), None) => return,
    };
    let Some(ladder) = adapt::read(reader, node, rule, written.as_ref(), cost) else { return };
    // Copied, so that the limits can still be changed while the rule is read.
    limits.default = ladder.limits.last().map(|highest| highest.iter().cloned().collect());
    limits.variants = Some(Box::new(Variants::ByRate(ladder)));
}

fn denial_status(reader: &mut Reader<'_>, node: &Node) -> Option<DenialStatus> {
    let number = reader.count(node, "`status`")?;
    let status = u16::try_from(number).ok().and_then(DenialStatus::new);
    if status.is_none() {
        let problem = format_args!("`status` is {number}, which is not an error status");
        reader.error(node.at, problem, "write one from 400 to 599, such as `503`; without it a denial is 429");
    }
    status
}

/// Warns of a limit that admits nothing. Intended if it is the limit of a single key, which is thereby blocked.
fn warn_if_closed(reader: &mut Reader<'_>, fields: &Fields<'_>, limits: &Limits) {
    let of_tiers = limits.tiers.iter().map(|(_, limits)| limits);
    let closed = limits.default.iter().chain(of_tiers).flat_map(|limits| limits.iter());
    if let Some(closed) = closed.into_iter().find(|limit| limit.limit.capacity() == 0) {
        let at =
            ["limit", "limits", "tiers"].iter().find_map(|name| fields.get(name)).map_or(fields.at, |node| node.at);
        let problem = format!("`{}` admits nothing: every request that it governs is denied", closed.limit);
        reader.warning(at, problem, "raise the limit or its burst, unless that is intended");
    }
}

fn by_tier(reader: &mut Reader<'_>, node: &Node, rule: &str, cost: &Cost) -> BTreeMap<String, Arc<[RuleLimit]>> {
    let Value::Map(map) = &node.value else {
        let help = "write tiers and their limits, such as `{ free: 10/s, paid: 100/s }`";
        reader.error(node.at, format_args!("`tiers` must be a map, found {}", node.kind()), help);
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
