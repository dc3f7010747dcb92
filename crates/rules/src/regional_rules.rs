//! Rules as applied by the nodes of a region.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::Limit;
use tidegate_core::limit::Algorithm;
use tidegate_core::regions::{RegionShare, Share, SharedWindow};

use super::regions::{Moves, RegionChoice, RegionView, Regions, WholeLimit};
use super::rule::Rule;
use super::rule_limit::RuleLimit;
use super::rule_set::RuleSet;

impl RegionView {
    /// This region's share of a rule's limit. `rule` is the name in the record.
    fn share(&self, regions: &Regions, rule: &str, limit: &RuleLimit) -> Share {
        let Some(region) = &self.region else {
            // The node belongs to some region, and each region has at least its floor.
            let lowest = regions.shares.values().min().copied().unwrap_or_default();
            return lowest.min(regions.floor);
        };
        let Some(written) = regions.of(region) else { return Share::NONE };
        let whole = limit.whole();
        let is_fixed = regions.moves == Moves::Never || matches!(whole.algorithm(), Algorithm::Concurrency(_));
        match &self.applied {
            Some(applied) if !is_fixed => applied.of(rule, limit.id.as_str(), whole, written.floor),
            Some(_) | None => written.share,
        }
    }
}

impl Rule {
    /// The regions that share the rule's limits, and the name of their shares in records: the rule's own id, or the empty
    /// name for those of the file.
    pub(crate) fn regions<'r>(&'r self, of_file: Option<&'r Arc<Regions>>) -> Option<(&'r str, &'r Arc<Regions>)> {
        match &self.regions {
            RegionChoice::OfFile => of_file.map(|regions| ("", regions)),
            RegionChoice::Own(regions) => Some((self.id(), regions)),
            RegionChoice::Off => None,
        }
    }
}

impl RuleLimit {
    fn whole(&self) -> &Limit {
        self.whole.as_deref().map_or(&self.limit, |whole| &whole.limit)
    }

    fn take_part(&mut self, share: Share, region: Option<&Arc<str>>) {
        let (limit, alone) = match self.whole.take() {
            Some(whole) => (whole.limit, whole.alone),
            None => (self.limit, self.share.as_deref().copied()),
        };
        self.limit = limit.regional_part(share);
        self.share = alone.map(|alone| Box::new(alone.regional_part(share)));
        self.whole = Some(Box::new(WholeLimit { limit, alone, share, region: region.cloned() }));
    }
}

/// Whether both limits have the same fixed windows.
fn is_same_window(one: &Limit, other: &Limit) -> bool {
    match (one.algorithm(), other.algorithm()) {
        (Algorithm::FixedWindow(one), Algorithm::FixedWindow(other)) => one.windows() == other.windows(),
        _ => false,
    }
}

impl RuleSet {
    /// The initial shares of a region, by their names in records: the ids of rules with shares of their own, and the empty
    /// name for all other rules. Excludes shares that are never moved.
    #[must_use]
    pub fn region_shares(&self, region: &str) -> BTreeMap<String, RegionShare> {
        let movable = self.each_regions().filter(|(_, regions)| regions.moves != Moves::Never);
        movable.filter_map(|(rule, regions)| Some((rule.to_owned(), regions.of(region)?))).collect()
    }

    /// All definitions of regions, by their names in records.
    pub fn each_regions(&self) -> impl Iterator<Item = (&str, &Arc<Regions>)> {
        let of_file = self.written.regions.iter().map(|regions| ("", regions));
        of_file.chain(self.rules().iter().filter_map(|rule| match &rule.regions {
            RegionChoice::Own(regions) => Some((rule.id(), regions)),
            RegionChoice::OfFile | RegionChoice::Off => None,
        }))
    }

    /// The limits with fixed windows whose rights in the running window move with a share, by their names in records.
    ///
    /// Excludes limits that are split or decided by copies, because the store does not know their spending, and limits that
    /// share states with limits with other windows.
    #[must_use]
    pub fn shared_windows(&self) -> BTreeMap<String, Vec<SharedWindow>> {
        let mut windows: BTreeMap<String, Vec<SharedWindow>> = BTreeMap::new();
        for rule in self.rules() {
            let Some((name, regions)) = rule.regions(self.written.regions.as_ref()) else { continue };
            let all: Vec<&RuleLimit> = rule.limits.all().collect();
            let fits = |limit: &&&RuleLimit| {
                let same_id = || all.iter().filter(|other| other.id == limit.id);
                let is_known = |limit: &RuleLimit| limit.split.is_none() && limit.write_behind.is_none();
                same_id().all(|other| is_known(other) && is_same_window(limit.whole(), other.whole()))
            };
            for limit in all.iter().filter(|_| regions.moves != Moves::Never).filter(fits) {
                let window = SharedWindow { id: limit.id.as_str().to_owned(), limit: *limit.whole() };
                let of_name = windows.entry(name.to_owned()).or_default();
                if !of_name.contains(&window) {
                    of_name.push(window);
                }
            }
        }
        windows
    }

