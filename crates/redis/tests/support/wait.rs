//! Waiting for something to become true.

use std::time::Duration;

use tokio::time::Instant;

/// Long enough for anything that happens at all, on a machine that is busy with other things: sentinels that were held up
/// mistrust their clock and do nothing for half a minute.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks until there is something to see.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for this: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// As [`until`], for tests that wait for what other tasks do.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for this: {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
