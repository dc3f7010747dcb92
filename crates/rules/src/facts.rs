//! Facts: the properties of a request that rules use.

mod parameters;
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
use tidegate_core::priority::Priority;

/// The name of a property of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact<'n> {
    /// The method, as sent.
    Method,
    /// The path, without its query.
    Path,
    /// The target host of the request, without a port.
    Host,
    /// The API key that came with the request.
    ApiKey,
    /// The user, as verified by the caller.
    User,
    /// The tier, as verified by the caller.
    Tier,
    /// A header, by its name in any case. `Host` is the same as [`Fact::Host`].
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
    /// Returns `true` if a header, a query parameter, a cookie, a claim or an entry of a descriptor with the name
    /// `known` is this fact. Names of headers and cookies are compared in any case, those of query parameters as by
    /// [`syntax::parameters`], and all others exactly. A fact without a name never matches.
    #[must_use]
    pub fn is_called(self, known: &str) -> bool {
        match self {
            Fact::Header(name) | Fact::Cookie(name) => known.eq_ignore_ascii_case(name),
            Fact::Query(name) => parameters::is_parameter(known, name),
            Fact::Claim(name) | Fact::Descriptor(name) => known == name,
            Fact::Method | Fact::Path | Fact::Host | Fact::ApiKey | Fact::User | Fact::Tier => false,
        }
    }
}

/// The facts of one request. Rules request only the facts that they need.
///
/// Protocols implement [`RawRequest`] for their requests and [read](read()) the facts from that, so that all protocols
/// agree.
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

    /// The cost stated by the request, if its protocol supports that.
    fn hits(&self) -> Option<u64> {
        None
    }

    /// Whether the request has a body of unknown length. The default is whether it has a `Transfer-Encoding`.
    fn has_unmeasured_body(&self) -> bool {
        !self.values(Fact::Header("transfer-encoding")).is_none()
    }

    /// The priority stated by the request, if it can be trusted. Priorities set by rules take precedence.
    fn priority(&self) -> Option<Priority> {
        None
    }

    /// Whether rules with `shed` let the request pass, whatever its priority is, as they do with health checks.
    fn is_never_shed(&self) -> bool {
        false
    }

    /// The number in a field of the request's JSON body, as far as that was read.
    fn body(&self, _: &FieldPath) -> Option<BodyNumber> {
        None
    }
}
