//! `adapt`: a rate that adapts to the service, between two bounds.

use super::{cost, percent, span_of};
use crate::adaptive_rate::AdaptiveRate;
use crate::cost::Cost;
use crate::rate_ladder::RateLadder;
use crate::rule_limit::RuleLimit;
use crate::yaml::{Node, Reader};
use tidegate_core::adaptive::{OverloadSignal, RateSteps};
use tidegate_core::disclosure::Disclosure;
use tidegate_core::{Limit, Micros};

pub(crate) const ADAPT: [&str; 6] = ["between", "by", "on", "every", "increase", "decrease"];
pub(crate) const METHODS: [(&str, ()); 1] = [("aimd", ())];

/// The default interval of changes. Its bounds follow.
const DEFAULT_EVERY: Micros = Micros::from_secs(1);
const SHORTEST_EVERY: Micros = Micros::from_millis(100);
const LONGEST_EVERY: Micros = Micros::from_secs(3_600);
/// The default part of the range by which the rate rises, in percent.
const DEFAULT_INCREASE: u8 = 5;
/// The default part of itself by which the rate falls, in percent.
const DEFAULT_DECREASE: u8 = 30;
/// Maximum number of signals of one rule.
const MOST_SIGNALS: usize = 8;

/// The limit of a rule at each step of its rate. `written` is the rule's `limit`; without one, the upper bound is used.
pub(super) fn read(
    reader: &mut Reader<'_>,
    node: &Node,
    rule: &str,
    written: Option<&RuleLimit>,
    rule_cost: &Cost,
) -> Option<RateLadder> {
    let fields = reader.fields(node, "`adapt`", &ADAPT)?;
    if let Some(by) = fields.get("by") {
        reader.choice(by, "`by`", &METHODS)?;
    }
    let Some(between) = fields.get("between") else {
        reader.error(
            node.at,
            "`adapt` without `between`",
            "write the lowest and the highest rate: `between: 100/s..1000/s`",
        );
        return None;
    };
    let (lowest, highest) = bounds(reader, between)?;
    let Some(on) = fields.get("on") else {
        reader.error(
            node.at,
            "`adapt` without `on`",
            "write the signals of overload: `on: [latency > 200ms, errors > 5%]`",
        );
        return None;
    };
    let signals = signals(reader, on)?;
    let every = match fields.get("every") {
        Some(node) => interval(reader, node)?,
        None => DEFAULT_EVERY,
    };
    let increase = match fields.get("increase") {
        Some(node) => percent(reader, node, "`increase`", &(2..=100))?,
        None => DEFAULT_INCREASE,
    };
    let decrease = match fields.get("decrease") {
        Some(node) => percent(reader, node, "`decrease`", &(1..=90))?,
        None => DEFAULT_DECREASE,
    };
    let (of_lowest, of_highest) = (lowest.tokens_per_period()?, highest.tokens_per_period()?);
    let at_highest = match written {
        Some(written) => at_upper_bound(reader, between, written, of_highest)?,
        None => {
            let disclosure = Disclosure { unit: rule_cost.unit(), ..Disclosure::DEFAULT };
            RuleLimit { cost: rule_cost.clone(), disclosure, ..RuleLimit::plain(rule, highest) }
        }
    };
    let ladder = RateSteps::new((of_lowest.0, of_highest.0), increase, every, decrease)
        .map_err(|error| error.to_string())
        .and_then(|steps| {
            let rate = AdaptiveRate::new(rule, steps, of_highest.1, &signals);
            RateLadder::new(rate, &at_highest).map_err(|error| error.to_string())
        });
    match ladder {
        Ok(ladder) => {
            // A request with a cost above the lowest limit would be denied while the service is overloaded.
            if let Some([lowest]) = ladder.limits.first().map(|limits| &**limits) {
                cost::check(reader, between.at, &lowest.limit, &lowest.cost);
            }
            Some(ladder)
        }
        Err(error) => {
            reader.error(between.at, error, "write bounds such as `100/s..1000/s`");
            None
        }
    }
}

/// The rule's limit, whose rate must be the upper bound.
fn at_upper_bound(
    reader: &mut Reader<'_>,
    between: &Node,
    written: &RuleLimit,
    highest: (u64, Micros),
) -> Option<RuleLimit> {
    match written.limit.tokens_per_period() {
        Some(rate) if rate == highest => Some(written.clone()),
        Some(_) => {
            let problem = format_args!("`limit` is `{}`, and `adapt` ends at another rate", written.limit);
            reader.error(between.at, problem, "let `between` end at the rate of `limit`, or leave `limit` out");
            None
        }
        None => {
            let problem = format_args!("`adapt` on `{}`, which has no rate", written.limit);
            reader.error(between.at, problem, "write a limit such as `1000/s burst 200` or `sliding 1000/min`");
            None
        }
    }
}

/// `100/s..1000/s`
fn bounds(reader: &mut Reader<'_>, node: &Node) -> Option<(Limit, Limit)> {
    let text = reader.text(node, "`between`")?;
    let help = "write the lowest and the highest rate with the same period, such as `100/s..1000/s`";
    let bound = |text: &str| -> Option<Limit> {
        let text = text.trim();
        let is_rate = text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(char::is_whitespace);
        if is_rate { text.parse().ok() } else { None }
    };
    let (lowest, highest) = text.split_once("..").map(|(lowest, highest)| (bound(lowest), bound(highest))).unzip();
    let (Some(Some(lowest)), Some(Some(highest))) = (lowest, highest) else {
        reader.error(node.at, format_args!("`between` is `{text}`, which is not a range of two rates"), help);
        return None;
    };
    let rates = lowest.tokens_per_period().zip(highest.tokens_per_period());
    if !rates.is_some_and(|(lowest, highest)| lowest.1 == highest.1 && (1..highest.0).contains(&lowest.0)) {
        reader.error(
            node.at,
            format_args!("`between` is `{text}`, which is not a lower and a higher rate with the same period"),
            help,
        );
        return None;
    }
    Some((lowest, highest))
}

fn signals(reader: &mut Reader<'_>, node: &Node) -> Option<Vec<OverloadSignal>> {
    let items = reader.each(node);
    if items.is_empty() || items.len() > MOST_SIGNALS {
        let problem = format!("`on` has {} signals", items.len());
        reader.error(node.at, problem, format!("write 1 to {MOST_SIGNALS}, such as `[latency > 200ms, errors > 5%]`"));
        return None;
    }
    let mut signals = Vec::new();
    for item in items {
        let text = reader.text(item, "a signal")?;
        match text.parse::<OverloadSignal>() {
            Ok(signal) => signals.push(signal),
            Err(error) => {
                reader.error(item.at, format_args!("`{text}` is not a signal of overload"), error.to_string());
                return None;
            }
        }
    }
    Some(signals)
}

fn interval(reader: &mut Reader<'_>, node: &Node) -> Option<Micros> {
    let span = span_of(reader, node, "`every`")?;
    if (SHORTEST_EVERY..=LONGEST_EVERY).contains(&span) {
        return Some(span);
    }
    let help = format!("write {SHORTEST_EVERY} to {LONGEST_EVERY}");
    reader.error(node.at, format_args!("`every` cannot be {span}"), help);
    None
}
