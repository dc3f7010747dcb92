//! Callers with long deadlines and callers with short ones, at a server that is too slow for the latter.

use std::sync::Arc;
use std::time::Duration;

use tidegate_redis::LinkError;
use tidegate_redis::link::{Cause, Link};
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Proxy, Server};
use tokio::task::JoinHandle;

use crate::link::counter_script::{AMPLE, DEADLINE, add, open_url, ready};
use crate::link::load::{Load, SLACK};

const ROUND_TRIP: Duration = Duration::from_millis(60);

/// Makes calls with long deadlines, one by one, until this many were answered or one failed.
fn patient(link: &Arc<Link>, calls: u64) -> JoinHandle<Result<u64, LinkError>> {
    let link = link.clone();
    tokio::spawn(async move {
        let mut count = 0;
        for _ in 0..calls {
            count = add(&link, "patient", AMPLE).await?;
        }
        Ok(count)
    })
}

/// Waits until calls with short deadlines fail immediately.
async fn hasty_calls_fail_at_once(link: &Link) {
    eventually("hasty calls that fail at once", async || {
        matches!(add(link, "hasty", DEADLINE).await, Err(LinkError::NotRun(Cause::BreakerOpen(_)))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hasty_callers_do_not_take_a_slow_server_from_patient_ones() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let link = Arc::new(open_url(&proxy.url()));
    ready(&link).await;
    proxy.set(Break::Delay(ROUND_TRIP));
    let load = Load::start(&link, 32, "hasty");
    let answered = patient(&link, 20).await.unwrap();
    assert_eq!(answered, Ok(20), "every patient call is answered by the store");
    hasty_calls_fail_at_once(&link).await;
    let stats = link.stats().servers[0].clone();
    let refused = stats.refuses_up_to.expect("some calls are refused");
    assert!(DEADLINE <= refused && refused < AMPLE, "{refused:?}");
    assert_eq!(patient(&link, 5).await.unwrap(), Ok(25), "patient calls are answered while hasty ones fail at once");
    proxy.set(Break::Nothing);
    eventually("answers for the hasty too", async || add(&link, "hasty", DEADLINE).await.ok()).await;
    let report = load.stop().await;
    report.nobody_waited("hasty callers of a slow server");
    report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
}

/// The server is suspended for longer than a connection with only short deadlines would be kept, but for less than the long
/// deadline. The call with the long deadline waits behind the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_patient_call_outlasts_a_standstill_that_hasty_callers_give_up_on() {
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    ready(&link).await;
    let load = Load::start(&link, 32, "hasty");
    server.freeze();
    let call = patient(&link, 1);
    hasty_calls_fail_at_once(&link).await;
    eventually("a standstill", async || {
        let stats = &link.stats().servers[0];
        stats.refuses_up_to.is_some_and(|refused| refused > Duration::from_millis(600)).then_some(())
    })
    .await;
    server.thaw();
    assert_eq!(call.await.unwrap(), Ok(1));
    let report = load.stop().await;
    report.is_true(|key| server.run::<Option<u64>>(&["GET", key]).unwrap_or(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_costs_patient_callers_their_deadline_a_few_times_and_then_nothing() {
    let patience = Duration::from_millis(100);
    let server = Server::start();
    let link = Arc::new(open_url(&server.url()));
    ready(&link).await;
    server.freeze();
    let began = tokio::time::Instant::now();
    let mut longest = Duration::ZERO;
    for _ in 0..200 {
        let began = tokio::time::Instant::now();
        assert!(add(&link, "patient", patience).await.is_err());
        longest = longest.max(began.elapsed());
    }
    let took = began.elapsed();
    server.thaw();
    assert!(longest < patience + SLACK, "{longest:?}");
    // If each of them waited, it would take 20 s.
    assert!(took < Duration::from_secs(5), "{took:?}");
    eventually("service that is back", async || add(&link, "patient", patience).await.ok()).await;
}
