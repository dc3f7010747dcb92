//! An admitted request from its permit to its response: holds, settlements and refunds.

use std::sync::Arc;

use http::header::ACCEPT_ENCODING;
use http::{HeaderName, HeaderValue, Request, Response};
use tidegate_core::{Clock, Micros, RuleId, Store};
use tidegate_http::ReplyHeaders;
use tidegate_rules::{Limiter, Priority, Refundable, SettleSource};

use crate::body::BodyGuard;
use crate::cleanup::Cleanup;
use crate::client_hash::ClientHash;
use crate::cost::{ActualCost, Costs};
use crate::hold::ReceiptHold;
use crate::meter::{Settlements, UsageMeter};
use crate::observer::Observer;
use crate::rate_outcome::RateOutcome;
use crate::response_markers::{Delivery, Shed, Unanswered, Unserved};
use crate::settings::Settings;
use crate::upgrade::{self, UpgradeHold};

/// Permission for a request to reach the service.
pub(crate) struct RequestPermit<S: Store + 'static, C: Clock + 'static> {
    /// The delay by a shaper.
    pub(crate) delay: Micros,
    pub(crate) reservation: Option<Box<RequestReservation<S, C>>>,
    /// The request's priority, and the header that forwards it.
    pub(crate) priority: Option<(Priority, Option<HeaderName>)>,
    /// A hash of the client, if the layer stores one.
    pub(crate) client: Option<ClientHash>,
    /// The outcome, for adaptive rates. Boxed, because most rates are not adaptive.
    pub(crate) outcome: Option<Box<RateOutcome<S, C>>>,
    pub(crate) response: ResponseContext<S, C>,
}

/// A request that the service is working on.
pub(crate) struct AdmittedRequest<S: Store + 'static, C: Clock + 'static> {
    reservation: Option<Box<RequestReservation<S, C>>>,
    outcome: Option<Box<RateOutcome<S, C>>>,
    response: ResponseContext<S, C>,
}

/// Slots and reserved costs of a request, and the locations of the actual cost in its response. Boxed, because most
/// requests hold nothing.
pub(crate) struct RequestReservation<S: Store + 'static, C: Clock + 'static> {
    pub(crate) hold: Arc<ReceiptHold<S, C>>,
    pub(crate) settlements: Settlements,
    pub(crate) cost_header: Option<HeaderName>,
    /// Observer of costs that stay unsettled.
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

/// The part of a decision that is needed for the response.
pub(crate) struct ResponseContext<S, C> {
    pub(crate) refund: Option<PendingRefund<S, C>>,
    pub(crate) headers: ReplyHeaders,
}

/// Charges to refund if the request turns out unserved.
pub(crate) struct PendingRefund<S, C> {
    pub(crate) settings: Arc<Settings<S, C>>,
    pub(crate) charges: Refundable,
}

impl<S: Store + 'static, C: Clock + 'static> RequestPermit<S, C> {
    /// A permit for a request that was not checked.
    #[cold]
    pub(crate) fn exempt() -> RequestPermit<S, C> {
        let response = ResponseContext { refund: None, headers: ReplyHeaders::default() };
        RequestPermit { delay: Micros::ZERO, reservation: None, priority: None, client: None, outcome: None, response }
    }

