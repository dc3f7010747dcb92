//! Budget of log lines for each call site, because clients can cause the same line repeatedly.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Target of lines about the log itself, whose number is bounded already.
pub(super) const UNLIMITED: &str = "tidegate::log";
/// Target of denials, which are logged at most once a second.
const DENIALS: &str = "tidegate::denials";

/// Budgets of all call sites that have logged.
pub(super) struct Repeats {
    each_refill: u32,
    call_sites: Mutex<HashMap<Identifier, CallSite>>,
    dropped: AtomicU64,
}

struct CallSite {
    metadata: &'static Metadata<'static>,
    left: u32,
    /// Suppressed lines that have not been reported yet.
    unreported: u64,
}

impl Repeats {
    /// Each call site may log a burst of ten times `each_refill` lines, and `each_refill` more after every refill.
    pub(super) fn new(each_refill: NonZero<u32>) -> Repeats {
        Repeats { each_refill: each_refill.get(), call_sites: Mutex::default(), dropped: AtomicU64::new(0) }
    }

    /// Number of suppressed lines.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Refills all budgets, and reports suppressed lines.
    pub(super) fn refill(&self) {
        let mut over = Vec::new();
        for place in self.lock().values_mut() {
            place.left = place.left.saturating_add(self.each_refill).min(self.burst());
            if place.unreported > 0 {
                over.push((place.metadata, std::mem::take(&mut place.unreported)));
            }
        }
        for (metadata, lines) in over {
            let (of, file, at) = (metadata.target(), metadata.file().unwrap_or("?"), metadata.line().unwrap_or(0));
            tracing::warn!(target: UNLIMITED, lines, of, "log lines were suppressed: too many from {file}:{at}");
        }
    }

    const fn burst(&self) -> u32 {
        self.each_refill.saturating_mul(10)
    }

    fn admits(&self, metadata: &'static Metadata<'static>) -> bool {
        // Debug and trace lines are not limited.
        if *metadata.level() > Level::INFO || matches!(metadata.target(), UNLIMITED | DENIALS) {
            return true;
        }
        let mut call_sites = self.lock();
        let new = || CallSite { metadata, left: self.burst(), unreported: 0 };
        let place = call_sites.entry(metadata.callsite()).or_insert_with(new);
        if place.left == 0 {
            place.unreported += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        place.left -= 1;
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, CallSite>> {
        self.call_sites.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Layer that suppresses lines beyond the budget.
pub(super) struct RepeatLimit(pub(super) Arc<Repeats>);

impl<S: Subscriber> Layer<S> for RepeatLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.0.admits(event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Log output of these tests.
    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_place_has_a_budget_and_what_goes_past_it_is_reported() {
        let (repeats, written) = (Arc::new(Repeats::new(NonZero::new(2).unwrap())), CapturedLog::default());
        let out = written.clone();
        let subscriber = tracing_subscriber::registry()
            .with(RepeatLimit(Arc::clone(&repeats)))
            .with(tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || out.clone()));
        let lines = |text: &str| {
            let written = written.0.lock().unwrap();
            String::from_utf8_lossy(&written).lines().filter(|line| line.contains(text)).count()
        };
        tracing::subscriber::with_default(subscriber, || {
            let often = || {
                for _ in 0..1_000 {
                    tracing::warn!("a client did it again");
                    tracing::debug!("in detail");
                    tracing::info!(target: DENIALS, "denied");
                }
            };
            often();
            tracing::warn!("something else");
            assert_eq!(lines("did it again"), 20);
            assert_eq!((lines("something else"), lines("in detail"), lines("denied")), (1, 1_000, 1_000));
            repeats.refill();
            assert_eq!((repeats.dropped(), lines("suppressed"), lines("lines=980")), (980, 1, 1));
            often();
            assert_eq!(lines("did it again"), 22);
            repeats.refill();
            repeats.refill();
            assert_eq!(lines("suppressed"), 2, "it is reported once");
        });
    }
}
