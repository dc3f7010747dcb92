//! Which rules govern a request, whom they charge, and how much.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

use smallvec::SmallVec;

use super::RuleSet;
use super::index::Lookup;
use super::path::normalize;
use super::rule::{Conditions, Cost, FactName, KeyPart, Limits, Mode, OnMissingKey, Rule, RuleLimit};
use super::secret::Secret;
use super::tiers::Tiers;
use crate::charge::Charge;
use crate::facts::{Fact, Facts};
use crate::key::Key;
use crate::limit::Limit;

/// A request as rules see it: its path normal, its tier known, its address in one spelling.
pub(super) struct Seen<'f, F: ?Sized> {
    facts: &'f F,
    tiers: &'f Tiers,
    path: Cow<'f, str>,
    tier: OnceCell<Option<Cow<'f, str>>>,
    address: Option<IpAddr>,
}

impl<'f, F: Facts + ?Sized> Seen<'f, F> {
    pub(super) fn new(facts: &'f F, tiers: &'f Tiers) -> Seen<'f, F> {
        let path = match facts.get(Fact::Path) {
            Some(Cow::Borrowed(path)) => normalize(path),
            Some(Cow::Owned(path)) => Cow::Owned(normalize(&path).into_owned()),
            None => Cow::Borrowed("/"),
        };
        let address = facts.address().map(|address| address.to_canonical());
        Seen { facts, tiers, path, tier: OnceCell::new(), address }
    }

    fn tier(&self) -> Option<&str> {
        self.tier.get_or_init(|| self.tiers.of(self.facts)).as_deref()
    }

    /// The value of a fact, in the case in which rules are written.
    pub(super) fn fact(&self, name: &FactName) -> Option<Cow<'f, str>> {
        let value = match name {
            FactName::Tier => return self.tier.get_or_init(|| self.tiers.of(self.facts)).clone(),
            name => self.facts.get(name.as_fact())?,
        };
        Some(match name {
            FactName::Host if value.bytes().any(|byte| byte.is_ascii_uppercase()) => value.to_ascii_lowercase().into(),
            FactName::Method if value.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                value.to_ascii_uppercase().into()
            }
            _ => value,
        })
    }
}

impl<F: Facts + ?Sized> Lookup for Seen<'_, F> {
    fn path(&self) -> &str {
        &self.path
    }

    fn value(&self, fact: &FactName) -> Option<Cow<'_, str>> {
        self.fact(fact)
    }

    fn address(&self) -> Option<IpAddr> {
        self.address
    }
}

/// Why a rule does not govern a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mismatch<'r> {
    Path,
    Address,
    Value(&'r FactName),
}

impl Conditions {
    pub(super) fn hold<F: Facts + ?Sized>(&self, request: &Seen<'_, F>) -> Result<(), Mismatch<'_>> {
        for (fact, pattern) in &self.values {
            if !pattern.matches(request.fact(fact).as_deref()) {
                return Err(Mismatch::Value(fact));
            }
        }
        if let Some(paths) = &self.path
            && paths.any.iter().any(|path| path.matches(&request.path)) == paths.negated
        {
            return Err(Mismatch::Path);
        }
        if let Some(addresses) = &self.address
            && !addresses.matches(request.address)
        {
            return Err(Mismatch::Address);
        }
        Ok(())
    }
}

/// The rules that govern one request, with what they charge for it.
#[derive(Debug)]
pub struct Matched<'r, 'f> {
    /// In the order of the files.
    pub rules: SmallVec<[MatchedRule<'r, 'f>; 4]>,
    /// A rule that refuses the request because it lacks a part of its key.
    pub refused: Option<&'r Rule>,
}

/// One of the rules that govern a request.
#[derive(Debug)]
pub struct MatchedRule<'r, 'f> {
    /// The rule.
    pub rule: &'r Rule,
    /// Whom it charges.
    pub key: Key<'f>,
    limits: &'r [RuleLimit],
    costs: SmallVec<[u64; 2]>,
}

impl<'r> MatchedRule<'r, '_> {
    /// What it charges: one for each of its limits.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.limits.iter().zip(&self.costs).map(|(limit, &cost)| Charge {
            rule: &limit.id,
            key: &self.key,
            limit: &limit.limit,
            cost,
            reserve: limit.reserve,
        })
    }

    /// The limits that apply.
    pub fn limits(&self) -> impl Iterator<Item = &'r Limit> {
        self.limits.iter().map(|limit| &limit.limit)
    }
}

impl Matched<'_, '_> {
    /// What the rules that are enforced charge.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.rules.iter().filter(|matched| matched.rule.mode == Mode::Enforce).flat_map(MatchedRule::charges)
    }
}

impl RuleSet {
    /// The rules that govern a request, and what they charge.
    pub fn matching<'r, 'f>(&'r self, facts: &'f (impl Facts + ?Sized)) -> Matched<'r, 'f>
    where
        'r: 'f,
    {
        let request = Seen::new(facts, &self.tiers);
        let mut matched = Matched { rules: SmallVec::new(), refused: None };
        for rule in self.governing(&request) {
            match key_of(rule, &request, &self.secret) {
                Some((key, named)) => matched.rules.extend(applied(rule, key, named.as_deref(), &request)),
                None => match rule.on_missing_key {
                    OnMissingKey::Share => matched.rules.extend(applied(rule, Key::GLOBAL, None, &request)),
                    OnMissingKey::Skip => {}
                    OnMissingKey::Refuse => matched.refused = matched.refused.or(Some(rule)),
                },
            }
        }
        matched
    }

