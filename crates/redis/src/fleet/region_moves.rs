//! The moves from the present shares to the wanted ones.

use std::collections::BTreeMap;

use tidegate_core::regions::{BeginError, Share, ShareLedger};

use super::regions_error::RegionsError;

/// The moves that turn the present shares of regions into the wanted ones: from regions with too much to regions with too
/// little.
pub(super) fn moves(
    rule: &str,
    targets: &BTreeMap<String, Share>,
    ledgers: &BTreeMap<String, ShareLedger>,
) -> Result<Vec<(String, String, Share)>, RegionsError> {
    let wrong = |problem: String| Err(RegionsError::Shares(problem));
    let share_of = |ledger: &ShareLedger| ledger.shares.get(rule).map(|region| region.share);
    let have: BTreeMap<&String, Share> =
        ledgers.iter().filter_map(|(region, ledger)| Some((region, share_of(ledger)?))).collect();
    // A rule with shares of its own may have fewer regions than there are.
    let is_strange = |(region, target): &(&String, &Share)| !have.contains_key(region) && !target.is_none();
    let stranger = targets.iter().find(is_strange).map(|(region, _)| region);
    if let Some(region) = stranger.or_else(|| ledgers.keys().next().filter(|_| have.is_empty())) {
        let error = BeginError::UnknownRule { rule: rule.to_owned() };
        return Err(RegionsError::Begin { region: region.clone(), error });
    }
    if let Some(region) = have.keys().find(|region| !targets.contains_key(**region)) {
        return wrong(format!("`{region}` is missing: write the shares of all regions"));
    }
    let sum =
        |shares: &mut dyn Iterator<Item = Share>| shares.map(|share| u64::from(share.parts_per_million())).sum::<u64>();
    let (wanted, present) = (sum(&mut targets.values().copied()), sum(&mut have.values().copied()));
    if wanted != present {
        let percent = |parts: u64| parts as f64 / 10_000.0;
        return wrong(format!(
            "the shares are {}% together, and the regions have {}%",
            percent(wanted),
            percent(present)
        ));
    }
    let mut found = Vec::new();
    let mut open: Vec<(&String, Share)> = have
        .iter()
        .map(|(region, have)| (*region, targets[*region] - *have))
        .filter(|(_, more)| !more.is_none())
        .collect();
    for (from, have) in &have {
        let mut left = *have - targets[*from];
        while let Some((to, more)) = open.last_mut().filter(|_| !left.is_none()) {
            let amount = left.min(*more);
            found.push(((*from).clone(), (*to).clone(), amount));
            (left, *more) = (left - amount, *more - amount);
            if more.is_none() {
                open.pop();
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use tidegate_core::Timestamp;
    use tidegate_core::regions::RegionShare;

    use super::*;

    fn ledgers(shares: &[(&str, u32)]) -> BTreeMap<String, ShareLedger> {
        let ledger = |(region, percent): &(&str, u32)| {
            let share = RegionShare::new(Share::percent(*percent), Share::percent(5));
            let shares = BTreeMap::from([(String::new(), share)]);
            ((*region).to_owned(), ShareLedger::new(region, shares, Timestamp::from_secs(1)))
        };
        shares.iter().map(ledger).collect()
    }

    fn targets(shares: &[(&str, u32)]) -> BTreeMap<String, Share> {
        shares.iter().map(|(region, percent)| ((*region).to_owned(), Share::percent(*percent))).collect()
    }

    #[test]
    fn shares_are_reached_by_few_moves() {
        let found =
            moves("", &targets(&[("a", 20), ("b", 50), ("c", 30)]), &ledgers(&[("a", 60), ("b", 30), ("c", 10)]));
        let to = |to: &str| ("a".to_owned(), to.to_owned(), Share::percent(20));
        assert_eq!(found, Ok(vec![to("c"), to("b")]));
        assert_eq!(moves("", &targets(&[("a", 60), ("b", 40)]), &ledgers(&[("a", 60), ("b", 40)])), Ok(Vec::new()));
    }

    #[test]
    fn shares_that_cannot_be_set_are_told() {
        let told = |shares: &[(&str, u32)]| {
            moves("", &targets(shares), &ledgers(&[("a", 60), ("b", 40)])).unwrap_err().to_string()
        };
        assert_eq!(told(&[("a", 60), ("b", 50)]), "the shares are 110% together, and the regions have 100%");
        assert_eq!(told(&[("a", 100)]), "`b` is missing: write the shares of all regions");
    }

    #[test]
    fn a_rule_may_have_fewer_regions_than_there_are() {
        let mut all = ledgers(&[("a", 60), ("b", 30), ("c", 10)]);
        for (region, percent) in [("a", 90), ("c", 10)] {
            let share = RegionShare::new(Share::percent(percent), Share::percent(5));
            all.get_mut(region).unwrap().shares.insert("own".to_owned(), share);
        }
        let found = vec![("a".to_owned(), "c".to_owned(), Share::percent(40))];
        for shares in [vec![("a", 50), ("c", 50)], vec![("a", 50), ("b", 0), ("c", 50)]] {
            assert_eq!(moves("own", &targets(&shares), &all), Ok(found.clone()));
        }
        let told = |rule, shares: &[(&str, u32)]| moves(rule, &targets(shares), &all).unwrap_err().to_string();
        let shares = [("a", 50), ("b", 10), ("c", 40)];
        assert_eq!(told("own", &shares), "region `b`: the region has no share of the rule `own`");
        assert_eq!(told("other", &[]), "region `a`: the region has no share of the rule `other`");
        assert_eq!(told("own", &[("a", 100)]), "`c` is missing: write the shares of all regions");
    }
}
