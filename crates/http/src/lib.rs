//! What HTTP means to Tidegate. Requests become facts, and verdicts become responses.
//!
//! ```
//! use http::{HeaderMap, Method, StatusCode, Uri};
//! use tidegate_rules::{Limiter, RuleSet};
//! use tidegate_core::{MemoryStore, Timestamp};
//! use tidegate_http::{Asked, Caller, HeaderStyle, HttpFacts, Reply, TrustedProxies};
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
//! let asked = Asked { at: Timestamp::from_secs(1_767_225_600), caller: Caller::Unauthenticated, random: 0 };
//! let response = Reply::new(&ruling, &HeaderStyle::default(), asked).response();
//! assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
//! assert_eq!(response.headers()["retry-after"], "60");
//! # Ok::<(), String>(())
//! ```
//!
//! Nothing here reads a clock, a random source or a socket.

mod accept;
mod beside;
mod body_fields;
mod claims;
mod client;
mod cors;
mod denial_body;
mod facts;
mod forwarded;
mod grpc;
mod headers;
mod host;
mod json;
mod passing;
mod problem;
mod reply;
mod target;
mod template;
mod written;

pub use accept::{accepted_weights, prefers_html};
pub use body_fields::BodyFields;
pub use claims::Claims;
pub use client::{ForwardingHeader, NetworkError, TrustedProxies};
pub use cors::{AllowedReader, Cors, OriginError, expose_limits};
pub use denial_body::{DenialBodies, HtmlPage, failure_page};
pub use facts::HttpFacts;
pub use grpc::is_grpc;
pub use headers::{Audience, HeaderStyle, IetfForm, ReplyHeaders, ResetForm};
pub use host::{is_plain_host, without_port};
pub use json::{CostFinder, EventFinder, FieldFinder};
pub use passing::{PassingBody, is_encoded};
pub use reply::{Asked, Caller, Reply};
pub use target::{apply_path_policy, path_of_target, path_refused};
pub use template::{Template, TemplateError};
