//! A request as its protocol carries it, and how facts are read from that.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::syntax::{RequestTarget, cookies, parameters, without_port};
use super::{Fact, Values};

/// A request as its protocol carries it. [`read`] makes facts of it, in the same way for every protocol.
pub trait RawRequest {
    /// The method as it is written; `None` if it is not known.
    fn method(&self) -> Option<&str>;

    /// The target, in its parts. Empty parts are not known.
    fn target(&self) -> RequestTarget<'_>;

    /// The lines of a header as they are written.
    fn lines(&self, name: &str) -> Values<'_>;

    /// The values that come apart from target and headers: what was verified (a user, an API key, a tier, a claim), an entry of a
    /// descriptor, and a host, a query parameter or a cookie that the sender names by itself. [`Fact::is_called`] compares names.
    fn stated(&self, fact: Fact<'_>) -> Values<'_>;
}

/// The values of a fact of a request.
///
/// | fact | read from |
/// |---|---|
/// | method | the method |
/// | path | the target, up to its query |
/// | host | stated, else the target's authority, else every line of `Host`; without a port |
/// | header | every line of that name, without blanks around it |
/// | query | stated, else every [parameter](parameters) of that name in the target |
/// | cookie | stated, else every [cookie](cookies) of that name in all lines of `Cookie` |
/// | API key, user, tier, claim, descriptor | stated |
#[inline]
pub fn read<'r, R: RawRequest + ?Sized>(raw: &'r R, fact: Fact<'_>) -> Values<'r> {
    match fact {
        Fact::Method => raw.method().filter(|method| !method.is_empty()).into(),
        Fact::Path => Some(raw.target().path).filter(|path| !path.is_empty()).into(),
        Fact::Host => hosts(raw).map(|host| narrowed(host, without_port)),
        Fact::Header(name) => raw.lines(name).map(|line| narrowed(line, str::trim_ascii)),
        Fact::Query(name) => raw.stated(fact).or_else(|| parameters(raw.target().query, name).collect()),
        Fact::Cookie(name) => raw.stated(fact).or_else(|| cookies_of(raw.lines("cookie"), name)),
        Fact::ApiKey | Fact::User | Fact::Tier | Fact::Claim(_) | Fact::Descriptor(_) => raw.stated(fact),
    }
}

fn hosts<R: RawRequest + ?Sized>(raw: &R) -> Values<'_> {
    raw.stated(Fact::Host).or_else(|| match raw.target().authority {
        Some(authority) => authority.into(),
        None => raw.lines("host"),
    })
}

fn cookies_of<'l>(lines: Values<'l>, name: &str) -> Values<'l> {
    match lines {
        Values::None => Values::None,
        Values::One(line) => cookies_in(line, name).into_iter().collect(),
        // HTTP/2 may cut cookies into several lines.
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
