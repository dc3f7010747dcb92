//! The moves that lead from present shares to others.

use std::collections::BTreeMap;

use tidegate_core::regions::{BeginError, Share, ShareLedger};

use super::regions_error::RegionsError;

/// The moves that bring regions from the shares that they have to others: what some have too much goes to those that have too little.
pub(super) fn moves(
    rule: &str,
    targets: &BTreeMap<String, Share>,
    ledgers: &BTreeMap<String, ShareLedger>,
) -> Result<Vec<(String, String, Share)>, RegionsError> {
    let wrong = |problem: String| Err(RegionsError::Shares(problem));
    if let Some(region) = ledgers.keys().find(|region| !targets.contains_key(*region)) {
        return wrong(format!("`{region}` is missing: write the shares of all regions"));
    }
    let mut have = BTreeMap::new();
    for (region, ledger) in ledgers {
        let share = ledger.shares.get(rule).map(|region| region.share);
        let unknown = || BeginError::UnknownRule { rule: rule.to_owned() };
        have.insert(region, share.ok_or_else(|| RegionsError::Begin { region: region.clone(), error: unknown() })?);
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
}
