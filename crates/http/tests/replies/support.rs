//! Constructed rulings, and functions that read the headers of replies.

use std::borrow::Cow;

use http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parser};
use smallvec::SmallVec;
use tidegate_core::disclosure::Disclosure;
use tidegate_core::limit::Recovery;
use tidegate_core::{Decision, ManualClock, MemoryStore, Micros, Outcome, RuleId, Timestamp, Verdict};
use tidegate_http::{Caller, HeaderStyle, Reply, ReplyContext};
use tidegate_rules::{DecidedBy, Limiter, Mode, RuleSet, Ruled, Ruling};

pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);
pub(crate) const CONTEXT: ReplyContext = ReplyContext { at: NOW, caller: Caller::Authenticated, random: 0 };

pub(crate) fn limiter(rules: &str) -> Limiter<MemoryStore<ManualClock>, ManualClock> {
    let rules = RuleSet::parse("rules.yaml", rules).unwrap_or_else(|findings| panic!("{findings}")).rules;
    let clock = ManualClock::at(NOW);
    Limiter::with_clock(rules, MemoryStore::with_clock(clock.clone()), clock)
}

pub(crate) fn ruled(name: &str, outcome: Outcome) -> Ruled<'static> {
    let decision = Decision { outcome, limit: 10, remaining: 3, reset_after: Micros::new(1_500_001) };
    let (recovery, disclosure) = (Recovery::AtOnce(Micros::from_secs(60)), Disclosure::DEFAULT);
    Ruled {
        id: Cow::Owned(RuleId::new(name)),
        mode: Mode::Enforce,
        decision,
        recovery,
        disclosure,
        by: DecidedBy::Store,
        cost: 1,
    }
}

pub(crate) fn ruling(ruled: impl IntoIterator<Item = Ruled<'static>>) -> Ruling<'static> {
    let ruled: SmallVec<[Ruled; 4]> = ruled.into_iter().collect();
    let decisions: Vec<_> = ruled.iter().map(|ruled| ruled.decision).collect();
    Ruling {
        generation: 1,
        verdict: Verdict::of(&decisions),
        refused: None,
        ruled,
        receipts: SmallVec::new(),
        key_aliases: None,
        unkeyed: None,
    }
}

pub(crate) fn deny(wait: u64) -> Outcome {
    Outcome::Deny { retry_after: Micros::new(wait) }
}

pub(crate) const ALLOW: Outcome = Outcome::Allow { delay: Micros::ZERO };

pub(crate) fn headers(ruling: &Ruling<'_>, style: &HeaderStyle, context: ReplyContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    Reply::new(ruling, style, context).write_headers(&mut headers);
    headers
}

pub(crate) fn body(ruling: &Ruling<'_>, style: &HeaderStyle, context: ReplyContext) -> serde_json::Value {
    serde_json::from_slice(&Reply::new(ruling, style, context).problem()).unwrap()
}

pub(crate) fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

pub(crate) fn list(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, BareItem)>)> {
    let list: List = Parser::new(headers[name].as_bytes()).parse().unwrap();
    let entry = |entry: ListEntry| match entry {
        ListEntry::Item(item) => {
            let params = item.params.into_iter().map(|(name, value)| (name.as_str().to_owned(), value));
            (item.bare_item.as_string().unwrap().as_str().to_owned(), params.collect())
        }
        ListEntry::InnerList(inner) => panic!("{inner:?}"),
    };
    list.into_iter().map(entry).collect()
}

pub(crate) fn all<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}
