//! What a layer was told, and how it asks the limiter.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response};
use tidegate_core::rules::{FieldPath, Matched, Priority};
use tidegate_core::{Clock, Facts, Limiter, Micros, Outcome, Ruling, Spent, Store, Timestamp};
use tidegate_http::{
    Asked, BodyFields, Caller, HeaderStyle, HttpFacts, Reply, ReplyHeaders, TrustedProxies, is_encoded, is_grpc,
};

use crate::aside::Aside;
use crate::body::Holding;
use crate::cost::{ActualCost, Costs};
use crate::hold::Hold;
use crate::identify::Identify;
use crate::meter::{Meter, Settled};
use crate::peer;
use crate::unserved::Unserved;
use crate::upgrade::{self, UpgradeHold};
use crate::witness::Witness;

pub(crate) struct Settings<S, C> {
    pub(crate) limiter: Arc<Limiter<S, C>>,
    pub(crate) proxies: Arc<TrustedProxies>,
    pub(crate) identify: Option<Arc<dyn Identify>>,
    pub(crate) style: HeaderStyle,
    pub(crate) cost_header: Option<HeaderName>,
    /// Whether what was charged for good is given back if nothing was done for it.
    pub(crate) gives_back_unserved: bool,
    /// Whether somebody looks into bodies before this is asked.
    pub(crate) reads_bodies: bool,
    pub(crate) priority_header: Option<HeaderName>,
    pub(crate) witness: Option<Arc<dyn Witness>>,
    /// Whether anybody was told that requests come without an address.
    pub(crate) told: Arc<AtomicBool>,
}

