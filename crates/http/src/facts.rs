//! Facts of an HTTP request, for keys and conditions of rules.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::TRANSFER_ENCODING;
use http::{HeaderMap, Method, Uri};
use tidegate_rules::facts::{RawRequest, read};
use tidegate_rules::syntax::{RequestTarget, text};
use tidegate_rules::{BodyNumber, Fact, Facts, FieldPath, Priority, Values};

use crate::body_fields::BodyFields;
use crate::claims::Claims;

/// The facts of an HTTP request, read from it when a rule needs them.
///
/// Facts of the request itself are borrowed from it. Verified facts are never taken from the request; the code that has
/// verified them adds them: the client's [address](HttpFacts::address), the user, the API key, claims and the tier.
///
/// Facts are [read](tidegate_rules::facts::read) in the same way for every protocol. The authority is that of the
/// target, which is `:authority` in HTTP/2. Bytes in headers that are not UTF-8 become U+FFFD. Fields of the body must
/// be found beforehand ([`BodyFields`]).
///
/// A repeated fact has several [values](Facts::values). Rules decide how such a request is treated.
#[derive(Clone, Debug)]
pub struct HttpFacts<'a> {
    method: &'a str,
    target: RequestTarget<'a>,
    host: Option<&'a str>,
    headers: &'a HeaderMap,
    address: Option<IpAddr>,
    user: Values<'a>,
    api_key: Values<'a>,
    tier: Values<'a>,
    claims: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    token: Option<&'a Claims>,
    hits: Option<u64>,
    body: Option<&'a BodyFields>,
    is_unmeasured: bool,
    is_never_shed: bool,
    priority: Option<Priority>,
}

macro_rules! verified {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, value: impl Into<Values<'a>>) -> HttpFacts<'a> {
            self.$name = value.into();
            self
        }
    )*};
}

impl<'a> HttpFacts<'a> {
    /// The facts of a request, without any verified ones, not even the client's address.
    #[must_use]
    pub fn new(method: &'a Method, uri: &'a Uri, headers: &'a HeaderMap) -> HttpFacts<'a> {
        HttpFacts {
            method: method.as_str(),
            target: RequestTarget {
                authority: authority_of(uri),
                path: uri.path(),
                query: uri.query().unwrap_or_default(),
            },
            host: None,
            headers,
            address: None,
            user: Values::None,
            api_key: Values::None,
            tier: Values::None,
            claims: Vec::new(),
            token: None,
            hits: None,
            body: None,
            is_unmeasured: false,
            is_never_shed: false,
            priority: None,
        }
    }

    /// The facts of a request with any type of body, without any verified ones.
    #[must_use]
    pub fn of<B>(request: &'a http::Request<B>) -> HttpFacts<'a> {
        HttpFacts::new(request.method(), request.uri(), request.headers())
    }

    /// Sets the method, where a proxy asks on behalf of another request.
    #[must_use]
    pub const fn method(mut self, method: &'a str) -> HttpFacts<'a> {
        self.method = method;
        self
    }

    /// Sets the target, as sent in the request line: a path with or without a query, or an absolute URI. For proxies that ask
    /// on behalf of another request.
    #[must_use]
    pub fn target(mut self, target: &'a str) -> HttpFacts<'a> {
        let before = self.target.authority;
        self.target = RequestTarget::parse(target);
        self.target.authority = self.target.authority.or(before);
        self
    }

    /// Sets the host, where a proxy names it.
    #[must_use]
    pub const fn host(mut self, host: &'a str) -> HttpFacts<'a> {
        self.host = Some(host);
        self
    }

    /// Sets the client's address, as found by [`TrustedProxies::client`](crate::TrustedProxies::client).
    #[must_use]
    pub const fn address(mut self, address: IpAddr) -> HttpFacts<'a> {
        self.address = Some(address);
        self
    }

    verified! {
        /// Sets the verified user.
        user;
        /// Sets the API key.
        api_key;
        /// Sets the verified tier.
        tier;
    }

    /// Adds a claim of a verified token.
    #[must_use]
    pub fn claim(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> HttpFacts<'a> {
        self.claims.push((name.into(), value.into()));
        self
    }

    /// Sets the claims of a verified token, in addition to those added one by one.
    #[must_use]
    pub const fn claims(mut self, claims: &'a Claims) -> HttpFacts<'a> {
        self.token = Some(claims);
        self
    }

    /// Sets the cost stated by the caller of the API.
    #[must_use]
    pub const fn hits(mut self, hits: u64) -> HttpFacts<'a> {
        self.hits = Some(hits);
        self
    }

    /// Sets the numbers that were read from the body.
    #[must_use]
    pub const fn body(mut self, fields: &'a BodyFields) -> HttpFacts<'a> {
        self.body = Some(fields);
        self
    }

    /// Sets the priority stated by a trusted caller.
    #[must_use]
    pub const fn priority(mut self, priority: Priority) -> HttpFacts<'a> {
        self.priority = Some(priority);
        self
    }

    /// Has rules with `shed` let the request pass.
    #[must_use]
    pub const fn never_shed(mut self) -> HttpFacts<'a> {
        self.is_never_shed = true;
        self
    }

    /// Marks the body as being of unknown length. A body with a `Transfer-Encoding` is recognised without this.
    #[must_use]
    pub const fn with_unmeasured_body(mut self) -> HttpFacts<'a> {
        self.is_unmeasured = true;
        self
    }

    /// Returns `true` if the caller is identified, by a user, an API key or a claim.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        !self.user.is_none() || !self.api_key.is_none() || !self.claims.is_empty() || self.token.is_some()
    }
}

/// The host and port of a target. `Uri::host` would parse malformed authorities differently from all other protocols.
fn authority_of(uri: &Uri) -> Option<&str> {
    let authority = uri.authority()?.as_str();
    Some(authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}

impl RawRequest for HttpFacts<'_> {
    #[inline]
    fn method(&self) -> Option<&str> {
        Some(self.method)
    }

    #[inline]
    fn target(&self) -> RequestTarget<'_> {
        self.target
    }

