//! Polling for a condition.

use std::time::Duration;

use tokio::time::Instant;

/// The longest wait of a test. Sentinels that were held up by a busy machine distrust their clock and do nothing for half a
/// minute.
pub const PATIENCE: Duration = Duration::from_secs(60);

const POLL_EVERY: Duration = Duration::from_millis(5);

/// Polls until `look` returns something.
///
/// # Panics
/// After [`PATIENCE`].
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for this: {what}");
        std::thread::sleep(POLL_EVERY);
    }
}

/// As [`until`], asynchronously.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for this: {what}");
        tokio::time::sleep(POLL_EVERY).await;
    }
}