    /// The rules that govern a request, in order, without those that others replace.
    pub(super) fn governing<'r, F: Facts + ?Sized>(&'r self, request: &Seen<'_, F>) -> SmallVec<[&'r Rule; 8]> {
        let mut governing: SmallVec<[&Rule; 8]> = SmallVec::new();
        for number in self.index.find(request) {
            let rule = &self.rules[number as usize];
            if rule.mode == Mode::Off || rule.conditions.hold(request).is_err() {
                continue;
            }
            governing.push(rule);
            if rule.stops {
                break;
            }
        }
        if governing.iter().any(|rule| !rule.replaces.is_empty()) {
            let replaced: SmallVec<[&str; 4]> =
                governing.iter().flat_map(|rule| &rule.replaces).map(AsRef::as_ref).collect();
            governing.retain(|rule| !replaced.contains(&rule.id()));
        }
        governing
    }
}

/// What a rule allows this request, if it limits it at all.
fn applied<'r, 'f, F: Facts + ?Sized>(
    rule: &'r Rule,
    key: Key<'f>,
    named: Option<&str>,
    request: &Seen<'_, F>,
) -> Option<MatchedRule<'r, 'f>> {
    let limits = rule.limits.of(named, || request.tier())?;
    let costs = limits.iter().map(|limit| limit.cost.of(request)).collect();
    Some(MatchedRule { rule, key, limits, costs })
}

impl Limits {
    fn of<'t>(&self, named: Option<&str>, tier: impl FnOnce() -> Option<&'t str>) -> Option<&[RuleLimit]> {
        if !self.overrides.is_empty()
            && let Some(limits) = named.and_then(|name| self.overrides.get(name))
        {
            return Some(limits);
        }
        if !self.tiers.is_empty()
            && let Some(tier) = tier()
            && let Some((_, limits)) = self.tiers.iter().find(|(known, _)| known == tier)
        {
            return Some(limits);
        }
        self.default.as_deref()
    }
}

impl Cost {
    fn of<F: Facts + ?Sized>(&self, request: &Seen<'_, F>) -> u64 {
        match self {
            Cost::Fixed(cost) => *cost,
            Cost::Hits => request.facts.hits().unwrap_or(1),
            Cost::Said { by, otherwise } => {
                request.fact(by).and_then(|text| text.trim().parse().ok()).unwrap_or(*otherwise)
            }
            Cost::ByPath { paths, otherwise } => {
                let found = paths.iter().find(|(path, _)| path.matches(&request.path));
                found.map_or(*otherwise, |(_, cost)| *cost)
            }
        }
    }
}

type Parts<'f> = SmallVec<[Cow<'f, str>; 4]>;

/// The key of a request, and its parts in clear if the rule has overrides to find by them. `None` if a part is missing.
fn key_of<'f, F: Facts + ?Sized>(
    rule: &Rule,
    request: &Seen<'f, F>,
    secret: &Secret,
) -> Option<(Key<'f>, Option<String>)> {
    let mut parts = Parts::new();
    let mut clear = Parts::new();
    for part in &rule.key {
        let value = part_of(part, rule, request)?;
        if !rule.limits.overrides.is_empty() {
            clear.push(value.clone());
        }
        let is_secret = matches!(part, KeyPart::Fact(fact) if fact.is_secret());
        parts.push(if is_secret { secret.hide(&value).into() } else { value });
    }
    let named = (!clear.is_empty()).then(|| clear.join(","));
    let key = match &parts[..] {
        [Cow::Borrowed(only)] => Key::from(*only),
        parts => Key::of(parts.iter().map(|part| part.as_bytes())),
    };
    Some((key, named))
}

fn part_of<'f, F: Facts + ?Sized>(part: &KeyPart, rule: &Rule, request: &Seen<'f, F>) -> Option<Cow<'f, str>> {
    match part {
        KeyPart::Fact(fact) => request.fact(fact),
        KeyPart::Address { ipv4, ipv6 } => request.address.map(|address| network_of(address, *ipv4, *ipv6).into()),
        KeyPart::Segment(name) => {
            let mut paths = rule.conditions.path.iter().flat_map(|paths| &paths.any);
            paths.find_map(|path| path.named(name, &request.path)).map(|segment| Cow::Owned(segment.to_owned()))
        }
        KeyPart::Route => {
            let mut paths = rule.conditions.path.iter().flat_map(|paths| &paths.any);
            let route = paths.find(|path| path.matches(&request.path)).map(ToString::to_string);
            Some(route.unwrap_or_else(|| "/**".to_owned()).into())
        }
    }
}

/// The address, or the network of the given size that it lies in.
fn network_of(address: IpAddr, ipv4: u8, ipv6: u8) -> String {
    let (size, whole) = match address {
        IpAddr::V4(_) => (ipv4, 32),
        IpAddr::V6(_) => (ipv6, 128),
    };
    match ipnet::IpNet::new(address, size) {
        Ok(net) if size < whole => net.trunc().to_string(),
        _ => address.to_string(),
    }
}
