//! A request built by the caller.

use std::net::IpAddr;

use super::syntax::RequestTarget;
use super::{Fact, Facts, RawRequest, Values, read};
use crate::FieldPath;
use crate::body_number::BodyNumber;

/// A request built by the caller: for tests, tools, and callers without a protocol.
///
/// ```
/// use tidegate_rules::{Fact, Facts, Request};
///
/// let request = Request::new("POST", "/login?next=home").header("X-Tier", "free");
/// assert_eq!(request.get(Fact::Path).as_deref(), Some("/login"));
/// assert_eq!(request.get(Fact::Query("next")).as_deref(), Some("home"));
/// assert_eq!(request.get(Fact::Header("x-tier")).as_deref(), Some("free"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Request {
    method: String,
    target: String,
    host: Option<String>,
    address: Option<IpAddr>,
    api_key: Option<String>,
    user: Option<String>,
    tier: Option<String>,
    headers: Vec<(String, String)>,
    cookies: Vec<(String, String)>,
    claims: Vec<(String, String)>,
    descriptor: Vec<(String, String)>,
    body: Vec<(String, String)>,
    hits: Option<u64>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, value: &str) -> Request {
            self.$name = Some(value.to_owned());
            self
        }
    )*};
}

macro_rules! adders {
    ($($(#[$doc:meta])* $name:ident to $list:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, name: &str, value: &str) -> Request {
            self.$list.push((name.to_owned(), value.to_owned()));
            self
        }
    )*};
}

impl Request {
    /// A request for `target`: a path, optionally with a query, or a whole URI.
    #[must_use]
    pub fn new(method: &str, target: &str) -> Request {
        Request { method: method.to_owned(), target: target.to_owned(), ..Request::default() }
    }

    setters! {
        /// Sets the host, optionally with a port. The default is the host of the target or of the header `Host`.
        host;
        /// Sets the API key.
        api_key;
        /// Sets the user.
        user;
        /// Sets the tier.
        tier;
    }

    adders! {
        /// Adds a header. `Host` and `Cookie` also set the host and the cookies.
        header to headers;
        /// Adds a cookie.
        cookie to cookies;
        /// Adds a verified claim.
        claim to claims;
        /// Adds a descriptor entry.
        descriptor to descriptor;
        /// Adds a field of the JSON body, by its path.
        body to body;
    }

    /// Sets the client's address.
    #[must_use]
    pub const fn address(mut self, address: IpAddr) -> Request {
        self.address = Some(address);
        self
    }

    /// Sets the cost that the request states.
    #[must_use]
    pub const fn hits(mut self, hits: u64) -> Request {
        self.hits = Some(hits);
        self
    }
}

type Pairs = [(String, String)];

fn called<'a>(list: &'a Pairs, fact: Fact<'_>) -> Values<'a> {
    list.iter().filter(|(known, _)| fact.is_called(known)).map(|(_, value)| value.as_str()).collect()
}

impl RawRequest for Request {
    fn method(&self) -> Option<&str> {
        Some(&self.method)
    }

    fn target(&self) -> RequestTarget<'_> {
        RequestTarget::parse(&self.target)
    }

    fn lines(&self, name: &str) -> Values<'_> {
        called(&self.headers, Fact::Header(name))
    }

    fn stated(&self, fact: Fact<'_>) -> Values<'_> {
        match fact {
            Fact::Host => self.host.as_deref().into(),
            Fact::ApiKey => self.api_key.as_deref().into(),
            Fact::User => self.user.as_deref().into(),
            Fact::Tier => self.tier.as_deref().into(),
            Fact::Cookie(_) => called(&self.cookies, fact),
            Fact::Claim(_) => called(&self.claims, fact),
            Fact::Descriptor(_) => called(&self.descriptor, fact),
            Fact::Method | Fact::Path | Fact::Header(_) | Fact::Query(_) => Values::None,
        }
    }
}

impl Facts for Request {
    fn values(&self, fact: Fact<'_>) -> Values<'_> {
        read(self, fact)
    }

    fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn hits(&self) -> Option<u64> {
        self.hits
    }

    fn body(&self, path: &FieldPath) -> Option<BodyNumber> {
        let (_, number) = self.body.iter().find(|(known, _)| known == path.as_str())?;
        BodyNumber::parse(number)
    }
}
