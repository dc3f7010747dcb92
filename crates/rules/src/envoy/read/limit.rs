//! `rate_limit`: the limit of a descriptor.

use super::scalar;
use crate::envoy::allowance::Allowance;
use crate::envoy::descriptor::DescriptorLimit;
use crate::envoy::unit::{PerUnit, RateUnit};
use crate::yaml::{Fields, Node, Reader, Value};
use tidegate_core::limit::{FixedWindow, Limit, LimitError, Rate};
use tidegate_core::notation::closest;
use tidegate_core::{Micros, limit};

#[derive(Clone, Copy, PartialEq, Eq)]
enum EnvoyAlgorithm {
    Fixed,
    Sliding,
    Log,
    TokenBucket,
    Gcra,
    Meter,
}

const ALGORITHMS: [(&str, EnvoyAlgorithm); 6] = [
    ("fixed", EnvoyAlgorithm::Fixed),
    ("sliding", EnvoyAlgorithm::Sliding),
    ("log", EnvoyAlgorithm::Log),
    ("token-bucket", EnvoyAlgorithm::TokenBucket),
    ("gcra", EnvoyAlgorithm::Gcra),
    ("meter", EnvoyAlgorithm::Meter),
];

/// `None` if there is no limit, or it is invalid.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<DescriptorLimit> {
    if node.value == Value::Null {
        let help = "write `unit` and `requests_per_unit` below it, or remove it";
        reader.warning(node.at, "an empty `rate_limit` limits nothing", help);
        return None;
    }
    let fields = super::fields(reader, node, "`rate_limit`", &super::RATE_LIMIT)?;
    let name = fields.get("name").and_then(|node| scalar::text(reader, node, "`name`")).unwrap_or_default();
    let replaces = fields.get("replaces").map(|node| replaces(reader, node, &name)).unwrap_or_default();
    let unlimited = fields.get("unlimited").is_some_and(|node| scalar::flag(reader, node, "unlimited"));
    let (allowance, per_unit) = if unlimited {
        check_unlimited(reader, &fields);
        (Allowance::Unlimited, None)
    } else {
        let (limit, per_unit) = limited(reader, &fields)?;
        (Allowance::Limited(limit), Some(per_unit))
    };
    Some(DescriptorLimit { allowance, per_unit, name: name.into(), replaces })
}

fn replaces(reader: &mut Reader<'_>, node: &Node, own: &str) -> Vec<Box<str>> {
    let items = match &node.value {
        Value::List(items) => &items[..],
        Value::Null => &[],
        _ => {
            let problem = format_args!("`replaces` must be a list, found {}", node.kind());
            reader.error(node.at, problem, "write `replaces: [{ name: … }]`");
            &[]
        }
    };
    let mut names = Vec::new();
    for item in items {
        let Some(fields) = super::fields(reader, item, "an entry of `replaces`", &super::REPLACES) else { continue };
        let Some(node) = fields.get("name") else {
            reader.error(item.at, "an entry of `replaces` without a `name`", "name the limit to replace");
            continue;
        };
        match scalar::text(reader, node, "`name`") {
            Some(name) if name.is_empty() => {
                reader.error(node.at, "an empty `name` in `replaces`", "name the limit to replace");
            }
            Some(name) if name == own => {
                let problem = format_args!("the limit `{name}` replaces itself");
                reader.error(node.at, problem, "remove it from `replaces`, or give the limit another `name`");
            }
            Some(name) => names.push(name.into()),
            None => {}
        }
    }
    names
}

fn check_unlimited(reader: &mut Reader<'_>, fields: &Fields<'_>) {
    if let Some(node) = fields.get("unit")
        && let Some(text) = scalar::text(reader, node, "`unit`")
    {
        if RateUnit::named(&text).is_some() {
            let problem = format_args!("the unit `{text}` of something unlimited");
            reader.error(node.at, problem, "remove `unit`, or `unlimited`");
        } else if !text.is_empty() {
            reader.warning(node.at, format_args!("`{text}` is not a unit; it is ignored"), "remove `unit`");
        }
    }
    for name in ["algorithm", "burst", "unit_multiplier"] {
        if let Some(node) = fields.get(name) {
            let problem = format_args!("`{name}` of something unlimited");
            reader.error(node.at, problem, format!("remove `{name}`, or `unlimited`"));
        }
    }
}

