//! The listener of `tidegate lab`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{LabState, nothing_here, router};
use crate::cross_site::AllowedHosts;
use crate::listen::{ListenError, Listener, Settings};
pub use crate::operator_connection::serve_connection;
use crate::problem::Problem;

async fn for_this_machine(State(hosts): State<Arc<AllowedHosts>>, request: Request, next: Next) -> Response {
    match hosts.check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(misdirected) => Problem::from(misdirected).into_response(),
    }
}

/// A lab with its own listener.
pub struct LabServer {
    address: SocketAddr,
    serving: JoinHandle<()>,
    stop: CancellationToken,
}

impl LabServer {
    /// Opens the listener and serves the lab.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn open(settings: Settings, lab: LabState) -> Result<LabServer, ListenError> {
        let listener = Listener::bind(settings)?;
        let address = listener.listening().address();
        let stop = lab.0.settings.stop.clone();
        let hosts = Arc::new(AllowedHosts::of(address.ip(), Vec::new()));
        let routes: Router = router(lab)
            .route("/", get(|| async { Redirect::temporary("/lab/") }))
            .fallback(nothing_here)
            .layer(from_fn_with_state(hosts, for_this_machine));
        let ending = stop.clone();
        let serve = move |stream, peer| serve_connection(stream, peer, routes.clone(), ending.clone());
        let serving = tokio::spawn(listener.serve(stop.clone(), serve));
        Ok(LabServer { address, serving, stop })
    }

    /// The listening address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all runs, and waits until all connections have ended.
    pub async fn close(self) {
        self.stop.cancel();
        // The task can only fail by being cancelled, which closes the listener too.
        let _ = self.serving.await;
    }
}
