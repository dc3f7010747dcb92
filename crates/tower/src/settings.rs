//! What a layer was told, and how it asks the limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response};
use tidegate_core::{Clock, Micros, Outcome, RuleId, Store};
use tidegate_http::{
    Asked, BodyFields, Caller, DenialBodies, HeaderStyle, HttpFacts, Reply, ReplyHeaders, TrustedProxies,
    apply_path_policy, is_encoded, is_grpc, path_refused,
};
use tidegate_rules::{
    Facts, FieldPath, Limiter, Matched, Mode, Partitions, PathPolicy, Priority, Ruling, SettleSource, Spent,
};

use crate::aside::Aside;
use crate::body::Holding;
use crate::cost::{ActualCost, Costs};
use crate::hold::{Hold, Receipts, Watched};
use crate::identify::Identify;
use crate::meter::{Meter, Settled};
use crate::reading::UnmeasuredBody;
use crate::unserved::{Arrival, Unanswered, Unserved};
use crate::upgrade::{self, UpgradeHold};
use crate::witness::{Note, Witness};
use crate::{missing_address, peer};

pub(crate) struct Settings<S, C> {
    pub(crate) limiter: Arc<Limiter<S, C>>,
    pub(crate) proxies: Arc<TrustedProxies>,
    pub(crate) identify: Option<Arc<dyn Identify>>,
    pub(crate) style: HeaderStyle,
    pub(crate) bodies: Arc<DenialBodies>,
    /// The requests that are exempt from limits.
    pub(crate) exempt: Option<Arc<Exempt>>,
    pub(crate) paths: PathPolicy,
    pub(crate) cost_header: Option<HeaderName>,
    /// Whether what was charged for good is given back if nothing was done for it.
    pub(crate) gives_back_unserved: bool,
    /// Whether somebody looks into bodies before this is asked.
    pub(crate) reads_bodies: bool,
    pub(crate) priority_header: Option<HeaderName>,
    pub(crate) witness: Option<Arc<dyn Witness>>,
    /// Whether requests without the address of their client count as one client's.
    pub(crate) shares_missing_address: bool,
    /// Whether anybody was told that requests come without an address.
    pub(crate) told: Arc<AtomicBool>,
}

/// Whether the limiter is not asked about a request.
pub(crate) type Exempt = dyn Fn(&Parts) -> bool + Send + Sync;

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
            gives_back_unserved: self.gives_back_unserved,
            reads_bodies: self.reads_bodies,
            priority_header: self.priority_header.clone(),
            witness: self.witness.clone(),
            shares_missing_address: self.shares_missing_address,
            told: Arc::clone(&self.told),
        }
    }
}

/// What becomes of a request.
pub(crate) enum Admission<S: Store + 'static, C: Clock + 'static> {
    /// It goes to the service.
    Granted(Granted<S, C>),
    /// It is answered with this.
    Refused(Response<Bytes>),
}

/// What goes along with a request that was let in.
pub(crate) struct Granted<S: Store + 'static, C: Clock + 'static> {
    pub(crate) delay: Micros,
    held: Option<Box<Held<S, C>>>,
    /// How much it matters, and the header to say it in.
    priority: Option<(Priority, Option<HeaderName>)>,
    along: Along<S, C>,
}

/// What is held while the request is under way, and what it is settled by. In a box, because most requests hold nothing.
struct Held<S: Store + 'static, C: Clock + 'static> {
    hold: Arc<Hold<S, C>>,
    settled: Settled,
    cost_header: Option<HeaderName>,
    /// Who is told what is not settled.
    witness: Option<Arc<dyn Witness>>,
}

/// What is needed when the service has answered.
struct Along<S, C> {
    spent: Option<Returnable<S, C>>,
    headers: ReplyHeaders,
}

/// What was charged for good, and where to give it back.
struct Returnable<S, C> {
    settings: Arc<Settings<S, C>>,
    spent: Spent,
}