fn limited(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<(Limit, PerUnit)> {
    let unit = unit(reader, fields);
    let requests = match fields.get("requests_per_unit") {
        Some(node) if node.value != Value::Null => scalar::whole(reader, node, "requests_per_unit"),
        None if !fields.understood => None,
        _ => {
            let help = "write `requests_per_unit: 0` if that is meant";
            reader.warning(fields.at, "a `rate_limit` without `requests_per_unit` denies everything", help);
            Some(0)
        }
    };
    let whole = |reader: &mut Reader<'_>, name| match fields.get(name) {
        Some(node) => match scalar::whole(reader, node, name)? {
            0 => {
                reader.error(node.at, format_args!("`{name}` of 0"), "write at least 1, or leave it out");
                None
            }
            number => Some(Some((number, node))),
        },
        None => Some(None),
    };
    let (multiplier, burst) = (whole(reader, "unit_multiplier"), whole(reader, "burst"));
    let algorithm = match fields.get("algorithm") {
        Some(node) => reader.choice(node, "`algorithm`", &ALGORITHMS),
        None => Some(EnvoyAlgorithm::Fixed),
    };
    let (unit, requests, multiplier, burst, algorithm) = (unit?, requests?, multiplier?, burst?, algorithm?);
    if let Some((_, node)) = burst
        && matches!(algorithm, EnvoyAlgorithm::Fixed | EnvoyAlgorithm::Sliding | EnvoyAlgorithm::Log)
    {
        let help = "add `algorithm: token-bucket` (or `gcra`, or `meter`), or remove `burst`";
        reader.error(node.at, "`burst` of a window, which has none", help);
        return None;
    }
    let length = unit.length().get().saturating_mul(multiplier.map_or(1, |(number, _)| number.into()));
    match built(algorithm, requests, Micros::new(length), burst.map(|(burst, _)| burst)) {
        Ok(limit) => Some((limit, PerUnit { requests, unit })),
        Err(error) => {
            let at = match (&error, multiplier, burst) {
                (LimitError::PeriodTooLong { .. }, Some((_, node)), _) => node.at,
                (LimitError::CapacityTooLarge { .. }, _, Some((_, node))) => node.at,
                _ => fields.get("requests_per_unit").map_or(fields.at, |node| node.at),
            };
            let help = match error {
                LimitError::CountTooLarge { most, .. } => {
                    format!("write at most {most}, or take another `algorithm`: `fixed` or `token-bucket`")
                }
                error => error.to_string(),
            };
            reader.error(at, "this limit cannot be kept exactly", help);
            None
        }
    }
}

fn unit(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<RateUnit> {
    const KNOWN: &str = "`second`, `minute`, `hour`, `day`, `week`, `month` or `year`";
    let node = fields.get("unit");
    let text = match node {
        Some(node) => scalar::text(reader, node, "`unit`")?,
        None if !fields.understood => return None,
        None => String::new(),
    };
    if let Some(unit) = RateUnit::named(&text) {
        return Some(unit);
    }
    let (problem, help) = match closest(&text, RateUnit::ALL.map(RateUnit::name)) {
        _ if text.is_empty() => ("a `rate_limit` without a `unit`".to_owned(), format!("write `unit:` and {KNOWN}")),
        Some(meant) => (format!("`{text}` is not a unit"), format!("did you mean `{meant}`?")),
        None => (format!("`{text}` is not a unit"), format!("write {KNOWN}")),
    };
    reader.error(node.map_or(fields.at, |node| node.at), problem, help);
    None
}

fn built(algorithm: EnvoyAlgorithm, requests: u32, period: Micros, burst: Option<u32>) -> Result<Limit, LimitError> {
    let count = u64::from(requests);
    let burst = burst.map_or(count, u64::from);
    // A rate of zero is invalid, but a window with a limit of zero is not.
    if requests == 0 {
        return FixedWindow::new(0, period).map(Limit::from);
    }
    match algorithm {
        EnvoyAlgorithm::Fixed => FixedWindow::new(count, period).map(Limit::from),
        EnvoyAlgorithm::Sliding => limit::SlidingWindow::new(count, period).map(Limit::from),
        EnvoyAlgorithm::Log => limit::SlidingLog::new(count, period).map(Limit::from),
        EnvoyAlgorithm::TokenBucket => limit::TokenBucket::new(burst, Rate::new(count, period)?).map(Limit::from),
        EnvoyAlgorithm::Gcra => limit::Gcra::new(burst, Rate::new(count, period)?).map(Limit::from),
        EnvoyAlgorithm::Meter => limit::Meter::new(burst, Rate::new(count, period)?).map(Limit::from),
    }
}