    /// The limits for which a share that has arrived has to settle, with the ids that their states belong to, by the names that records
    /// use. Slots are not among them: they do not move.
    #[must_use]
    pub fn shared_limits(&self) -> BTreeMap<String, Vec<(String, Limit)>> {
        let mut limits: BTreeMap<String, Vec<(String, Limit)>> = BTreeMap::new();
        for rule in self.rules() {
            let Some((name, regions)) = rule.regions(self.written.regions.as_ref()) else { continue };
            let moves = |limit: &&RuleLimit| {
                regions.moves != Moves::Never && !matches!(limit.whole().algorithm(), Algorithm::Concurrency(_))
            };
            for limit in rule.limits.all().filter(moves) {
                let of_name = limits.entry(name.to_owned()).or_default();
                let limit = (limit.id.as_str().to_owned(), *limit.whole());
                if !of_name.contains(&limit) {
                    of_name.push(limit);
                }
            }
        }
        limits
    }

    /// Returns `true` if limits are shared among regions.
    #[must_use]
    pub fn has_regions(&self) -> bool {
        self.each_regions().next().is_some()
    }

    /// The name of a rule's share in records. `None` if regions do not share the rule.
    #[must_use]
    pub fn share_name(&self, rule: &str) -> Option<&str> {
        let rule = self.rules().iter().find(|known| known.id() == rule)?;
        rule.regions(self.written.regions.as_ref()).map(|(name, _)| name)
    }

    /// The rules as applied by a node of this region: its part of every limit that regions share.
    #[must_use]
    pub fn in_region(self, view: &RegionView) -> RuleSet {
        let of_file = self.written.regions.as_ref();
        let differs = |rule: &Rule| {
            let Some((name, regions)) = rule.regions(of_file) else { return false };
            rule.limits.all().any(|limit| {
                let share = view.share(regions, name, limit);
                limit.whole.as_ref().is_none_or(|whole| whole.share != share || whole.region != view.region)
            })
        };
        if !self.rules().iter().any(differs) {
            return self;
        }
        let mut rules = self.written.rules.clone();
        for rule in rules.iter_mut().filter(|rule| differs(rule)) {
            let Some((name, regions)) =
                rule.regions(of_file).map(|(name, regions)| (name.to_owned(), Arc::clone(regions)))
            else {
                continue;
            };
            rule.limits.make_own();
            for limit in rule.limits.all_mut() {
                let share = view.share(&regions, &name, limit);
                limit.take_part(share, view.region.as_ref());
            }
        }
        self.with_limits_of(rules)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::regions::{AppliedShares, ShareLease, ShareLedger};
    use tidegate_core::{MemoryStore, Micros, Timestamp};

    use super::*;
    use crate::Limiter;
    use crate::facts::Request;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);
    const RULES: &str = "
regions: { eu: 60%, us: 40% }
rules:
  - { id: api, limit: 20/s burst 50, on_store_failure: { local_percent: 50 } }
  - { id: slots, limit: concurrent 10 ttl 30s }
  - { id: own, limit: fixed 100/day, regions: { shares: { eu: 10%, us: 90% }, floor: 2%, moves: never } }
  - { id: each, limit: log 7/min, regions: off }
";

    fn rules(text: &str) -> RuleSet {
        RuleSet::parse("rules.yaml", text).unwrap().rules
    }

    fn limits(rules: &RuleSet) -> Vec<String> {
        rules.rules().iter().flat_map(|rule| rule.limits.all()).map(|limit| limit.limit.to_string()).collect()
    }

    fn view(region: &str, applied: Option<AppliedShares>) -> RegionView {
        RegionView { region: Some(region.into()), applied }
    }

    fn applied(eu: u32) -> AppliedShares {
        let share = RegionShare::new(Share::percent(eu), Share::percent(5));
        let ledger = ShareLedger::new("eu", BTreeMap::from([(String::new(), share)]), NOW);
        let mut lease = ShareLease::default();
        lease.read(Some(&ledger), NOW, NOW);
        lease.applied(NOW)
    }

    #[test]
    fn a_region_has_its_part_of_each_limit() {
        let eu = rules(RULES).in_region(&view("eu", None));
        assert_eq!(limits(&eu), ["12/s burst 30", "concurrent 6 ttl 30s", "fixed 10/day", "log 7/min"]);
        let alone = |rules: &RuleSet| rules.rules()[0].limits.all().next().unwrap().share.as_ref().unwrap().to_string();
        assert_eq!(alone(&eu), "3/500ms burst 15");
        let us = eu.in_region(&view("us", None));
        assert_eq!(limits(&us), ["8/s burst 20", "concurrent 4 ttl 30s", "fixed 90/day", "log 7/min"]);
    }

    #[test]
    fn a_record_takes_precedence_where_shares_can_move() {
        let eu = rules(RULES).in_region(&view("eu", Some(applied(80))));
        assert_eq!(limits(&eu), ["16/s burst 40", "concurrent 6 ttl 30s", "fixed 10/day", "log 7/min"]);
        // A node that could not read its store decides by the floor.
        let floor = eu.in_region(&view("eu", Some(AppliedShares::default())));
        assert_eq!(limits(&floor)[0], "1/s burst 2");
    }

