//! The service of a connection: from a received request to the response for its client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;
use pin_project_lite::pin_project;
use tidegate_core::SystemClock;
use tidegate_http::{AllowedReader, expose_limits};
use tidegate_tower::{BodyCost, BodyCostFuture, ResponseBody};

use super::client_body::{ClientBody, ObservedBody};
use super::downstream::Downstream;
use super::failure::{ClientGone, Failure, FailureForm};
use super::forward::{Forward, failure_response};
use super::forwarder::Forwarder;
use super::observed_request::ObservedRequest;
use super::proxy_identity::{CertificateUser, TokenVerifier};
use super::response_body::ForwardBody;
use super::unread_responses::UnreadResponses;
use crate::identity::has_several_credentials;
use crate::listen::InboundBody;
use crate::store::AnyStore;

/// The middleware around [`Forward`].
pub(super) type RateLimited = BodyCost<Forward, AnyStore>;

/// Passes the requests of one connection to the middleware.
pub(super) struct GatewayService {
    pub(super) limited: RateLimited,
    pub(super) downstream: Arc<Downstream>,
    /// Responses that an HTTP/2 client may leave unread.
    pub(super) responses: Arc<UnreadResponses<ObservedBody>>,
    pub(super) forwarder: Arc<Forwarder>,
    pub(super) tokens: Option<Arc<TokenVerifier>>,
    pub(super) certificate_user: Option<CertificateUser>,
}

impl GatewayService {
    /// Attaches the authenticated user to the request, or returns why the request is rejected.
    fn identify(&self, request: &mut Request<InboundBody>) -> Result<(), Failure> {
        if let Some(user) = &self.certificate_user {
            request.extensions_mut().insert(user.clone());
        }
        if self.downstream.settings.sources.is_basic() && has_several_credentials(request.headers()) {
            return Err(Failure::SeveralCredentials);
        }
        self.tokens.as_ref().map_or(Ok(()), |tokens| tokens.verify(request))
    }
}

impl Service<Request<Incoming>> for GatewayService {
    type Response = Response<ClientBody>;
    type Error = ClientGone;
    type Future = GatewayFuture;

    fn call(&self, request: Request<Incoming>) -> GatewayFuture {
        let version = request.version();
        let mut request = request.map(|body| InboundBody::new(body, version));
        let mut observed = ObservedRequest::begin(&self.downstream, &mut request);
        let settings = &self.downstream.settings;
        settings.sanitizer.clean(request.headers_mut(), self.downstream.is_trusted);
        let responses = (version == Version::HTTP_2).then(|| Arc::clone(&self.responses));
        let reader = match &settings.style.answers.cors {
            Some(cors) => cors.reader(request.headers()),
            None => None,
        };
        let normalized = self.forwarder.normalize_path(&mut request).and_then(|()| {
            observed.route(self.forwarder.route_of(&request));
            self.identify(&mut request)
        });
        let stage = match normalized {
            Ok(()) => {
                ResponseStage::Limited { future: tower_service::Service::call(&mut self.limited.clone(), request) }
            }
            Err(why) => {
                let form = FailureForm::of(request.headers(), &settings.style.answers.bodies);
                ResponseStage::Refused { response: Some(Box::new(failure_response(why, form))) }
            }
        };
        GatewayFuture { stage, observed: Some(observed), reader, responses }
    }
}

pin_project! {
    /// Future of a response.
    pub(super) struct GatewayFuture {
        #[pin]
        stage: ResponseStage,
        observed: Option<ObservedRequest>,
        // Origin whose scripts may read the gateway's own responses.
        reader: Option<AllowedReader>,
        // Responses of the connection; `None` for HTTP/1.
        responses: Option<Arc<UnreadResponses<ObservedBody>>>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum ResponseStage {
        /// The request was passed to the middleware.
        Limited { #[pin] future: BodyCostFuture<Forward, InboundBody, AnyStore, SystemClock> },
        /// The request was refused. `None` once the response was returned.
        Refused { response: Option<Box<Response<ForwardBody>>> },
    }
}

impl Future for GatewayFuture {
    type Output = Result<Response<ClientBody>, ClientGone>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match this.stage.project() {
            StageProjection::Limited { future } => ready!(future.poll(cx))?,
            StageProjection::Refused { response } => {
                let Some(response) = response.take() else { return Poll::Pending };
                response.map(ResponseBody::from)
            }
        };
        let mut observed = this.observed.take();
        if let Some(observed) = &mut observed {
            observed.respond(&response);
            if let Some(cors) = &observed.downstream().settings.style.answers.cors {
                if response.body().get_ref().is_none_or(ForwardBody::is_own) {
                    cors.write(this.reader.as_ref(), response.headers_mut());
                } else if this.reader.is_some() {
                    expose_limits(response.headers_mut());
                }
            }
        }
        Poll::Ready(Ok(response.map(|body| {
            let body = ObservedBody { body, observed };
            match this.responses {
                Some(responses) if !body.is_end_stream() => ClientBody::Watched(responses.watch(body)),
                _ => ClientBody::Plain(body),
            }
        })))
    }
}