    /// Moves the request from the queue to the service.
    pub(crate) fn start<B>(self, request: &mut Request<B>) -> AdmittedRequest<S, C> {
        let RequestPermit { reservation, response, priority, client, mut outcome, .. } = self;
        let reservation = reservation.and_then(RequestReservation::start);
        if let Some(reservation) = &reservation
            && upgrade::is_requested(request)
        {
            UpgradeHold::insert(request.extensions_mut(), Arc::clone(&reservation.hold) as _);
        }
        if reservation.as_ref().is_some_and(|reservation| reservation.settles_by_body()) {
            // A compressed body cannot be scanned, and without the header the service may choose any encoding.
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if let Some((priority, header)) = priority {
            request.extensions_mut().insert(priority);
            if let Some(name) = header {
                request.headers_mut().insert(name, HeaderValue::from_static(priority.as_str()));
            }
        }
        if let Some(client) = client {
            request.extensions_mut().insert(client);
        }
        if let Some(outcome) = &mut outcome {
            outcome.begin();
        }
        AdmittedRequest { reservation, outcome, response }
    }
}

impl<S: Store + 'static, C: Clock + 'static> AdmittedRequest<S, C> {
    /// Records that the request may have reached, or has reached, the server behind the service. Reserved costs are then no
    /// longer released if the client goes away. A certain delivery also drops the pending refund.
    pub(crate) fn arrive(&mut self, delivery: Delivery) {
        if delivery == Delivery::Certain {
            self.response.refund = None;
        }
        if let Some(reservation) = &self.reservation {
            reservation.hold.arrive();
        }
    }

    /// Records that the service failed without a response.
    pub(crate) fn fail(self) {
        if let Some(outcome) = self.outcome {
            outcome.fail();
        }
    }

    /// Adds the rate-limit headers to the response, and returns what its body must hold until it ends.
    pub(crate) fn respond<B>(self, response: &mut Response<B>) -> BodyGuard {
        let ResponseContext { refund, headers } = self.response;
        let is_unserved = response.extensions().get::<Unserved>().is_some();
        if let Some(outcome) = self.outcome.filter(|_| response.extensions().get::<Shed>().is_none()) {
            outcome.answer(response.status(), response.headers());
        }
        // A refund makes the numbers in the headers wrong, so they are omitted.
        if !is_unserved || (refund.is_none() && self.reservation.is_none()) {
            headers.insert_into(response.headers_mut());
        }
        if is_unserved {
            if let Some(PendingRefund { settings, charges }) = refund {
                if let Some(observer) = &settings.observer {
                    charges.costs().for_each(|(limit, cost)| observer.refunded(limit, cost));
                }
                refund_charges(Arc::clone(&settings.limiter), charges);
            }
            if let Some(reservation) = self.reservation {
                reservation.hold.leave_unserved();
            }
            return BodyGuard::default();
        }
        self.reservation.map_or_else(BodyGuard::default, |reservation| reservation.respond(response))
    }
}

impl<S: Store + 'static, C: Clock + 'static> RequestReservation<S, C> {
    /// Equivalent to [`ReceiptHold::start`].
    fn start(mut self: Box<Self>) -> Option<Box<Self>> {
        self.hold = self.hold.start()?;
        Some(self)
    }

    /// Whether the actual cost is read from the response's body.
    fn settles_by_body(&self) -> bool {
        let terms = self.settlements.iter().flat_map(|(_, settle)| settle.terms());
        terms.into_iter().any(|term| matches!(term.from, SettleSource::Body(_)))
    }

    #[inline(never)]
    fn respond<B>(self, response: &Response<B>) -> BodyGuard {
        let RequestReservation { hold, settlements, cost_header, observer } = self;
        let mut costs = Costs::of_response(response, cost_header.as_ref());
        let mut meter = None;
        if response.extensions().get::<Unanswered>().is_some() {
            // The response is a proxy's own, so it does not state the upstream's cost.
            hold.report_unanswered();
        } else if !settlements.is_empty() {
            let metered = ActualCost::new();
            let taken = |limit: &RuleId| hold.taken(limit);
            meter = Some(Box::new(UsageMeter::new(settlements, taken, response, metered.clone(), observer)));
            costs.metered = Some(metered);
        }
        hold.respond(costs);
        BodyGuard { meter, hold: Some(hold) }
    }
}

#[cold]
#[inline(never)]
fn refund_charges<S: Store + 'static, C: Clock + 'static>(limiter: Arc<Limiter<S, C>>, charges: Refundable) {
    let refunder = Arc::clone(&limiter);
    let refund = async move {
        if let Err(error) = refunder.refund(charges).await {
            tracing::warn!(%error, "the charges of an unserved request were not refunded");
        }
    };
    Cleanup::on_current_runtime().run(limiter.store(), refund);
}
