//! What an upstream says of limits of its own, beside what is said here.
//!
//! An intermediary neither removes such fields nor makes them more permissive. `RateLimit` and `RateLimit-Policy` are lists, so both
//! have room there. The `X-RateLimit` fields tell of one limit, so the stricter one is told.

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, FieldType, Item, List, ListEntry, Parser};

/// The prefix of an upstream's limit whose name is one of ours.
const UPSTREAM: &str = "upstream:";

/// Makes one list of what an upstream said in a field and of our own value, which is the last. A value that is no list stays alone:
/// with ours behind it nobody could read either.
///
/// Clients find limits by their names, which are strings. A limit of the upstream's with a name of ours is renamed, so that it
/// cannot be taken for ours, and what is no limit is left out.
pub(crate) fn join_lists(headers: &mut HeaderMap, name: &HeaderName) {
    let mut theirs: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    let Some(ours) = theirs.pop() else { return };
    let list = |value: &HeaderValue| Parser::new(value.as_bytes()).parse::<List>().ok();
    let (Some(known), Some(lists)) = (list(&ours), theirs.iter().map(list).collect::<Option<Vec<_>>>()) else {
        return set(headers, name, theirs);
    };
    let known: Vec<&str> = known.iter().filter_map(name_of).collect();
    let theirs: List = lists.into_iter().flatten().filter_map(|entry| beside(entry, &known)).collect();
    let joined = match theirs.serialize() {
        Some(theirs) => HeaderValue::from_bytes(&[ours.as_bytes(), theirs.as_bytes()].join(&b", "[..])),
        None => Ok(ours),
    };
    // Values with commas between them are a value.
    if let Ok(joined) = joined {
        set(headers, name, [joined]);
    }
}

/// The name of a limit. Some write it as a token, which the draft does not.
fn name_of(entry: &ListEntry) -> Option<&str> {
    match entry {
        ListEntry::Item(Item { bare_item: BareItem::String(name), .. }) => Some(name.as_str()),
        ListEntry::Item(Item { bare_item: BareItem::Token(name), .. }) => Some(name.as_str()),
        ListEntry::Item(_) | ListEntry::InnerList(_) => None,
    }
}

/// An upstream's limit under a name that none of ours has; `None` if it is no limit.
fn beside(entry: ListEntry, ours: &[&str]) -> Option<ListEntry> {
    let mut name = name_of(&entry)?.to_owned();
    while ours.contains(&name.as_str()) {
        name.insert_str(0, UPSTREAM);
    }
    let ListEntry::Item(Item { params, .. }) = entry else { return None };
    let name = sfv::String::from_string(name).ok()?;
    Some(ListEntry::Item(Item::with_params(name, params)))
}

/// Makes these the values of a field.
fn set(headers: &mut HeaderMap, name: &HeaderName, values: impl IntoIterator<Item = HeaderValue>) {
    headers.remove(name);
    for value in values {
        // There is room for them: they were there before.
        let _ = headers.try_append(name, value);
    }
}

/// Which of two families of `X-RateLimit` fields is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stricter {
    Ours,
    Theirs,
}

/// Compares what an upstream said with our own values, which are the last. The one with less left is stricter; if they are equal, the
/// one that resets later. What says nothing of what is left cannot be compared, and ours is told.
pub(crate) fn stricter(headers: &HeaderMap, remaining: &HeaderName, reset: &HeaderName) -> Stricter {
    let (Some((their_left, our_left)), resets) = (both(headers, remaining), both(headers, reset)) else {
        return Stricter::Ours;
    };
    let is_later = || resets.is_some_and(|(theirs, ours)| theirs > ours);
    if their_left < our_left || (their_left == our_left && is_later()) { Stricter::Theirs } else { Stricter::Ours }
}

/// The upstream's number and ours.
fn both(headers: &HeaderMap, name: &HeaderName) -> Option<(u64, u64)> {
    let mut values = headers.get_all(name).iter();
    let (theirs, ours) = (values.next()?, values.next_back()?);
    Some((number(theirs)?, number(ours)?))
}

/// The first number of a value such as `10` or `10, 10;w=1`.
fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.split([',', ';']).next()?.trim().parse().ok()
}

/// Keeps the last value of a field, if it is ours, or all others.
pub(crate) fn keep(headers: &mut HeaderMap, name: &HeaderName, whose: Stricter, is_ours_there: bool) {
    let mut theirs: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    let ours = if is_ours_there { theirs.pop() } else { None };
    match whose {
        Stricter::Ours => set(headers, name, ours),
        Stricter::Theirs => set(headers, name, theirs),
    }
}