    #[inline]
    fn lines(&self, name: &str) -> Values<'_> {
        self.headers.get_all(name).iter().map(|value| text(value.as_bytes())).collect()
    }

    #[inline]
    fn stated(&self, fact: Fact<'_>) -> Values<'_> {
        match fact {
            Fact::Host => self.host.into(),
            Fact::ApiKey => self.api_key.borrowed(),
            Fact::User => self.user.borrowed(),
            Fact::Tier => self.tier.borrowed(),
            Fact::Claim(name) => {
                let added = self.claims.iter().filter(|(known, _)| fact.is_called(known));
                let added = added.map(|(_, value)| value.as_ref());
                added.chain(self.token.into_iter().flat_map(|claims| claims.values(name))).collect()
            }
            Fact::Method | Fact::Path | Fact::Header(_) | Fact::Query(_) | Fact::Cookie(_) | Fact::Descriptor(_) => {
                Values::None
            }
        }
    }
}

impl Facts for HttpFacts<'_> {
    #[inline]
    fn values(&self, fact: Fact<'_>) -> Values<'_> {
        read(self, fact)
    }

    fn address(&self) -> Option<IpAddr> {
        self.address
    }

    fn hits(&self) -> Option<u64> {
        self.hits
    }

    fn has_unmeasured_body(&self) -> bool {
        self.is_unmeasured || self.headers.contains_key(TRANSFER_ENCODING)
    }

    fn priority(&self) -> Option<Priority> {
        self.priority
    }

    fn is_never_shed(&self) -> bool {
        self.is_never_shed
    }

    fn body(&self, path: &FieldPath) -> Option<BodyNumber> {
        self.body?.get(path)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http::header::HOST;

    use super::*;

    fn request(target: &str, headers: &[(&str, &str)]) -> Request<()> {
        let builder = Request::get(target);
        headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(()).unwrap()
    }

    fn get(request: &Request<()>, fact: Fact<'_>) -> Option<String> {
        HttpFacts::of(request).get(fact).map(Cow::into_owned)
    }

    #[test]
    fn a_request_is_read_where_it_stands() {
        let request = request("/a//b?x=1&y=2", &[("Host", "API.example.com:8080"), ("X-Tier", "free")]);
        let facts = HttpFacts::of(&request);
        for (fact, value) in [
            (Fact::Method, "GET"),
            (Fact::Path, "/a//b"),
            (Fact::Host, "API.example.com"),
            (Fact::Header("x-tier"), "free"),
            (Fact::Header("X-TIER"), "free"),
            (Fact::Query("y"), "2"),
        ] {
            assert!(matches!(facts.get(fact), Some(Cow::Borrowed(found)) if found == value), "{fact:?}");
        }
        for unsaid in [Fact::User, Fact::ApiKey, Fact::Tier, Fact::Claim("org"), Fact::Cookie("c"), Fact::Query("z")] {
            assert_eq!(facts.get(unsaid), None, "{unsaid:?}");
        }
        assert!(!facts.is_authenticated() && facts.user("alice").is_authenticated());
    }

    #[test]
    fn the_authority_of_the_target_comes_before_the_host_header() {
        let both = request("http://user@a.example:80/x", &[("Host", "b.example")]);
        assert_eq!(get(&both, Fact::Host).as_deref(), Some("a.example"));
    }

    #[test]
    fn a_host_that_is_not_ascii_loses_its_port_too() {
        let mut request = request("/", &[]);
        for (host, without) in [("bücher.example:80".as_bytes(), "bücher.example"), (b"b\xffcher:80", "b\u{fffd}cher")]
        {
            request.headers_mut().insert(HOST, http::HeaderValue::from_bytes(host).unwrap());
            assert_eq!(get(&request, Fact::Host).as_deref(), Some(without));
        }
    }

    #[test]
    fn parameters_cannot_hide_behind_escapes() {
        let request = request("/?dr%61ft=a+b%20c&draft=second&empty&eq=a=b", &[]);
        assert_eq!(get(&request, Fact::Query("draft")).as_deref(), Some("a b c"));
        assert_eq!(get(&request, Fact::Query("empty")).as_deref(), Some(""));
        assert_eq!(get(&request, Fact::Query("eq")).as_deref(), Some("a=b"));
    }

    #[test]
    fn cookies_are_found_in_every_line() {
        let request = request("/", &[("Cookie", "a=1;  b = two words ;c"), ("Cookie", "d==x; a=3")]);
        for (name, value) in [("a", Some("1")), ("b", Some("two words")), ("c", None), ("d", Some("=x"))] {
            assert_eq!(get(&request, Fact::Cookie(name)).as_deref(), value, "{name}");
        }
    }

    #[test]
    fn repeated_fields_have_two_values() {
        let lines = [("X-Api-Key", "k1"), ("x-api-key", "k2"), ("Cookie", "sid=1; a=2"), ("Cookie", "b=3; sid=4")];
        let mut request = request("/?k=1&%6b=2&K=3&once=4", &lines);
        request.headers_mut().append(HOST, "a:1".parse().unwrap());
        request.headers_mut().append(HOST, "b".parse().unwrap());
        let facts = HttpFacts::of(&request).claim("org", "x").claim("org", "y").user("alice").user("bob");
        let all = |fact| facts.values(fact).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(all(Fact::Header("x-api-key")), ["k1", "k2"]);
        assert_eq!(all(Fact::Cookie("sid")), ["1", "4"]);
        assert_eq!(all(Fact::Query("k")), ["1", "2", "3"]);
        assert_eq!(all(Fact::Host), ["a", "b"]);
        assert_eq!(all(Fact::Claim("org")), ["x", "y"]);
        assert_eq!((all(Fact::Cookie("a")), all(Fact::Query("once"))), (vec!["2".to_owned()], vec!["4".to_owned()]));
        assert_eq!(all(Fact::User), ["bob"], "a verified user replaces the header's");
    }

    #[test]
    fn a_value_that_is_not_text_is_still_there() {
        let mut request = request("/", &[]);
        request.headers_mut().insert("x-id", http::HeaderValue::from_bytes(b"a\xffb").unwrap());
        assert_eq!(get(&request, Fact::Header("x-id")).as_deref(), Some("a\u{fffd}b"));
    }

    #[test]
    fn a_proxy_may_ask_for_another_target() {
        let request = request("/auth", &[("Host", "limiter.internal")]);
        let facts = HttpFacts::of(&request).method("POST").target("https://u:p@api.example:1/login?next=%2F#x");
        assert_eq!(facts.get(Fact::Method).as_deref(), Some("POST"));
        assert_eq!(facts.get(Fact::Path).as_deref(), Some("/login"));
        assert_eq!(facts.get(Fact::Query("next")).as_deref(), Some("/"));
        assert_eq!(facts.get(Fact::Host).as_deref(), Some("api.example"));
        let facts = facts.target("/x?to=http://y/z").host("other.example:2");
        assert_eq!(facts.get(Fact::Path).as_deref(), Some("/x"));
        assert_eq!(facts.get(Fact::Query("to")).as_deref(), Some("http://y/z"));
        assert_eq!(facts.get(Fact::Host).as_deref(), Some("other.example"));
    }
}
