//! Facts: the properties of a request that rules look at.

mod raw;
mod request;
pub mod syntax;
mod values;

use std::borrow::Cow;
use std::net::IpAddr;

pub use self::raw::{RawRequest, read};
pub use self::request::Request;
pub use self::values::Values;
use crate::FieldPath;
use crate::body_number::BodyNumber;
use tidegate_core::Priority;

/// The name of a property of a request.
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
    /// The user, as verified by the caller.
    User,
    /// The tier, as verified by the caller.
    Tier,
    /// A header, by its name in any case.
    Header(&'n str),
    /// A query parameter, by its decoded name in any case, as [`syntax::parameters`] finds it.
    Query(&'n str),
    /// A cookie, by its name in any case.
    Cookie(&'n str),
    /// A claim of a token, as verified by the caller.
    Claim(&'n str),
    /// An entry of an Envoy rate-limit descriptor.
    Descriptor(&'n str),
}

impl Fact<'_> {
    /// Whether a header, a query parameter, a cookie, a claim or an entry of a descriptor that is called `known` is this fact.
    /// Headers and cookies are called by their names in any case, query parameters as [`syntax::parameters`] finds them, the
    /// others by their exact names. A fact without a name never matches.
    #[must_use]
    pub fn is_called(self, known: &str) -> bool {
        match self {
            Fact::Header(name) | Fact::Cookie(name) => known.eq_ignore_ascii_case(name),
            Fact::Query(name) => syntax::is_parameter(known, name),
            Fact::Claim(name) | Fact::Descriptor(name) => known == name,
            Fact::Method | Fact::Path | Fact::Host | Fact::ApiKey | Fact::User | Fact::Tier => false,
        }
    }
}

/// The facts of one request. Rules ask only for those that they need.
///
/// Requests of a protocol implement [`RawRequest`] and [read](read()) their facts from that, so that all protocols agree.
pub trait Facts {
    /// The values of a fact: every one of them if the request has it more than once.
    fn values(&self, fact: Fact<'_>) -> Values<'_>;

    /// The first value of a fact, or `None` if it is not known.
    fn get(&self, fact: Fact<'_>) -> Option<Cow<'_, str>> {
        self.values(fact).first()
    }

    /// The address of the client, if it can be trusted.
    fn address(&self) -> Option<IpAddr> {
        None
    }

    /// The cost that the request states, where its protocol has a place for it.
    fn hits(&self) -> Option<u64> {
        None
    }

    /// Whether the request has a body of unknown length. By default, so if it has a `Transfer-Encoding`.
    fn has_unmeasured_body(&self) -> bool {
        !self.values(Fact::Header("transfer-encoding")).is_none()
    }

    /// The priority that the request states, if it can be trusted. Rules come first.
    fn priority(&self) -> Option<Priority> {
        None
    }

    /// The number in a field of the request's JSON body, as far as that was read.
    fn body(&self, _: &FieldPath) -> Option<BodyNumber> {
        None
    }
}
