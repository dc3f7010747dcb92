//! Decisions in a Redis.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tidegate_redis::{Names, RedisStore, Settings};
use tidegate_rules::Request;

use super::BenchError;
use super::latencies::Latencies;
use super::load::{LoadClient, MeasuredWindow, drive};
use super::loopback::engine;
use crate::engine::Engine;
use crate::readiness::StoreTrouble;
use crate::store::AnyStore;

/// Limit of each key. Its state expires from Redis a second after the last request.
const LIMIT: &str = "1000000/s burst 1000000";

/// Prefix of the keys in Redis, different from that of servers.
const PREFIX: &str = "tidegate-bench";

/// Longest wait for one decision. Slow decisions are measured, not refused.
const DEADLINE: Duration = Duration::from_secs(1);

/// Longest wait for the connection.
const CONNECTING: Duration = Duration::from_secs(5);

/// Measures decisions with this many in flight: one call per decision for many keys, or one key with leases.
pub(super) async fn measure(
    urls: &[String],
    is_leased: bool,
    in_flight: NonZeroU32,
    keys: NonZeroU32,
    window: MeasuredWindow,
) -> Result<Latencies, BenchError> {
    let engine = open(urls, is_leased).await?;
    let clients = (0..in_flight.get()).map(|_| StoreClient(Arc::clone(&engine))).collect();
    let keys = if is_leased { NonZeroU32::MIN } else { keys };
    let measured = drive(clients, keys, window).await;
    engine.limiter().store().return_leases().await;
    measured
}

/// Checks that Redis answers, so that a wrong address is reported before anything is measured.
pub(super) async fn reachable(urls: &[String]) -> Result<(), BenchError> {
    open(urls, false).await.map(drop)
}

/// An engine with its state in Redis, once Redis answers.
async fn open(urls: &[String], is_leased: bool) -> Result<Arc<Engine>, BenchError> {
    let mut settings = Settings::from_urls(urls)?;
    settings.deadline = DEADLINE;
    let store = RedisStore::open(settings)?.with_names(Names::new(PREFIX)?);
    let store = if is_leased { store.into() } else { AnyStore::without_leases(store) };
    let engine = engine(LIMIT, store)?;
    connected(&engine).await?;
    Ok(engine)
}

/// Waits until Redis answers.
async fn connected(engine: &Engine) -> Result<(), BenchError> {
    let connecting = async {
        while StoreTrouble::of(engine).is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match (tokio::time::timeout(CONNECTING, connecting).await, StoreTrouble::of(engine)) {
        (Err(_), Some(trouble)) => Err(BenchError::NoRedis(trouble.reason)),
        _ => Ok(()),
    }
}

/// Decides in this process, with the state in Redis.
struct StoreClient(Arc<Engine>);

impl LoadClient for StoreClient {
    async fn ask(&mut self, key: u32) -> Result<bool, BenchError> {
        let request = Request::new("GET", "/search").user(&format!("user-{key:08}"));
        let ruling = self.0.check(&request).await;
        if ruling.is_by_policy() {
            let reason = StoreTrouble::of(&self.0).map_or_else(|| "a call failed".to_owned(), |trouble| trouble.reason);
            return Err(BenchError::NoRedis(reason));
        }
        Ok(ruling.is_allowed())
    }
}