impl<S, C> Clone for Settings<S, C> {
    fn clone(&self) -> Settings<S, C> {
        Settings {
            limiter: Arc::clone(&self.limiter),
            proxies: Arc::clone(&self.proxies),
            identify: self.identify.clone(),
            style: self.style,
            cost_header: self.cost_header.clone(),
            gives_back_unserved: self.gives_back_unserved,
            reads_bodies: self.reads_bodies,
            priority_header: self.priority_header.clone(),
            witness: self.witness.clone(),
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
    hold: Option<Arc<Hold<S, C>>>,
    /// How much it matters, and the header to say it in.
    priority: Option<(Priority, Option<HeaderName>)>,
    along: Along<S, C>,
}

/// What is needed when the service has answered.
struct Along<S, C> {
    spent: Option<Returnable<S, C>>,
    headers: ReplyHeaders,
    settled: Settled,
    cost_header: Option<HeaderName>,
}

/// What was charged for good, and where to give it back.
struct Returnable<S, C> {
    limiter: Arc<Limiter<S, C>>,
    spent: Spent,
}

/// A request that the service has, and what goes along with it.
pub(crate) struct Served<S: Store + 'static, C: Clock + 'static> {
    hold: Option<Arc<Hold<S, C>>>,
    along: Along<S, C>,
}

/// What is noted of the rules that govern a request.
#[derive(Default)]
struct Noted {
    spent: Option<Spent>,
    settled: Settled,
    reserve: Option<Micros>,
    priority: Option<Priority>,
}

impl<S: Store + 'static, C: Clock + 'static> Settings<S, C> {
    /// Decides a request by its head.
    pub(crate) async fn ask(&self, head: &Parts) -> Admission<S, C> {
        let facts = self.facts(head);
        let random = if self.style.jitter.is_zero() { 0 } else { fastrand::u64(..) };
        let asked = Asked { at: self.limiter.clock().now(), caller: Caller::of(&facts), random };
        let note = |matched: &Matched<'_, '_>, ruling: &Ruling| self.note(matched, ruling, asked.at);
        let asking = self.witness.as_ref().map_or(0, |witness| witness.asking());
        let (mut ruling, noted) = self.limiter.check_noting(&facts, note).await;
        if let Some(witness) = &self.witness {
            witness.decided(&facts, &ruling, asking);
        }
        let hold = Hold::of(&self.limiter, std::mem::take(&mut ruling.receipts), noted.reserve);
        match ruling.verdict.outcome {
            Outcome::Allow { delay } if ruling.is_allowed() => {
                let headers = Reply::new(&ruling, &self.style, asked).headers();
                let cost_header = hold.as_ref().and(self.cost_header.clone());
                let spent = noted.spent.map(|spent| Returnable { limiter: Arc::clone(&self.limiter), spent });
                let along = Along { spent, headers, settled: noted.settled, cost_header };
                let priority = noted.priority.or_else(|| self.priority_said(head));
                let priority = priority.map(|priority| (priority, self.priority_header.clone()));
                Admission::Granted(Granted { delay, hold, priority, along })
            }
            _ => Admission::Refused(self.refusal(head, &ruling, asked)),
        }
    }

    fn note(&self, matched: &Matched<'_, '_>, ruling: &Ruling, now: Timestamp) -> Noted {
        let mut noted = Noted { priority: matched.priority(), ..Noted::default() };
        if self.gives_back_unserved {
            noted.spent = Some(Spent::by(matched, ruling, now)).filter(|spent| !spent.is_empty());
        }
        if !ruling.receipts.is_empty() {
            noted.reserve = matched.shortest_reserve();
            noted.settled = matched.settled().map(|(limit, settle)| (limit.clone(), Arc::clone(settle))).collect();
        }
        noted
    }

    /// What the request says of itself, if anybody listens.
    fn priority_said(&self, head: &Parts) -> Option<Priority> {
        head.headers.get(self.priority_header.as_ref()?)?.to_str().ok()?.parse().ok()
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

    /// The same on the spot. `None` if the store is not in this process, and then nothing was asked of it.
    pub(crate) fn ask_now(&self, head: &Parts) -> Option<Admission<S, C>> {
        if !self.limiter.store().answers_at_once() {
            return None;
        }
        match pin!(self.ask(head)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(admission) => Some(admission),
            Poll::Pending => None,
        }
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
        if let Some(identify) = &self.identify {
            facts = identify.identify(head, facts);
        }
        if Facts::address(&facts).is_none() && !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "requests come without the address of their client, so rules that go by it take them for one; put a \
                 `Peer` into their extensions, or turn on the feature `axum` or `tonic`"
            );
        }
        facts
    }

    fn refusal(&self, head: &Parts, ruling: &Ruling, asked: Asked) -> Response<Bytes> {
        let reply = Reply::new(ruling, &self.style, asked);
        if !is_grpc(&head.headers) {
            return reply.response();
        }
        let mut response = Response::new(Bytes::new());
        *response.headers_mut() = reply.grpc_headers();
        response
    }
}

impl<S: Store + 'static, C: Clock + 'static> Granted<S, C> {
    /// The request leaves the queue and goes to the service.
    pub(crate) fn run<B>(self, request: &mut Request<B>) -> Served<S, C> {
        let Granted { hold, along, priority, .. } = self;
        let hold = hold.and_then(Hold::run);
        if let Some(hold) = &hold
            && upgrade::is_asked_for(request)
        {
            UpgradeHold::leave(request.extensions_mut(), Arc::clone(hold) as _);
        }
        if let Some((priority, header)) = priority {
            request.extensions_mut().insert(priority);
            if let Some(name) = header {
                request.headers_mut().insert(name, HeaderValue::from_static(priority.as_str()));
            }
        }
        Served { hold, along }
    }
}

impl<S: Store + 'static, C: Clock + 'static> Served<S, C> {
    /// Tells the client how it stands, and hands over what is held until the body ends.
    pub(crate) fn respond<B>(self, response: &mut Response<B>) -> Holding {
        let Along { spent, headers, settled, cost_header } = self.along;
        headers.insert_into(response.headers_mut());
        if response.extensions().get::<Unserved>().is_some() {
            if let Some(Returnable { limiter, spent }) = spent {
                give_back(limiter, spent);
            }
            if let Some(hold) = self.hold {
                hold.leave_unserved();
            }
            return Holding::default();
        }
        let Some(hold) = self.hold else { return Holding::default() };
        let mut costs = Costs::said_by(response, cost_header.as_ref());
        let mut meter = None;
        if !settled.is_empty() {
            let metered = ActualCost::new();
            meter = Some(Box::new(Meter::new(settled, |limit| hold.taken(limit), response, metered.clone())));
            costs.metered = Some(metered);
        }
        hold.respond(costs);
        Holding { meter, held: Some(hold) }
    }
}

fn give_back<S: Store + 'static, C: Clock + 'static>(limiter: Arc<Limiter<S, C>>, spent: Spent) {
    let giver = Arc::clone(&limiter);
    let giving = async move {
        if let Err(error) = giver.refund(spent).await {
            tracing::warn!(%error, "what an unserved request was charged is not given back");
        }
    };
    Aside::here().finish(limiter.store(), giving);
}
