//! Calls that are dropped before they are sent: their charges are given back.

use std::convert::Infallible;
use std::future::{Future, Ready, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tidegate_client::SharedPaceLayer;
use tidegate_redis::{RedisStore, Settings};
use tidegate_rules::{Limiter, RuleSet};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::Server;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

use crate::shared::{TOKENS_AND_CALLS, estimated, left, limiter};

/// Polls a call once.
async fn begun<T>(call: impl Future<Output = T>) {
    let mut call = pin!(call);
    poll_fn(|context| {
        assert!(call.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// A service that is never ready.
#[derive(Clone)]
struct Busy;

impl Service<Request<()>> for Busy {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        unreachable!("it is never ready")
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_before_the_service_is_ready_gives_its_charge_back() {
    for reserves in [true, false] {
        let limiter = limiter(TOKENS_AND_CALLS);
        let layer = SharedPaceLayer::new(Arc::clone(&limiter));
        let layer = if reserves { layer.reserve(Duration::from_mins(5)) } else { layer };
        let mut call = Box::pin(ServiceBuilder::new().layer(layer).service(Busy).oneshot(estimated(100)));
        begun(&mut call).await;
        assert_eq!(left(&limiter).await, [900, 599, 4_950]);
        drop(call);
        assert_eq!(left(&limiter).await, [1_000, 600, 5_000]);
    }
}

#[tokio::test]
async fn a_call_dropped_while_redis_is_asked_gives_its_charge_back() {
    let server = Server::start();
    for reserves in [true, false] {
        let mut settings = Settings::standalone(&server.unix_url()).unwrap();
        settings.deadline = Duration::from_secs(30);
        let rules = RuleSet::parse("rules.yaml", TOKENS_AND_CALLS).unwrap().rules;
        let limiter = Arc::new(Limiter::new(rules, RedisStore::open(settings).unwrap()));
        let layer = SharedPaceLayer::new(Arc::clone(&limiter));
        let layer = if reserves { layer.reserve(Duration::from_mins(5)) } else { layer };
        let silent = service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, Infallible>>());
        let client = ServiceBuilder::new().layer(layer).service(silent);
        assert_eq!(left(&limiter).await, [1_000, 600, 5_000], "the connection is there");
        let mut calls: Vec<_> = (0..20).map(|_| Box::pin(client.clone().oneshot(estimated(10)))).collect();
        for call in &mut calls {
            begun(call).await;
        }
        // Redis has answered, and the calls have not seen it.
        eventually("charges", async || (left(&limiter).await == [800, 580, 4_000]).then_some(())).await;
        drop(calls);
        eventually("charges given back", async || (left(&limiter).await == [1_000, 600, 5_000]).then_some(())).await;
        server.run::<String>(&["FLUSHALL"]);
    }
}
