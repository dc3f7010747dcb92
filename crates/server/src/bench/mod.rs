//! Measurement of this machine: checks in process, each listener over loopback, and a Redis.
//!
//! Every measurement keeps a fixed number of requests in flight for a fixed time, and reports how many of them were
//! allowed. Load and server share the processors, so figures of listeners are lower than with load from another
//! machine.

mod grpc;
mod in_process;
mod latencies;
mod load;
mod loopback;
mod redis;
mod upstream;
mod wire;

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use serde::Serialize;
use tidegate_redis::{PrefixError, SettingsError};
use tidegate_rules::Diagnostics;

use self::latencies::Latencies;
use crate::gateway::AddressError;
use crate::listen::ListenError;

/// Extent of a benchmark.
#[derive(Clone, Debug)]
pub(crate) struct BenchPlan {
    /// The time of all measurements together.
    pub(crate) time: Duration,
    /// The number of keys in measurements with many of them.
    pub(crate) keys: NonZeroU32,
    /// Connections to each listener, and requests in flight to Redis.
    pub(crate) connections: NonZeroU32,
    /// Threads of the measurements on all processors.
    pub(crate) threads: NonZeroUsize,
    /// URLs of the Redis to measure; empty for none.
    pub(crate) redis: Vec<String>,
}

/// The result of one measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// Name of the measurement, for programs: `in-process/one-key/one-thread`.
    pub(crate) name: &'static str,
    /// Description, for people.
    pub(crate) about: String,
    /// Checks that were measured.
    pub(crate) checks: u64,
    /// Checks that were allowed.
    pub(crate) allowed: u64,
    pub(crate) per_second: f64,
    /// The median, at most 1/16 too high.
    pub(crate) p50_ns: u64,
    /// The 99th percentile, at most 1/16 too high.
    pub(crate) p99_ns: u64,
}