    #[test]
    fn a_region_that_is_not_named_has_the_floor_and_an_unknown_one_nothing() {
        let unnamed = rules(RULES).in_region(&RegionView::default());
        assert_eq!(limits(&unnamed), ["1/s burst 2", "concurrent 0 ttl 30s", "fixed 2/day", "log 7/min"]);
        let unknown = rules(RULES).in_region(&view("ap", None));
        assert_eq!(unknown.rules()[0].limits.all().next().unwrap().limit.capacity(), 0);
    }

    #[test]
    fn rules_without_a_change_stay_the_same() {
        let eu = rules(RULES).in_region(&view("eu", Some(applied(80))));
        let again = eu.clone().in_region(&view("eu", Some(applied(80))));
        assert!(eu.has_same_limits(&again) && !eu.shares_rules_with(&rules(RULES)));
        assert!(eu.shares_rules_with(&again.in_region(&view("us", None))));
        let none = rules("rules: [{ id: a, limit: 1/s }]");
        assert!(Arc::ptr_eq(&none.written, &none.clone().in_region(&view("eu", None)).written));
    }

    #[test]
    fn records_begin_with_the_shares_that_can_move() {
        let shares = rules(RULES).region_shares("us");
        assert_eq!(shares, BTreeMap::from([(String::new(), RegionShare::new(Share::percent(40), Share::percent(5)))]));
        assert_eq!(rules(RULES).region_shares("ap"), BTreeMap::new());
        let names = ["api", "own", "each", "none"].map(|rule| rules(RULES).share_name(rule).map(str::to_owned));
        assert_eq!(names, [Some(String::new()), Some("own".to_owned()), None, None]);
    }

    #[test]
    fn windows_whose_rights_move_are_those_that_the_store_counts() {
        let text = "
regions: { eu: 60%, us: 40% }
rules:
  - { id: month, key: user, limit: fixed 1000/month calendar }
  - { id: own, limit: fixed 100/day, regions: { eu: 10%, us: 90% } }
  - { id: plan, key: user, tiers: { free: fixed 10/day, paid: fixed 500/day } }
  - { id: mixed, key: user, tiers: { free: fixed 10/day, paid: fixed 500/h } }
  - { id: soft, limit: fixed 100/h, write_behind: { at_most: 5% } }
  - { id: fixed, limit: fixed 100/h, regions: { shares: { eu: 10%, us: 90% }, moves: never } }
  - { id: bucket, limit: 10/s }
  - { id: each, limit: fixed 7/h, regions: off }
";
        let windows = rules(text).shared_windows();
        let shown = |name: &str| {
            windows[name].iter().map(|window| format!("{} {}", window.id, window.limit)).collect::<Vec<_>>()
        };
        assert_eq!(shown(""), ["month fixed 1000/month calendar", "plan fixed 10/day", "plan fixed 500/day"]);
        assert_eq!(shown("own"), ["own fixed 100/day"]);
        assert_eq!(windows.len(), 2);
        // The region counts by its part, but the whole limits are the same.
        assert_eq!(rules(text).in_region(&view("eu", None)).shared_windows(), windows);
    }

    #[test]
    fn limits_that_settle_are_those_whose_shares_move() {
        let limits = rules(RULES).shared_limits();
        let api = ("api".to_owned(), "20/s burst 50".parse().unwrap());
        assert_eq!(limits, BTreeMap::from([(String::new(), vec![api])]));
        assert_eq!(rules(RULES).in_region(&view("eu", None)).shared_limits(), limits);
    }

    #[test]
    fn a_limiter_takes_its_part_of_rules_that_come_later_too() {
        let text = "{ regions: { eu: 60%, us: 40% }, rules: [{ id: a, limit: log 10/day }] }";
        let admitted = |limiter: &Limiter<MemoryStore>| {
            let request = Request::new("GET", "/");
            (0..20).filter(|_| limiter.check_now(&request).is_allowed()).count()
        };
        let limiter = Limiter::new(rules(text), MemoryStore::new()).in_region(Some("eu"));
        assert_eq!(admitted(&limiter), 6);
        limiter.replace(rules(&text.replace("log 10/day", "log 20/day")));
        assert_eq!(admitted(&limiter), 6);
        let before = limiter.rules().number;
        assert!(limiter.apply_shares(applied(80), None));
        assert_eq!((admitted(&limiter), limiter.rules().number), (4, before + 1));
        assert!(!limiter.apply_shares(applied(80), None));
        assert_eq!(limiter.rules().number, before + 1);
        let mut lease = ShareLease::default();
        lease.read(None, NOW, NOW);
        assert!(limiter.apply_shares(lease.applied(NOW + Micros::from_secs(9)), None));
        assert_eq!(admitted(&limiter), 0);
    }
}
