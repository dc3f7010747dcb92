//! What an upstream says of limits of its own, beside what is said here.
//!
//! An intermediary neither removes such fields nor makes them more permissive. `RateLimit` and `RateLimit-Policy` are lists, so both
//! have room there. The `X-RateLimit` fields tell of one limit, so the stricter one is told.

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::Parser;
use sfv::visitor::Ignored;

/// Makes one list of what an upstream said in a field and of our own value, which is the last. A value that is no list stays alone:
/// with ours behind it nobody could read either.
pub(crate) fn join_lists(headers: &mut HeaderMap, name: &HeaderName) {
    let mut theirs: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    let Some(ours) = theirs.pop() else { return };
    let is_list = |value: &HeaderValue| Parser::new(value.as_bytes()).parse_list_with_visitor(Ignored).is_ok();
    if !theirs.iter().all(is_list) {
        return set(headers, name, theirs);
    }
    let theirs = theirs.iter().map(HeaderValue::as_bytes).filter(|value| !value.trim_ascii().is_empty());
    let joined: Vec<&[u8]> = std::iter::once(ours.as_bytes()).chain(theirs).collect();
    // Values with commas between them are a value.
    if let Ok(joined) = HeaderValue::from_bytes(&joined.join(&b", "[..])) {
        set(headers, name, [joined]);
    }
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