/// A benchmark that cannot be completed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The rules of the benchmark are invalid.
    #[error("{0}")]
    Rules(Diagnostics),
    /// A listener cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The upstream has no usable address.
    #[error(transparent)]
    Upstream(#[from] AddressError),
    /// A connection to a listener failed.
    #[error("a connection over loopback failed: {0}")]
    Connection(#[from] std::io::Error),
    /// A gRPC call failed.
    #[error("a gRPC call over loopback failed: {0}")]
    Grpc(#[from] hyper::Error),
    /// A listener sent something other than a decision.
    #[error("a listener sent an unexpected answer: {0}")]
    Answer(String),
    /// The URLs of Redis are invalid.
    #[error(transparent)]
    Redis(#[from] SettingsError),
    /// The prefix of keys is invalid.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// Redis does not answer.
    #[error("Redis does not answer: {0}")]
    NoRedis(String),
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BenchSubject {
    InProcess { is_one_key: bool, is_one_thread: bool },
    HttpApi,
    Grpc,
    RedisProtocol,
    Gateway,
    Redis { is_leased: bool },
}

impl BenchSubject {
    /// The subjects of a plan, in the order in which they are measured.
    fn of(plan: &BenchPlan) -> Vec<BenchSubject> {
        let mut subjects = Vec::new();
        for is_one_thread in [true, false] {
            if is_one_thread || plan.threads.get() > 1 {
                subjects.extend([true, false].map(|is_one_key| BenchSubject::InProcess { is_one_key, is_one_thread }));
            }
        }
        subjects.extend([
            BenchSubject::HttpApi,
            BenchSubject::Grpc,
            BenchSubject::RedisProtocol,
            BenchSubject::Gateway,
        ]);
        if !plan.redis.is_empty() {
            subjects.extend([false, true].map(|is_leased| BenchSubject::Redis { is_leased }));
        }
        subjects
    }

    const fn name(self) -> &'static str {
        match self {
            BenchSubject::InProcess { is_one_key: true, is_one_thread: true } => "in-process/one-key/one-thread",
            BenchSubject::InProcess { is_one_key: false, is_one_thread: true } => "in-process/many-keys/one-thread",
            BenchSubject::InProcess { is_one_key: true, is_one_thread: false } => "in-process/one-key/all-threads",
            BenchSubject::InProcess { is_one_key: false, is_one_thread: false } => "in-process/many-keys/all-threads",
            BenchSubject::HttpApi => "listener/http-api",
            BenchSubject::Grpc => "listener/envoy-grpc",
            BenchSubject::RedisProtocol => "listener/redis-protocol",
            BenchSubject::Gateway => "listener/gateway",
            BenchSubject::Redis { is_leased: false } => "redis/many-keys",
            BenchSubject::Redis { is_leased: true } => "redis/one-leased-key",
        }
    }

    fn about(self, plan: &BenchPlan) -> String {
        let BenchPlan { keys, connections, threads, .. } = plan;
        match self {
            BenchSubject::InProcess { is_one_key, is_one_thread } => {
                let keys = if is_one_key { "1 key".to_owned() } else { format!("{keys} keys") };
                let threads = if is_one_thread { "1 thread".to_owned() } else { format!("{threads} threads") };
                format!("in process, {keys}, {threads}")
            }
            BenchSubject::HttpApi => format!("HTTP API, {connections} connections"),
            BenchSubject::Grpc => format!("Envoy rate-limit service (gRPC), {connections} connections"),
            BenchSubject::RedisProtocol => format!("Redis protocol, {connections} connections"),
            BenchSubject::Gateway => format!("gateway and a trivial upstream, {connections} connections"),
            BenchSubject::Redis { is_leased: false } => format!("Redis, {keys} keys, {connections} in flight"),
            BenchSubject::Redis { is_leased: true } => format!("Redis, 1 leased key, {connections} in flight"),
        }
    }
}

/// The measurements of a plan, to be made one by one.
pub(crate) struct Bench<'p> {
    plan: &'p BenchPlan,
    clock: quanta::Clock,
    subjects: Vec<BenchSubject>,
}

impl<'p> Bench<'p> {
    /// The measurements of `plan`, timed by `clock`.
    pub(crate) fn new(plan: &'p BenchPlan, clock: quanta::Clock) -> Bench<'p> {
        Bench { plan, clock, subjects: BenchSubject::of(plan) }
    }

    /// Number of measurements.
    pub(crate) const fn len(&self) -> usize {
        self.subjects.len()
    }

    /// Makes all measurements. Calls `begin` with a description before each.
    ///
    /// # Errors
    /// If a listener or Redis fails.
    pub(crate) async fn run(&self, mut begin: impl FnMut(&str)) -> Result<Vec<Measurement>, BenchError> {
        if !self.plan.redis.is_empty() {
            redis::reachable(&self.plan.redis).await?;
        }
        let time = self.plan.time / u32::try_from(self.len()).unwrap_or(u32::MAX).max(1);
        let window = load::MeasuredWindow { clock: self.clock.clone(), time };
        let mut measured = Vec::with_capacity(self.len());
        for &subject in &self.subjects {
            let about = subject.about(self.plan);
            begin(&about);
            let latencies = self.measure(subject, window.clone()).await?;
            measured.push(latencies.measurement(subject.name(), about));
        }
        Ok(measured)
    }

    async fn measure(&self, subject: BenchSubject, window: load::MeasuredWindow) -> Result<Latencies, BenchError> {
        let BenchPlan { keys, connections, threads, redis, .. } = self.plan;
        match subject {
            BenchSubject::InProcess { is_one_key, is_one_thread } => {
                let threads = if is_one_thread { NonZeroUsize::MIN } else { *threads };
                let keys = if is_one_key { NonZeroU32::MIN } else { *keys };
                // On a blocking thread, because the measurement uses all processors.
                let measured = tokio::task::spawn_blocking(move || in_process::measure(keys, threads, &window)).await;
                Ok(measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())))
            }
            BenchSubject::HttpApi => loopback::http_api(*connections, *keys, window).await,
            BenchSubject::Grpc => loopback::grpc(*connections, *keys, window).await,
            BenchSubject::RedisProtocol => loopback::redis_protocol(*connections, *keys, window).await,
            BenchSubject::Gateway => loopback::gateway(*connections, *keys, window).await,
            BenchSubject::Redis { is_leased } => redis::measure(redis, is_leased, *connections, *keys, window).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(threads: usize, redis: &[&str]) -> BenchPlan {
        BenchPlan {
            time: Duration::from_millis(200),
            keys: NonZeroU32::new(100).unwrap(),
            connections: NonZeroU32::new(2).unwrap(),
            threads: NonZeroUsize::new(threads).unwrap(),
            redis: redis.iter().map(|&url| url.to_owned()).collect(),
        }
    }

    #[test]
    fn one_processor_is_not_measured_twice_and_redis_only_if_it_is_named() {
        let names = |plan: &BenchPlan| BenchSubject::of(plan).into_iter().map(BenchSubject::name).collect::<Vec<_>>();
        assert_eq!(names(&plan(1, &[])).len(), 6);
        let all = names(&plan(8, &["redis://127.0.0.1"]));
        assert_eq!((all.len(), all[3], all[9]), (10, "in-process/many-keys/all-threads", "redis/one-leased-key"));
    }

    #[test]
    fn every_measurement_says_what_it_measures() {
        let plan = plan(8, &["redis://127.0.0.1"]);
        let mut about: Vec<String> = BenchSubject::of(&plan).into_iter().map(|subject| subject.about(&plan)).collect();
        assert!(about.contains(&"in process, 100 keys, 8 threads".to_owned()), "{about:?}");
        about.sort();
        about.dedup();
        assert_eq!(about.len(), 10);
    }
}