/// A request that the service has, and what goes along with it.
pub(crate) struct Served<S: Store + 'static, C: Clock + 'static> {
    held: Option<Box<Held<S, C>>>,
    along: Along<S, C>,
}

impl<S, C> Settings<S, C> {
    /// Makes the path of a request what rules and the service are to see; the response, if it is refused.
    pub(crate) fn settle_path(&self, head: &mut Parts) -> Result<(), Box<Response<Bytes>>> {
        if self.paths == PathPolicy::AsIs {
            return Ok(());
        }
        apply_path_policy(self.paths, &mut head.uri).map_err(|why| Box::new(path_refused(why, &head.headers)))
    }
}

impl<S: Store + 'static, C: Clock + 'static> Settings<S, C> {
    /// Decides a request by its head.
    pub(crate) async fn ask(self: &Arc<Self>, head: &Parts) -> Admission<S, C> {
        if self.is_exempt(head) {
            return Admission::Granted(Granted::free());
        }
        let facts = self.facts(head);
        if self.lacks_address(&facts) {
            return Admission::Refused(missing_address::refused(&head.headers));
        }
        let asked = self.asked(&facts);
        let note = self.note();
        let partitions = self.partitions(&facts);
        let decided = |matched: &Matched<'_, '_>, ruling: &mut Ruling<'_>| {
            self.tell(head, &facts, ruling, note);
            self.admit(head, matched, ruling, asked, partitions.as_ref())
        };
        self.limiter.check_then(&facts, decided).await
    }

    /// The same on the spot. `None` if the store is not in this process, and then nothing was asked of it.
    // Not where it is called: the service would be called from so far down the stack that nothing there is at hand.
    #[inline(never)]
    pub(crate) fn ask_at_once(self: &Arc<Self>, head: &Parts) -> Option<Admission<S, C>> {
        if !self.limiter.store().answers_at_once() {
            return None;
        }
        if self.is_exempt(head) {
            return Some(Admission::Granted(Granted::free()));
        }
        let facts = self.facts(head);
        if self.lacks_address(&facts) {
            return Some(Admission::Refused(missing_address::refused(&head.headers)));
        }
        let asked = self.asked(&facts);
        let note = self.note();
        let partitions = self.partitions(&facts);
        self.limiter.check_at_once(&facts, |matched, ruling| {
            self.tell(head, &facts, ruling, note);
            self.admit(head, matched, ruling, asked, partitions.as_ref())
        })
    }

    #[inline]
    fn is_exempt(&self, head: &Parts) -> bool {
        self.exempt.as_ref().is_some_and(|exempt| exempt(head))
    }

    fn asked(&self, facts: &HttpFacts<'_>) -> Asked {
        let random = if self.style.jitter.is_zero() { 0 } else { fastrand::u64(..) };
        Asked { at: self.limiter.clock().now(), caller: Caller::of(facts), random }
    }

    /// Names for the keys of the request, if clients are told them.
    fn partitions(&self, facts: &HttpFacts<'_>) -> Option<Partitions> {
        let partitions = || self.limiter.with_rules(|generation| generation.rules.partitions(facts));
        self.style.partition_key.then(partitions)
    }

    fn note(&self) -> Note {
        self.witness.as_ref().map_or_else(Note::default, |witness| witness.asking())
    }

    fn tell(&self, head: &Parts, facts: &HttpFacts<'_>, ruling: &Ruling<'_>, note: Note) {
        if let Some(witness) = &self.witness {
            witness.decided(head, facts, ruling, note);
        }
    }

    fn admit(
        self: &Arc<Self>,
        head: &Parts,
        matched: &Matched<'_, '_>,
        ruling: &mut Ruling<'_>,
        asked: Asked,
        partitions: Option<&Partitions>,
    ) -> Admission<S, C> {
        let held = self.hold(matched, std::mem::take(&mut ruling.receipts));
        let delay = match ruling.verdict.outcome {
            Outcome::Allow { delay } if ruling.is_allowed() => delay,
            _ => return Admission::Refused(self.refusal(head, ruling, asked, partitions)),
        };
        let priority = matched.priority().or_else(|| self.priority_said(head));
        let priority = priority.map(|priority| (priority, self.priority_header.clone()));
        let headers = Reply::new(ruling, &self.style, asked).partitions(partitions).headers();
        let mut along = Along { spent: None, headers };
        if self.gives_back_unserved {
            let spent = Spent::by(matched, ruling, asked.at);
            along.spent = (!spent.is_empty()).then(|| Returnable { settings: Arc::clone(self), spent });
        }
        Admission::Granted(Granted { delay, held, priority, along })
    }

    fn hold(&self, matched: &Matched<'_, '_>, receipts: Receipts) -> Option<Box<Held<S, C>>> {
        (!receipts.is_empty()).then(|| self.hold_all(matched, receipts))
    }

    #[inline(never)]
    fn hold_all(&self, matched: &Matched<'_, '_>, receipts: Receipts) -> Box<Held<S, C>> {
        let settled: Settled = matched.settled().map(|(limit, settle)| (limit.clone(), Arc::clone(settle))).collect();
        let witness = self.witness.as_ref().filter(|_| !settled.is_empty());
        let watched = witness.map(|witness| Watched {
            witness: Arc::clone(witness),
            limits: settled.iter().map(|(limit, _)| limit.clone()).collect(),
        });
        let witness = witness.cloned();
        let hold = Hold::of(&self.limiter, receipts, matched.shortest_reserve(), watched);
        Box::new(Held { hold, settled, cost_header: self.cost_header.clone(), witness })
    }

    /// What the request says of itself, if anybody listens.
    fn priority_said(&self, head: &Parts) -> Option<Priority> {
        let said = head.headers.get_all(self.priority_header.as_ref()?).iter();
        // Of several, the least: nobody gains by saying it twice.
        said.filter_map(|value| value.to_str().ok()?.parse().ok()).min()
    }

    /// What rules look for in the body of this request; nothing if nobody can look into it.
    pub(crate) fn fields_wanted(&self, head: &Parts) -> Vec<FieldPath> {
        self.limiter.with_rules(|generation| {
            if !generation.rules.reads_bodies() || is_encoded(&head.headers) {
                return Vec::new();
            }
            let facts = self.facts(head);
            let mut wanted: Vec<FieldPath> = generation.rules.matching(&facts).fields().cloned().collect();
            wanted.sort();
            wanted.dedup();
            wanted
        })
    }

    fn facts<'a>(&self, head: &'a Parts) -> HttpFacts<'a> {
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
        if let Some(identify) = &self.identify {
            facts = identify.identify(head, facts);
        }
        facts
    }

    /// Whether rules go by the client's address, and nobody knows it. A guess would hold all clients to one limit.
    #[inline]
    fn lacks_address(&self, facts: &HttpFacts<'_>) -> bool {
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
        if !self.told.swap(true, Ordering::Relaxed) {
            if self.shares_missing_address {
                tracing::warn!(
                    "requests come without the address of their client: rules that go by it take them for one"
                );
            } else {
                tracing::error!("{}", missing_address::DETAIL);
            }
        }
        !self.shares_missing_address
    }

    #[inline(never)]
    fn refusal(
        &self,
        head: &Parts,
        ruling: &Ruling<'_>,
        asked: Asked,
        partitions: Option<&Partitions>,
    ) -> Response<Bytes> {
        let reply = Reply::new(ruling, &self.style, asked).partitions(partitions);
        if !is_grpc(&head.headers) {
            return reply.response_as(&self.bodies, &head.headers);
        }
        let mut response = Response::new(Bytes::new());
        *response.headers_mut() = reply.grpc_headers();
        response
    }
}

