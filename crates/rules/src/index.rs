//! An index that finds the few rules that may match a request.
//!
//! Each rule is indexed by one of its conditions: the one shared with the fewest other rules. A rule for one tenant on a
//! path that all tenants use is indexed by the tenant; a rule for a path that no other rule has, by the path. A request
//! makes one lookup for each kind of condition, and evaluates only the rules that it finds.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;
use ipnet::IpNet;
use smallvec::SmallVec;

use super::fact_name::FactName;
use super::pattern::Pattern;
use super::route::{PathPattern, PathTree};
use super::rule::{Conditions, Rule};
use crate::facts::Values;

type Map<K, V> = HashMap<K, V, RandomState>;

/// The numbers of rules, by the text that they require.
type RulesByText = Map<Box<str>, Vec<u32>>;

/// Numbers of rules, in the order of the files.
pub(super) type RuleNumbers = SmallVec<[u32; 16]>;

#[derive(Debug, Default)]
pub(super) struct Index {
    routes: PathTree,
    values: Vec<(FactName, RulesByText)>,
    /// Hosts by the domain that contains them, with its leading dot.
    domains: RulesByText,
    /// Networks by their size and bits.
    networks: Vec<(NetworkSize, Map<u128, Vec<u32>>)>,
    /// Rules without an indexable condition.
    others: Vec<u32>,
}

/// Whether the address is IPv4, and the number of significant leading bits.
type NetworkSize = (bool, u8);

/// A key by which a rule is indexed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum IndexKey<'r> {
    Path(&'r PathPattern),
    Value(&'r FactName, &'r str),
    Domain(&'r str),
    Network(IpNet),
}

/// The keys to look up for a request.
pub(super) trait IndexLookup {
    fn path(&self) -> &str;
    fn values(&self, fact: &FactName) -> Values<'_>;
    fn address(&self) -> Option<IpAddr>;
}

impl Index {
    pub(super) fn new(rules: &[Rule]) -> Index {
        let index_keys: Vec<Vec<Vec<IndexKey<'_>>>> = rules.iter().map(|rule| index_keys(&rule.conditions)).collect();
        let mut uses: HashMap<&IndexKey<'_>, usize> = HashMap::new();
        for index_key in index_keys.iter().flatten().flatten() {
            *uses.entry(index_key).or_default() += 1;
        }
        let mut index = Index::default();
        for (number, choices) in index_keys.iter().enumerate() {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            let uses_of = |choice: &&Vec<IndexKey<'_>>| choice.iter().map(|index_key| uses[index_key]).sum::<usize>();
            match choices.iter().min_by_key(uses_of) {
                Some(choice) => choice.iter().for_each(|index_key| index.insert(index_key, number)),
                None => index.others.push(number),
            }
        }
        index
    }

    fn insert(&mut self, index_key: &IndexKey<'_>, number: u32) {
        match index_key {
            IndexKey::Path(path) => self.routes.insert(path, number),
            IndexKey::Value(fact, value) => {
                let known = self.values.iter().position(|(known, _)| known == *fact);
                let slot = known.unwrap_or_else(|| {
                    self.values.push(((*fact).clone(), Map::default()));
                    self.values.len() - 1
                });
                self.values[slot].1.entry((*value).into()).or_default().push(number);
            }
            IndexKey::Domain(domain) => self.domains.entry((*domain).into()).or_default().push(number),
            IndexKey::Network(net) => {
                let size = (net.addr().is_ipv4(), net.prefix_len());
                let known = self.networks.iter().position(|(known, _)| *known == size);
                let slot = known.unwrap_or_else(|| {
                    self.networks.push((size, Map::default()));
                    self.networks.len() - 1
                });
                let bits = leading_bits(net.addr(), size);
                self.networks[slot].1.entry(bits.unwrap_or_default()).or_default().push(number);
            }
        }
    }

    /// The rules that may match the request; every rule that matches is among them. They are stored in `numbers`, which
    /// must be empty, unless they are the same for all requests.
    pub(super) fn find<'n>(&'n self, request: &impl IndexLookup, numbers: &'n mut RuleNumbers) -> &'n [u32] {
        if self.is_empty() {
            return &self.others;
        }
        self.others.iter().for_each(|number| numbers.push(*number));
        if !self.routes.is_empty() {
            self.routes.find(request.path(), &mut |number| numbers.push(number));
        }
        for (fact, values) in &self.values {
            for value in &request.values(fact) {
                if let Some(found) = values.get(value.as_ref()) {
                    numbers.extend_from_slice(found);
                }
            }
        }
        if !self.domains.is_empty() {
            for host in &request.values(&FactName::Host) {
                for (at, _) in host.match_indices('.') {
                    numbers.extend_from_slice(self.domains.get(&host[at..]).map_or(&[][..], Vec::as_slice));
                }
            }
        }
        if !self.networks.is_empty()
            && let Some(address) = request.address()
        {
            for (size, networks) in &self.networks {
                if let Some(bits) = leading_bits(address, *size) {
                    numbers.extend_from_slice(networks.get(&bits).map_or(&[][..], Vec::as_slice));
                }
            }
        }
        // The rules that are always found are already in order.
        if numbers.len() > self.others.len() {
            numbers.sort_unstable();
            numbers.dedup();
        }
        numbers
    }

    /// Whether no rule has an indexable condition.
    fn is_empty(&self) -> bool {
        self.routes.is_empty() && self.values.is_empty() && self.domains.is_empty() && self.networks.is_empty()
    }
}

fn leading_bits(address: IpAddr, (is_ipv4, size): NetworkSize) -> Option<u128> {
    match address {
        IpAddr::V4(address) if is_ipv4 => {
            let bits = u32::from(address);
            Some(bits.checked_shr(32 - u32::from(size)).unwrap_or(0).into())
        }
        IpAddr::V6(address) if !is_ipv4 => {
            let bits = u128::from(address);
            Some(bits.checked_shr(128 - u32::from(size)).unwrap_or(0))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// All ways in which a rule can be indexed. Each is a list of keys, and the rule is stored under all of them.
fn index_keys(conditions: &Conditions) -> Vec<Vec<IndexKey<'_>>> {
    let mut choices = Vec::new();
    if let Some(paths) = &conditions.path
        && !paths.negated
        && !paths.any.iter().any(PathPattern::is_everything)
    {
        choices.push(paths.any.iter().map(IndexKey::Path).collect());
    }
    for (fact, pattern) in &conditions.values {
        if let Some(values) = pattern.exact() {
            choices.push(values.iter().map(|value| IndexKey::Value(fact, value)).collect());
        }
        if let (FactName::Host, Pattern::Glob(glob)) = (fact, pattern)
            && let Some(domain) = glob.domain()
        {
            choices.push(vec![IndexKey::Domain(domain)]);
        }
    }
    if let Some(addresses) = &conditions.address
        && !addresses.negated
    {
        choices.push(addresses.any.iter().copied().map(IndexKey::Network).collect());
    }
    choices
}
