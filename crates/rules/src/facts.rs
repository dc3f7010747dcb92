//! What is known of a request.

pub mod syntax;
mod values;

use std::borrow::Cow;
use std::net::IpAddr;

pub use self::values::Values;
use crate::FieldPath;
use crate::body_number::BodyNumber;

/// Something that may be known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact<'n> {
    /// The method, as sent.
    Method,
    /// The path, without its query.
    Path,
    /// The host that the request was meant for, without a port.
    Host,
    /// The API key that came with the request.
    ApiKey,
    /// The user, as verified by whoever asks.
    User,
    /// The tier, as verified by whoever asks.
    Tier,
    /// A header, by its name in any case.
    Header(&'n str),
    /// A query parameter, by its decoded name in any case, as [`syntax::parameters`] finds it.
    Query(&'n str),
    /// A cookie, by its name in any case.
    Cookie(&'n str),
    /// A claim of a token, as verified by whoever asks.
    Claim(&'n str),
    /// An entry of an Envoy rate-limit descriptor.
    Descriptor(&'n str),
}

/// What is known of one request. Rules ask only for what they need.
pub trait Facts {
    /// The values of a fact: every one of them if the request says it more than once.
    fn values(&self, fact: Fact<'_>) -> Values<'_>;

    /// The first value of a fact, or `None` if it is not known.
    fn get(&self, fact: Fact<'_>) -> Option<Cow<'_, str>> {
        self.values(fact).first()
    }

    /// The address of the client, as far as it can be believed.
    fn address(&self) -> Option<IpAddr> {
        None
    }

    /// How much the request says it costs, where its protocol has a place for that.
    fn hits(&self) -> Option<u64> {
        None
    }

    /// Whether the request has a body and does not say how long it is. Unless somebody knows better, so if it has a
    /// `Transfer-Encoding`.
    fn has_unmeasured_body(&self) -> bool {
        !self.values(Fact::Header("transfer-encoding")).is_none()
    }

    /// The number in a field of the request's JSON body, as far as somebody has looked into it.
    fn body(&self, _: &FieldPath) -> Option<BodyNumber> {
        None
    }
}

/// A request put together by hand: for tests, tools, and callers without a protocol.
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
    path: String,
    query: String,
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
    /// A request for `target`: a path, perhaps with a query.
    #[must_use]
    pub fn new(method: &str, target: &str) -> Request {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Request { method: method.to_owned(), path: path.to_owned(), query: query.to_owned(), ..Request::default() }
    }

    setters! {
        /// Meant for this host.
        host;
        /// With this API key.
        api_key;
        /// Made by this user.
        user;
        /// Of this tier.
        tier;
    }

    adders! {
        /// With this header.
        header to headers;
        /// With this cookie.
        cookie to cookies;
        /// With this verified claim.
        claim to claims;
        /// With this descriptor entry.
        descriptor to descriptor;
        /// With this field in its JSON body, by its path.
        body to body;
    }

    /// From this address.
    #[must_use]
    pub const fn address(mut self, address: IpAddr) -> Request {
        self.address = Some(address);
        self
    }

    /// Saying that it costs this much.
    #[must_use]
    pub const fn hits(mut self, hits: u64) -> Request {
        self.hits = Some(hits);
        self
    }
}

fn named<'a>(list: &'a [(String, String)], is: impl Fn(&str) -> bool) -> Values<'a> {
    list.iter().filter(|(known, _)| is(known)).map(|(_, value)| value.as_str()).collect()
}

impl Facts for Request {
    fn values(&self, fact: Fact<'_>) -> Values<'_> {
        match fact {
            Fact::Method => Some(self.method.as_str()).filter(|method| !method.is_empty()).into(),
            Fact::Path => Some(self.path.as_str()).filter(|path| !path.is_empty()).into(),
            Fact::Host => self.host.as_deref().into(),
            Fact::ApiKey => self.api_key.as_deref().into(),
            Fact::User => self.user.as_deref().into(),
            Fact::Tier => self.tier.as_deref().into(),
            Fact::Header(name) => named(&self.headers, |known| known.eq_ignore_ascii_case(name)),
            Fact::Query(name) => syntax::parameters(&self.query, name).collect(),
            Fact::Cookie(name) => named(&self.cookies, |known| known.eq_ignore_ascii_case(name)),
            Fact::Claim(name) => named(&self.claims, |known| known == name),
            Fact::Descriptor(name) => named(&self.descriptor, |known| known == name),
        }
    }

    fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn hits(&self) -> Option<u64> {
        self.hits
    }

    fn body(&self, path: &FieldPath) -> Option<BodyNumber> {
        named(&self.body, |known| known == path.as_str()).first().and_then(|number| BodyNumber::parse(&number))
    }
}
