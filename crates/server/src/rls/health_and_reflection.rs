//! gRPC's health and reflection services.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tonic::codegen::StdError;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::ServiceExt;

use super::AnswerBody;

/// File descriptors of Envoy's rate-limit service and of all messages that it uses. A test compares them with
/// `envoy-types`.
const MESSAGES: &[u8] = include_bytes!("messages.bin");

/// Names under which health is reported: the whole server, the service, and its name in envoyproxy/ratelimit.
const NAMES: [&str; 3] = ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"];

/// gRPC's health and reflection services, and `UNIMPLEMENTED` for all other methods.
pub(super) struct HealthAndReflection {
    routes: Routes,
    health: HealthReporter,
    is_serving: AtomicBool,
    is_closing: AtomicBool,
}

impl HealthAndReflection {
    pub(super) async fn open() -> HealthAndReflection {
        let (health, service) = tonic_health::server::health_reporter();
        let routes = with_reflection(Routes::new(service)).prepare();
        let services = HealthAndReflection {
            routes,
            health,
            is_serving: AtomicBool::new(true),
            is_closing: AtomicBool::new(false),
        };
        services.report(ServingStatus::Serving).await;
        services
    }

    /// Whether the listener is about to close.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Reports whether the listener serves, unless it is about to close.
    pub(super) async fn set_serving(&self, is_serving: bool) {
        if self.is_closing() || self.is_serving.swap(is_serving, Ordering::Relaxed) == is_serving {
            return;
        }
        self.report(if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing }).await;
    }

    /// Reports that the listener is about to close.
    pub(super) async fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.report(ServingStatus::NotServing).await;
    }

    async fn report(&self, status: ServingStatus) {
        for name in NAMES {
            self.health.set_service_status(name, status).await;
        }
    }

    /// Answers a call.
    pub(super) async fn call<B>(&self, request: Request<B>) -> Response<AnswerBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError>,
    {
        match self.routes.clone().oneshot(request).await {
            Ok(response) => response.map(AnswerBody::Routed),
            Err(never) => match never {},
        }
    }
}

/// Adds both versions of reflection, because older tools support only the first.
fn with_reflection(routes: Routes) -> Routes {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(MESSAGES)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    match (builder().build_v1alpha(), builder().build_v1()) {
        (Ok(alpha), Ok(stable)) => routes.add_service(alpha).add_service(stable),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "gRPC reflection is not served");
            routes
        }
    }
}