impl<S: Store + 'static, C: Clock + 'static> Granted<S, C> {
    /// For a request about which nobody was asked.
    #[cold]
    fn free() -> Granted<S, C> {
        let along = Along { spent: None, headers: ReplyHeaders::default() };
        Granted { delay: Micros::ZERO, held: None, priority: None, along }
    }

    /// The request leaves the queue and goes to the service.
    pub(crate) fn run<B>(self, request: &mut Request<B>) -> Served<S, C> {
        let Granted { held, along, priority, .. } = self;
        let held = held.and_then(Held::run);
        if let Some(held) = &held
            && upgrade::is_asked_for(request)
        {
            UpgradeHold::leave(request.extensions_mut(), Arc::clone(&held.hold) as _);
        }
        if held.as_ref().is_some_and(|held| held.settles_by_body()) {
            // What is compressed cannot be read as it passes. Without the header anything might come.
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if let Some((priority, header)) = priority {
            request.extensions_mut().insert(priority);
            if let Some(name) = header {
                request.headers_mut().insert(name, HeaderValue::from_static(priority.as_str()));
            }
        }
        Served { held, along }
    }
}

impl<S: Store + 'static, C: Clock + 'static> Held<S, C> {
    /// As [`Hold::run`].
    fn run(mut self: Box<Self>) -> Option<Box<Self>> {
        self.hold = self.hold.run()?;
        Some(self)
    }

