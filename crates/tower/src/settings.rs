//! What a layer was told, and how it asks the limiter.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Response};
use tidegate_core::{Clock, DecidedBy, Facts, Limiter, Micros, Outcome, Ruling, Store};
use tidegate_http::{Asked, Caller, HeaderStyle, HttpFacts, Reply, ReplyHeaders, TrustedProxies, is_grpc};

use crate::cost::ActualCost;
use crate::hold::Hold;
use crate::identify::Identify;
use crate::outcome::{Lasting, NotServed};
use crate::peer;
use crate::witness::Witness;

pub(crate) struct Settings<S, C> {
    pub(crate) limiter: Arc<Limiter<S, C>>,
    pub(crate) proxies: Arc<TrustedProxies>,
    pub(crate) identify: Option<Arc<dyn Identify>>,
    pub(crate) style: HeaderStyle,
    pub(crate) cost_header: Option<HeaderName>,
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
    pub(crate) hold: Option<Hold<S, C>>,
    headers: ReplyHeaders,
    cost_header: Option<HeaderName>,
    /// The rules by which it was charged, if the store did it.
    generation: Option<u64>,
    settings: Arc<Settings<S, C>>,
}

impl<S: Store + 'static, C: Clock + 'static> Settings<S, C> {
    /// Decides a request by its head.
    pub(crate) async fn ask(self: &Arc<Self>, head: &Parts) -> Admission<S, C> {
        let facts = self.facts(head);
        let random = if self.style.jitter.is_zero() { 0 } else { fastrand::u64(..) };
        let asked = Asked { at: self.limiter.clock().now(), caller: Caller::of(&facts), random };
        let asking = self.witness.as_ref().map_or(0, |witness| witness.asking());
        let mut ruling = self.limiter.check(&facts).await;
        if let Some(witness) = &self.witness {
            witness.decided(&facts, &ruling, asking);
        }
        let hold = Hold::of(&self.limiter, std::mem::take(&mut ruling.receipts));
        match ruling.verdict.outcome {
            Outcome::Allow { delay } if ruling.is_allowed() => {
                let headers = Reply::new(&ruling, &self.style, asked).headers();
                let cost_header = hold.as_ref().and(self.cost_header.clone());
                let is_of_store = ruling.ruled.iter().all(|ruled| ruled.by == DecidedBy::Store);
                let generation = is_of_store.then_some(ruling.generation);
                Admission::Granted(Granted {
                    delay,
                    hold,
                    headers,
                    cost_header,
                    generation,
                    settings: Arc::clone(self),
                })
            }
            _ => Admission::Refused(self.refusal(head, &ruling, asked)),
        }
    }

    /// The same on the spot. `None` if the store is not in this process, and then nothing was asked of it.
    pub(crate) fn ask_now(self: &Arc<Self>, head: &Parts) -> Option<Admission<S, C>> {
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

    /// Gives back what the request with this head was charged under the rules of `generation`.
    fn give_back(self: &Arc<Self>, head: Arc<Parts>, generation: u64) {
        let settings = Arc::clone(self);
        let given = async move {
            let facts = settings.facts(&head);
            if let Err(error) = settings.limiter.give_back(&facts, generation).await {
                tracing::warn!(%error, "what a request was charged that nobody served is not given back");
            }
        };
        if self.limiter.store().answers_at_once() {
            let _ = pin!(given).poll(&mut Context::from_waker(Waker::noop()));
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(given);
        }
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
    pub(crate) fn run(&mut self) {
        self.hold = self.hold.take().and_then(Hold::run);
    }

    /// Tells the client how it stands, and hands over what is held until the body ends.
    pub(crate) fn respond<B>(self, response: &mut Response<B>) -> Option<Hold<S, C>> {
        if let Some(NotServed(head)) = response.extensions_mut().remove() {
            // Dropping it here gives back what it holds, as if there were no response.
            drop(self.hold);
            if let Some(generation) = self.generation {
                self.settings.give_back(head, generation);
            }
            return None;
        }
        self.headers.insert_into(response.headers_mut());
        let mut hold = self.hold?;
        hold.respond(ActualCost::said_by(response, self.cost_header.as_ref()));
        if let Some(lasting) = response.extensions().get::<Lasting>() {
            lasting.keep(hold);
            return None;
        }
        Some(hold)
    }
}
