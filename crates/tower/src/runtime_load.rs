//! The load of a Tokio runtime, as an overload signal.

use std::time::Duration;

use tidegate_core::shed::LoadShedder;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::time::{Instant, sleep_until};

/// Interval between wake-ups of the measuring task.
const TICK: Duration = Duration::from_millis(25);
/// Number of ticks between measurements of the workers.
const BUSY_TICKS: u32 = 10;

/// Records how long tasks of the current runtime wait to be polled, and how busy its workers are, in these shedders.
/// Ends once no one else holds any of the shedders.
///
/// The wait is measured by a task that is due 40 times a second. Requests wait as long before they are started.
pub async fn record_runtime_load(shedders: Vec<LoadShedder>) {
    let mut busy = WorkerBusyness::new(Handle::current().metrics());
    while shedders.iter().any(LoadShedder::is_shared) {
        for _ in 0..BUSY_TICKS {
            let due = Instant::now() + TICK;
            sleep_until(due).await;
            // Tokio's timers have a resolution of one millisecond, and round up.
            let wait = due.elapsed().saturating_sub(Duration::from_millis(1));
            shedders.iter().for_each(|shedder| shedder.record_wait(wait.into()));
        }
        let busy = busy.since_last();
        shedders.iter().for_each(|shedder| shedder.record_busy(busy));
    }
}

/// Measures the time that workers spend running tasks.
struct WorkerBusyness {
    metrics: RuntimeMetrics,
    at: Instant,
    total: Duration,
}

impl WorkerBusyness {
    fn new(metrics: RuntimeMetrics) -> WorkerBusyness {
        let total = total(&metrics);
        WorkerBusyness { metrics, at: Instant::now(), total }
    }

    /// The fraction of the time since the last call that the workers were busy, from 0 to 1.
    fn since_last(&mut self) -> f64 {
        let (now, total) = (Instant::now(), total(&self.metrics));
        let (lasted, busy) = (now - self.at, total.saturating_sub(self.total));
        (self.at, self.total) = (now, total);
        let workers = self.metrics.num_workers().max(1);
        (busy.as_secs_f64() / lasted.as_secs_f64().max(1e-6) / workers as f64).min(1.0)
    }
}

fn total(metrics: &RuntimeMetrics) -> Duration {
    (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_as_busy_as_its_tasks_are() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut busy = WorkerBusyness::new(runtime.metrics());
        let before = busy.total;
        let spinning = runtime.spawn(async {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(200) {
                std::hint::spin_loop();
            }
        });
        runtime.block_on(spinning).unwrap();
        // The worker adds a task's time to the total once it has no other task.
        while total(&runtime.metrics()) < before + Duration::from_millis(200) {
            std::thread::yield_now();
        }
        let spun = busy.since_last();
        assert!((0.2..=1.0).contains(&spun), "{spun}");
        std::thread::sleep(Duration::from_millis(20));
        let idle = busy.since_last();
        assert!(idle < 0.1, "{idle} while there was no task");
    }
}
