//! The latency of a request at ten thousand a second, compared with a bare PING.

use std::time::{Duration, Instant};

use tidegate_bench::keys::{Dice, write_key};
use tidegate_bench::report::{Report, Row};

use crate::server::Server;
use crate::throughput::Rules;

const A_SECOND: u32 = 10_000;
const SECONDS: u32 = 4;

pub async fn measure(report: &mut Report, server: &Server) {
    let store = server.store();
    let rules = Rules::new(&["100/s burst 200"]);
    let connection = server.connection().await;
    let ours = at_a_steady_pace(async |key| {
        rules.check(&store, key).await;
    })
    .await;
    let ping = at_a_steady_pace(async |_| {
        redis::cmd("PING").exec_async(&mut connection.clone()).await.expect("an answer");
    })
    .await;
    let row = |what: &str, part: f64| {
        Row::smaller_is_better(what, quantile(&ours, part), "PING", quantile(&ping, part), "us")
    };
    let rows = vec![
        row("half are quicker than", 0.5).with_id("redis/median"),
        row("99 of 100 are quicker than", 0.99).with_id("redis/p99"),
    ];
    report.section("One token bucket decided, 10 000 requests a second", rows);
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part) as usize]
}

/// Sends requests at fixed times, whether or not earlier ones have completed, and measures latencies from these times.
/// Returns them in microseconds, sorted.
async fn at_a_steady_pace(ask: impl AsyncFn(&str)) -> Vec<f64> {
    let (began, every) = (Instant::now() + Duration::from_millis(20), Duration::from_secs(1) / A_SECOND);
    let mut dice = Dice::new(7);
    let mut under_way = futures::stream::FuturesUnordered::new();
    let mut took = Vec::new();
    for number in 0..A_SECOND * SECONDS {
        let due = began + every * number;
        // The runtime's timer has a resolution of a millisecond, so the remaining time is spent busy-waiting.
        while Instant::now() < due {
            match futures::FutureExt::now_or_never(futures::StreamExt::next(&mut under_way)).flatten() {
                Some(micros) => took.push(micros),
                None => tokio::task::yield_now().await,
            }
        }
        let mut key = String::new();
        write_key(&mut key, dice.below(10_000));
        let ask = &ask;
        under_way.push(async move {
            ask(&key).await;
            due.elapsed().as_secs_f64() * 1e6
        });
    }
    while let Some(micros) = futures::StreamExt::next(&mut under_way).await {
        took.push(micros);
    }
    // The first tenth is the warm-up.
    let mut took = took.split_off(took.len() / 10);
    took.sort_by(f64::total_cmp);
    took
}
