//! HTTP for Tidegate: requests become facts, and rulings become responses.
//!
//! ```
//! use http::{HeaderMap, Method, StatusCode, Uri};
//! use tidegate_rules::{Limiter, RuleSet};
//! use tidegate_core::{MemoryStore, Timestamp};
//! use tidegate_http::{Caller, HeaderStyle, HttpFacts, Reply, ReplyContext, TrustedProxies};
//!
//! let rules = "rules: [{ id: login, match: { path: /login }, key: address, limit: log 1/min }]";
//! let rules = RuleSet::parse("rules.yaml", rules).map_err(|findings| findings.to_string())?.rules;
//! let limiter = Limiter::new(rules, MemoryStore::new());
//!
//! let (method, uri, headers) = (Method::POST, Uri::from_static("/login"), HeaderMap::new());
//! let peer = [203, 0, 113, 7].into();
//! let facts = HttpFacts::new(&method, &uri, &headers).address(TrustedProxies::none().client(peer, &headers));
//! assert!(limiter.check_now(&facts).is_allowed());
//!
//! let ruling = limiter.check_now(&facts);
//! let context = ReplyContext { at: Timestamp::from_secs(1_767_225_600), caller: Caller::Unauthenticated, random: 0 };
//! let response = Reply::new(&ruling, &HeaderStyle::default(), context).response();
//! assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
//! assert_eq!(response.headers()["retry-after"], "60");
//! # Ok::<(), String>(())
//! ```
//!
//! Nothing here reads a clock, a random source or a socket.

mod accept;
mod body_fields;
mod claims;
mod client_address;
mod cors;
mod denial_body;
mod facts;
mod fixed_refusal;
mod forwarded;
mod grpc;
mod headers;
mod host;
mod json;
mod path_refusal;
mod policy_text;
mod problem_document;
mod refusal_problem;
mod reply;
mod response;
mod style;
mod target;
mod template;
mod upstream_limits;
mod usage_scanner;

pub use accept::{accepted_weights, prefers_html};
pub use body_fields::BodyFields;
pub use claims::Claims;
pub use client_address::{ForwardingHeader, NetworkError, TrustedProxies};
pub use cors::{AllowedReader, Cors, OriginError, expose_limits};
pub use denial_body::{DenialBodies, HtmlPage, failure_page};
pub use facts::HttpFacts;
pub use fixed_refusal::FixedRefusal;
pub use grpc::is_grpc;
pub use headers::ReplyHeaders;
pub use host::is_plain_host;
pub use json::{CostFinder, EventFinder, FieldFinder};
pub use path_refusal::path_refused;
pub use problem_document::{PROBLEM_JSON, ProblemDocument, REDUCED_CAPACITY, UNTYPED};
pub use reply::{Reply, ReplyContext};
pub use style::{Audience, Caller, HeaderStyle, IetfForm, ResetForm};
pub use target::{apply_path_policy, check_asterisk, path_of_target};
pub use template::{Template, TemplateError};
pub use usage_scanner::{UsageScanner, is_encoded};
