//! Merges an upstream's own rate-limit headers with Tidegate's.
//!
//! An intermediary must neither remove such fields nor make them more permissive. `RateLimit` and `RateLimit-Policy`
//! are lists, which can contain the limits of both. The `X-RateLimit` fields describe one limit, so the stricter one is
//! kept.

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, FieldType, Item, List, ListEntry, Parser};

/// Prefix for an upstream's limit with the same name as one of Tidegate's.
const UPSTREAM: &str = "upstream:";

/// Joins an upstream's values of a field and Tidegate's, which is the last, into one list. If the upstream's value is
/// not a valid list, it is kept alone: appending to it would make both unreadable.
///
/// Clients look limits up by name. An upstream's limit with the name of one of Tidegate's is renamed, and entries that
/// are not limits are dropped.
pub(crate) fn join_lists(headers: &mut HeaderMap, name: &HeaderName) {
    let mut theirs: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    let Some(ours) = theirs.pop() else { return };
    let list = |value: &HeaderValue| Parser::new(value.as_bytes()).parse::<List>().ok();
    let (Some(known), Some(lists)) = (list(&ours), theirs.iter().map(list).collect::<Option<Vec<_>>>()) else {
        return set(headers, name, theirs);
    };
    let known: Vec<&str> = known.iter().filter_map(name_of).collect();
    let theirs: List = lists.into_iter().flatten().filter_map(|entry| renamed(entry, &known)).collect();
    let joined = match theirs.serialize() {
        Some(theirs) => HeaderValue::from_bytes(&[ours.as_bytes(), theirs.as_bytes()].join(&b", "[..])),
        None => Ok(ours),
    };
    // Cannot fail: valid values joined by commas are a valid value.
    if let Ok(joined) = joined {
        set(headers, name, [joined]);
    }
}

/// The name of a limit. The draft has strings; some servers send tokens.
fn name_of(entry: &ListEntry) -> Option<&str> {
    match entry {
        ListEntry::Item(Item { bare_item: BareItem::String(name), .. }) => Some(name.as_str()),
        ListEntry::Item(Item { bare_item: BareItem::Token(name), .. }) => Some(name.as_str()),
        ListEntry::Item(_) | ListEntry::InnerList(_) => None,
    }
}

/// An upstream's limit under a name that none of Tidegate's has. `None` if the entry is not a limit.
fn renamed(entry: ListEntry, ours: &[&str]) -> Option<ListEntry> {
    let mut name = name_of(&entry)?.to_owned();
    while ours.contains(&name.as_str()) {
        name.insert_str(0, UPSTREAM);
    }
    let ListEntry::Item(Item { params, .. }) = entry else { return None };
    let name = sfv::String::from_string(name).ok()?;
    Some(ListEntry::Item(Item::with_params(name, params)))
}

/// Replaces the values of a field.
fn set(headers: &mut HeaderMap, name: &HeaderName, values: impl IntoIterator<Item = HeaderValue>) {
    headers.remove(name);
    for value in values {
        // Cannot fail: the map held these values before.
        let _ = headers.try_append(name, value);
    }
}

/// The owner of the stricter `X-RateLimit` fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stricter {
    Ours,
    Theirs,
}

/// Compares an upstream's values with Tidegate's, which are the last. The side with less remaining is stricter; on a
/// tie, the side that resets later. Tidegate's are stricter if the upstream does not state what remains.
pub(crate) fn stricter(headers: &HeaderMap, remaining: &HeaderName, reset: &HeaderName) -> Stricter {
    let (Some((their_left, our_left)), resets) = (both(headers, remaining), both(headers, reset)) else {
        return Stricter::Ours;
    };
    let is_later = || resets.is_some_and(|(theirs, ours)| theirs > ours);
    if their_left < our_left || (their_left == our_left && is_later()) { Stricter::Theirs } else { Stricter::Ours }
}

/// The upstream's number and Tidegate's.
fn both(headers: &HeaderMap, name: &HeaderName) -> Option<(u64, u64)> {
    let mut values = headers.get_all(name).iter();
    let (theirs, ours) = (values.next()?, values.next_back()?);
    Some((number(theirs)?, number(ours)?))
}

/// The first number of a value such as `10` or `10, 10;w=1`.
fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.split([',', ';']).next()?.trim().parse().ok()
}

/// Keeps one side's values of a field. Tidegate's is the last value if `is_ours_there`.
pub(crate) fn keep(headers: &mut HeaderMap, name: &HeaderName, whose: Stricter, is_ours_there: bool) {
    let mut theirs: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    let ours = if is_ours_there { theirs.pop() } else { None };
    match whose {
        Stricter::Ours => set(headers, name, ours),
        Stricter::Theirs => set(headers, name, theirs),
    }
}
