//! Polling for a condition.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum wait of a test. Sentinels that were delayed by a busy machine distrust their clock and do nothing for half a
/// minute.
pub const TIMEOUT: Duration = Duration::from_secs(60);

const POLL_EVERY: Duration = Duration::from_millis(5);

/// Polls until `look` returns a value.
///
/// # Panics
/// After [`TIMEOUT`].
pub fn until<T>(what: &str, mut read: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = read() {
            return seen;
        }
        assert!(began.elapsed() < TIMEOUT, "waited {TIMEOUT:?} in vain for this: {what}");
        std::thread::sleep(POLL_EVERY);
    }
}

/// Like [`until`], but asynchronous.
///
/// # Panics
/// After [`TIMEOUT`].
pub async fn eventually<T>(what: &str, mut read: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = read().await {
            return seen;
        }
        assert!(began.elapsed() < TIMEOUT, "waited {TIMEOUT:?} in vain for this: {what}");
        tokio::time::sleep(POLL_EVERY).await;
    }
}
