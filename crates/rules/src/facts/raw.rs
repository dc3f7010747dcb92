//! A protocol's view of a request, from which facts are read.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::syntax::{RequestTarget, cookies, parameters, without_port};
use super::{Fact, Values};

/// A protocol's view of a request. [`read`] reads the facts from it, in the same way for every protocol.
pub trait RawRequest {
    /// The method as sent; `None` if unknown.
    fn method(&self) -> Option<&str>;

    /// The parts of the target. Unknown parts are empty.
    fn target(&self) -> RequestTarget<'_>;

    /// The values of all lines of a header, as sent.
    fn lines(&self, name: &str) -> Values<'_>;

    /// Values not read from the target or headers: verified identity, descriptor entries, explicit host, query and cookies.
    /// [`Fact::is_called`] compares names.
    fn stated(&self, fact: Fact<'_>) -> Values<'_>;
}

/// The values of a fact of a request.
///
/// | fact | read from |
/// |---|---|
/// | method | the method |
/// | path | the target, up to its query |
/// | host | stated, else the target's authority, else every line of `Host`; without a port |
/// | header | every line of that name, without blanks around it; `Host` is the host |
/// | query | stated, else every [parameter](parameters) of that name in the target |
/// | cookie | stated, else every [cookie](cookies) of that name in all lines of `Cookie` |
/// | API key, user, tier, claim, descriptor | stated |
#[inline]
pub fn read<'r, R: RawRequest + ?Sized>(raw: &'r R, fact: Fact<'_>) -> Values<'r> {
    match fact {
        Fact::Method => raw.method().filter(|method| !method.is_empty()).into(),
        Fact::Path => Some(raw.target().path).filter(|path| !path.is_empty()).into(),
        Fact::Host => hosts(raw),
        // HTTP/2 has no such header, but the host all the same.
        Fact::Header(name) if name.eq_ignore_ascii_case("host") => hosts(raw),
        Fact::Header(name) => raw.lines(name).map(|line| narrowed(line, str::trim_ascii)),
        Fact::Query(name) => raw.stated(fact).or_else(|| parameters(raw.target().query, name).collect()),
        Fact::Cookie(name) => raw.stated(fact).or_else(|| cookies_of(raw.lines("cookie"), name)),
        Fact::ApiKey | Fact::User | Fact::Tier | Fact::Claim(_) | Fact::Descriptor(_) => raw.stated(fact),
    }
}

fn hosts<R: RawRequest + ?Sized>(raw: &R) -> Values<'_> {
    let hosts = raw.stated(Fact::Host).or_else(|| match raw.target().authority {
        Some(authority) => authority.into(),
        None => raw.lines("host"),
    });
    hosts.map(|host| narrowed(host, without_port))
}

fn cookies_of<'l>(lines: Values<'l>, name: &str) -> Values<'l> {
    match lines {
        Values::None => Values::None,
        Values::One(line) => cookies_in(line, name).into_iter().collect(),
        // HTTP/2 may split cookies into several lines.
        Values::Several(lines) => lines.into_iter().flat_map(|line| cookies_in(line, name)).collect(),
    }
}

fn cookies_in<'l>(line: Cow<'l, str>, name: &str) -> SmallVec<[Cow<'l, str>; 1]> {
    match line {
        Cow::Borrowed(line) => cookies(line.as_bytes(), name).collect(),
        Cow::Owned(line) => cookies(line.as_bytes(), name).map(|value| Cow::Owned(value.into_owned())).collect(),
    }
}

/// A part of a text, borrowed if the text is.
fn narrowed(text: Cow<'_, str>, part: impl Fn(&str) -> &str) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(part(text)),
        Cow::Owned(text) => {
            let kept = part(&text);
            if kept.len() == text.len() { Cow::Owned(text) } else { Cow::Owned(kept.to_owned()) }
        }
    }
}
