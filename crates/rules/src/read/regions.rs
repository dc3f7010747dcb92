//! `regions`: the shares of regions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::is_name;
use crate::regions::{DEFAULT_FLOOR, Moves, RegionChoice, Regions};
use crate::rule_limits::Limits;
use crate::yaml::{Node, Position, Reader, Value};
use tidegate_core::regions::Share;

pub(crate) const REGIONS: [&str; 3] = ["shares", "floor", "moves"];

pub(crate) const MOVES: [(&str, Moves); 2] = [("allowed", Moves::Allowed), ("never", Moves::Never)];

const EXAMPLE: &str = "write regions and their shares, such as `{ eu: 60%, us: 40% }`";

/// Reads the regions of a rule: `off`, or the same form as in a file.
pub(super) fn of_rule(reader: &mut Reader<'_>, node: &Node) -> Option<RegionChoice> {
    // YAML 1.1 reads `off` as `false`.
    if node.as_text().as_deref() == Some("off") || node.value == Value::Bool(false) {
        return Some(RegionChoice::Off);
    }
    read(reader, node).map(|regions| RegionChoice::Own(Arc::new(regions)))
}

/// Reads regions: shares by region, or `shares` with `floor` and `moves`.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<Regions> {
    let Value::Map(map) = &node.value else {
        reader.error(node.at, format_args!("`regions` must be a map, found {}", node.kind()), EXAMPLE);
        return None;
    };
    let is_long = map.iter().any(|(name, _)| REGIONS.contains(&name.text.as_str()));
    if !is_long {
        let shares = shares(reader, node)?;
        return Some(Regions { floor: DEFAULT_FLOOR, moves: Moves::default(), shares });
    }
    let fields = reader.fields(node, "`regions`", &REGIONS)?;
    let Some(of_regions) = fields.get("shares") else {
        reader.error(node.at, "`regions` without `shares`", "add `shares: { eu: 60%, us: 40% }` to the map");
        return None;
    };
    let shares = shares(reader, of_regions)?;
    let moves = match fields.get("moves") {
        Some(node) => reader.choice(node, "`moves`", &MOVES)?,
        None => Moves::default(),
    };
    let floor = match fields.get("floor") {
        Some(node) => floor(reader, node, &shares)?,
        None => DEFAULT_FLOOR,
    };
    Some(Regions { shares, floor, moves })
}

fn shares(reader: &mut Reader<'_>, node: &Node) -> Option<BTreeMap<String, Share>> {
    let Value::Map(map) = &node.value else {
        reader.error(node.at, format_args!("`shares` must be a map, found {}", node.kind()), EXAMPLE);
        return None;
    };
    let (mut shares, errors) = (BTreeMap::new(), reader.errors());
    for (name, node) in map {
        if is_name(reader, node, &name.text, "the name of a region")
            && let Some(share) = share(reader, node, &format!("the share of `{}`", name.text))
        {
            shares.insert(name.text.clone(), share);
        }
    }
    if reader.errors() > errors {
        return None;
    }
    let parts: u64 = shares.values().map(|share| u64::from(share.parts_per_million())).sum();
    let whole = u64::from(Share::WHOLE.parts_per_million());
    if shares.is_empty() {
        reader.error(node.at, "`regions` is empty", EXAMPLE);
        return None;
    }
    if parts > whole {
        let problem = format_args!("the shares of all regions are {}% in total", parts.div_ceil(whole / 100));
        reader.error(node.at, problem, "lower some of them: the sum must not exceed 100%");
        return None;
    }
    if parts < whole {
        let rest = Share::WHOLE - Share::of_million(u32::try_from(parts).unwrap_or(0)).unwrap_or_default();
        reader.warning(node.at, format_args!("{rest} of each limit belongs to no region"), "raise some of the shares");
    }
    Some(shares)
}

fn share(reader: &mut Reader<'_>, node: &Node, what: &str) -> Option<Share> {
    let text = reader.text(node, what)?;
    match text.parse() {
        Ok(share) => Some(share),
        Err(_) => {
            let help = "write 0% to 100%, with up to four decimals";
            reader.error(node.at, format_args!("{what} cannot be `{text}`"), help);
            None
        }
    }
}

fn floor(reader: &mut Reader<'_>, node: &Node, shares: &BTreeMap<String, Share>) -> Option<Share> {
    let floor = share(reader, node, "`floor`")?;
    let smaller = shares.iter().find(|(_, share)| **share < floor);
    if let Some((region, share)) = smaller {
        let problem = format_args!("`floor` is {floor}, and `{region}` has a share of {share}");
        reader.error(node.at, problem, "lower the floor, or raise the share");
        return None;
    }
    Some(floor)
}

/// Warns of limits that admit nothing in a region because its share is too small.
pub(super) fn warn_if_too_small(reader: &mut Reader<'_>, at: Position, regions: &Regions, limits: &Limits) {
    for limit in limits.all().filter(|limit| limit.limit.capacity() > 0) {
        let closed = |share: &Share| !share.is_none() && limit.limit.regional_part(*share).capacity() == 0;
        if let Some((region, share)) = regions.shares.iter().find(|(_, share)| closed(share)) {
            let problem = format!("{share} of `{}` admits nothing in `{region}`", limit.limit);
            reader.warning(
                at,
                problem,
                "raise the limit or the share, or write `regions: off` for a limit in each region",
            );
            return;
        }
    }
}
