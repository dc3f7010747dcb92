//! A healthy server behind a failing network.

use std::time::Duration;

use tidegate_core::contract::seed::seed;
use tidegate_redis::Settings;
use tidegate_test_support::eventually;
use tidegate_test_support::redis::{Break, Proxy, Server};

use crate::faults::crowd::Crowd;

async fn crowd(server: &Server) -> (Crowd, Proxy) {
    let proxy = Proxy::start(server.port()).await;
    (Crowd::gather(Settings::standalone(&proxy.url()).unwrap()).await, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_off_in_the_middle_of_something() {
    for breaks in [Break::BeforeRequest, Break::MidRequest, Break::BeforeReply, Break::MidReply] {
        let server = Server::start();
        let (crowd, proxy) = crowd(&server).await;
        let mut longest = Duration::ZERO;
        for _ in 0..10 {
            proxy.once(breaks);
            eventually("a cut", async || proxy.is_idle().then_some(())).await;
            longest = longest.max(crowd.back().await);
        }
        crowd.disperse(&format!("cut 10 times: {breaks:?}"), Some(longest), 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_or_gone_for_a_while() {
    for breaks in [Break::Delay(Duration::from_millis(60)), Break::BlackHole, Break::Refuse] {
        let server = Server::start();
        let (crowd, proxy) = crowd(&server).await;
        proxy.set(breaks);
        crowd.policies_decide_times(300).await;
        proxy.set(Break::Nothing);
        let back = crowd.back().await;
        crowd.some_work().await;
        crowd.disperse(&format!("for a while: {breaks:?}"), Some(back), 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_at_random() {
    let server = Server::start();
    let (crowd, proxy) = crowd(&server).await;
    let kinds = [
        Break::BeforeRequest,
        Break::MidRequest,
        Break::BeforeReply,
        Break::MidReply,
        Break::Delay(Duration::from_millis(15)),
        Break::Delay(Duration::from_millis(30)),
        Break::BlackHole,
        Break::Refuse,
    ];
    let mut dice = fastrand::Rng::with_seed(seed(fastrand::u64(..)));
    for _ in 0..40 {
        let breaks = kinds[dice.usize(..kinds.len())];
        if dice.bool() {
            proxy.once(breaks);
        } else {
            proxy.set(breaks);
        }
        crowd.decisions(dice.u64(1..500)).await;
        proxy.set(Break::Nothing);
        crowd.back().await;
    }
    crowd.disperse("broken 40 times at random", None, 0).await;
}