    /// Whether the body of the response says what the request cost.
    fn settles_by_body(&self) -> bool {
        let terms = self.settled.iter().flat_map(|(_, settle)| settle.terms());
        terms.into_iter().any(|term| matches!(term.from, SettleSource::Body(_)))
    }
}

impl<S: Store + 'static, C: Clock + 'static> Served<S, C> {
    /// Somebody has it or may have it, so what it holds is not free any more; what it was charged for good it has spent if they
    /// do.
    pub(crate) fn arrive(&mut self, arrival: Arrival) {
        if arrival == Arrival::Certain {
            self.along.spent = None;
        }
        if let Some(held) = &self.held {
            held.hold.arrive();
        }
    }

    /// Tells the client how it stands, and hands over what is held until the body ends.
    pub(crate) fn respond<B>(self, response: &mut Response<B>) -> Holding {
        let Along { spent, headers } = self.along;
        let is_unserved = response.extensions().get::<Unserved>().is_some();
        // After a refund the numbers are no longer true.
        if !is_unserved || (spent.is_none() && self.held.is_none()) {
            headers.insert_into(response.headers_mut());
        }
        if is_unserved {
            if let Some(Returnable { settings, spent }) = spent {
                if let Some(witness) = &settings.witness {
                    spent.costs().for_each(|(limit, cost)| witness.refunded(limit, cost));
                }
                give_back(Arc::clone(&settings.limiter), spent);
            }
            if let Some(held) = self.held {
                held.hold.leave_unserved();
            }
            return Holding::default();
        }
        self.held.map_or_else(Holding::default, |held| held.respond(response))
    }
}

impl<S: Store + 'static, C: Clock + 'static> Held<S, C> {
    /// The same for what is held.
    #[inline(never)]
    fn respond<B>(self, response: &Response<B>) -> Holding {
        let Held { hold, settled, cost_header, witness } = self;
        let mut costs = Costs::said_by(response, cost_header.as_ref());
        let mut meter = None;
        if response.extensions().get::<Unanswered>().is_some() {
            // A response on somebody's behalf does not say what they did.
            hold.tell_unanswered();
        } else if !settled.is_empty() {
            let metered = ActualCost::new();
            let taken = |limit: &RuleId| hold.taken(limit);
            meter = Some(Box::new(Meter::new(settled, taken, response, metered.clone(), witness)));
            costs.metered = Some(metered);
        }
        hold.respond(costs);
        Holding { meter, held: Some(hold) }
    }
}

#[cold]
#[inline(never)]
fn give_back<S: Store + 'static, C: Clock + 'static>(limiter: Arc<Limiter<S, C>>, spent: Spent) {
    let giver = Arc::clone(&limiter);
    let giving = async move {
        if let Err(error) = giver.refund(spent).await {
            tracing::warn!(%error, "what an unserved request was charged is not given back");
        }
    };
    Aside::here().finish(limiter.store(), giving);
}
