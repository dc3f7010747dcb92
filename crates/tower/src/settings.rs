//! Settings of a layer, and the facts that it reads from a request's head.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Response};
use tidegate_core::{Clock, Store};
use tidegate_http::{
    BodyFields, DenialBodies, HeaderStyle, HttpFacts, TrustedProxies, apply_path_policy, check_asterisk, is_encoded,
    path_refused,
};
use tidegate_rules::{Facts, FieldPath, Limiter, Mode, PathPolicy, Priority};

use crate::identity::Identify;
use crate::observer::Observer;
use crate::request_body::UnmeasuredBody;
use crate::{missing_address, peer};

pub(crate) struct Settings<S, C> {
    pub(crate) limiter: Arc<Limiter<S, C>>,
    pub(crate) proxies: Arc<TrustedProxies>,
    pub(crate) identify: Option<Arc<dyn Identify>>,
    pub(crate) style: HeaderStyle,
    pub(crate) bodies: Arc<DenialBodies>,
    pub(crate) exempt: Option<Arc<Exemption>>,
    pub(crate) paths: PathPolicy,
    pub(crate) cost_header: Option<HeaderName>,
    /// Refund charges that are not held, such as those of a fixed window, if the response is [`Unserved`](crate::Unserved).
    pub(crate) refunds_unserved: bool,
    /// A [`BodyCost`](crate::BodyCost) service reads request bodies before the rules are checked.
    pub(crate) reads_bodies: bool,
    pub(crate) priority_header: Option<HeaderName>,
    /// Requests that rules with `shed` let pass.
    pub(crate) never_shed: Option<Arc<Exemption>>,
    /// Store a [`ClientHash`](crate::ClientHash) in the extensions of requests.
    pub(crate) hashes_clients: bool,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Requests without a client address share one limit.
    pub(crate) shares_missing_address: bool,
    /// Whether a missing client address has been logged already.
    pub(crate) has_logged_missing_address: Arc<AtomicBool>,
}

/// A predicate for requests that pass without a check, or without one of the checks.
pub(crate) type Exemption = dyn Fn(&Parts) -> bool + Send + Sync;

impl<S, C> Clone for Settings<S, C> {
    fn clone(&self) -> Settings<S, C> {
        Settings {
            limiter: Arc::clone(&self.limiter),
            proxies: Arc::clone(&self.proxies),
            identify: self.identify.clone(),
            style: self.style,
            bodies: Arc::clone(&self.bodies),
            exempt: self.exempt.clone(),
            paths: self.paths,
            cost_header: self.cost_header.clone(),
            refunds_unserved: self.refunds_unserved,
            reads_bodies: self.reads_bodies,
            priority_header: self.priority_header.clone(),
            never_shed: self.never_shed.clone(),
            hashes_clients: self.hashes_clients,
            observer: self.observer.clone(),
            shares_missing_address: self.shares_missing_address,
            has_logged_missing_address: Arc::clone(&self.has_logged_missing_address),
        }
    }
}

impl<S, C> Settings<S, C> {
    /// Applies the path policy to the path.
    ///
    /// # Errors
    /// The response to send, if the policy refuses the path.
    pub(crate) fn apply_path_policy(&self, head: &mut Parts) -> Result<(), Box<Response<Bytes>>> {
        if self.paths == PathPolicy::AsIs {
            return Ok(());
        }
        let checked = check_asterisk(head.method.as_str(), head.uri.path());
        let applied = checked.and_then(|()| apply_path_policy(self.paths, &mut head.uri));
        applied.map_err(|why| Box::new(path_refused(why, &head.headers)))
    }

    #[inline]
    pub(crate) fn is_exempt(&self, head: &Parts) -> bool {
        self.exempt.as_ref().is_some_and(|exempt| exempt(head))
    }

    pub(crate) fn facts<'a>(&self, head: &'a Parts) -> HttpFacts<'a> {
        let mut facts = HttpFacts::new(&head.method, &head.uri, &head.headers);
        if let Some(peer) = peer::of(&head.extensions) {
            facts = facts.address(self.proxies.client(peer, &head.headers));
        }
        if self.reads_bodies
            && let Some(fields) = head.extensions.get::<BodyFields>()
        {
            facts = facts.body(fields);
        }
        if head.extensions.get::<UnmeasuredBody>().is_some() {
            facts = facts.with_unmeasured_body();
        }
        if let Some(priority) = self.requested_priority(head) {
            facts = facts.priority(priority);
        }
        if self.never_shed.as_ref().is_some_and(|never_shed| never_shed(head)) {
            facts = facts.never_shed();
        }
        if let Some(identify) = &self.identify {
            facts = identify.identify(head, facts);
        }
        facts
    }

    /// The priority in the request's own header, if the layer has one configured.
    pub(crate) fn requested_priority(&self, head: &Parts) -> Option<Priority> {
        let values = head.headers.get_all(self.priority_header.as_ref()?).iter();
        // The lowest of several values, so that repeating the header gains nothing.
        values.filter_map(|value| value.to_str().ok()?.parse().ok()).min()
    }
}

impl<S: Store + 'static, C: Clock + 'static> Settings<S, C> {
    /// The body fields that rules charge this request by. Empty if the request is exempt, or if the body is compressed and
    /// cannot be read.
    pub(crate) fn body_fields(&self, head: &Parts) -> Vec<FieldPath> {
        self.limiter.with_rules(|generation| {
            if !generation.rules.reads_bodies() || is_encoded(&head.headers) || self.is_exempt(head) {
                return Vec::new();
            }
            let facts = self.facts(head);
            let mut fields: Vec<FieldPath> = generation.rules.matching(&facts).fields().cloned().collect();
            fields.sort();
            fields.dedup();
            fields
        })
    }

    /// Whether a rule needs the client's address and the request has none. Without this check all clients would share one
    /// limit.
    #[inline]
    pub(crate) fn lacks_address(&self, facts: &HttpFacts<'_>) -> bool {
        Facts::address(facts).is_none() && self.needs_address()
    }

    #[cold]
    #[inline(never)]
    fn needs_address(&self) -> bool {
        let is_needed = self.limiter.with_rules(|generation| {
            generation.rules.rules().iter().any(|rule| rule.mode() != Mode::Off && rule.needs_address())
        });
        if !is_needed {
            return false;
        }
        if !self.has_logged_missing_address.swap(true, Ordering::Relaxed) {
            if self.shares_missing_address {
                tracing::warn!("requests have no client address: rules keyed by address treat them as one client");
            } else {
                tracing::error!("{}", missing_address::DETAIL);
            }
        }
        !self.shares_missing_address
    }
}
