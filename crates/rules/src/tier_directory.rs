//! Tiers of API keys in a store, and a cache of them.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate_core::{Clock, Micros, SystemClock, Timestamp};

use super::secret::Secret;

/// The longest name of a tier in a store.
pub const LONGEST_TIER: usize = 100;

/// Time after which the store is asked again if it did not answer.
const ASK_AGAIN_AFTER: Micros = Micros::from_secs(1);

/// Bounds on the cache of a [`TierDirectory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierSettings {
    /// The time for which a tier is used without asking again. A change takes effect after this time at the latest.
    pub ttl: Micros,
    /// Maximum number of API keys in the cache, of about 200 bytes each. Beyond it, the entries that expire first are
    /// removed.
    pub most_keys: usize,
}

impl Default for TierSettings {
    fn default() -> TierSettings {
        TierSettings { ttl: Micros::from_secs(60), most_keys: 100_000 }
    }
}

/// Counters of a [`TierDirectory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Look-ups that found a tier.
    pub found: u64,
    /// Look-ups of API keys without a tier.
    pub missing: u64,
    /// Look-ups whose entry is not a valid tier name.
    pub broken: u64,
    /// Requests with a tier that no rule mentions.
    pub unknown: u64,
    /// Look-ups that the store did not answer.
    pub failed: u64,
    /// API keys in the cache.
    pub keys: usize,
}

/// A look-up: the hash of an API key, and its hash under the previous key of secrets if that is being rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLookup {
    hash: u128,
    previous: Option<u128>,
}

impl TierLookup {
    /// The look-up of an API key.
    #[must_use]
    pub fn of(api_key: &str, secret: &Secret) -> TierLookup {
        TierLookup { hash: secret.hash(api_key), previous: secret.previous().map(|previous| previous.hash(api_key)) }
    }

    /// The names under which a store keeps the tier. The first one present counts.
    pub fn names(&self) -> impl Iterator<Item = String> {
        [Some(self.hash), self.previous].into_iter().flatten().map(|hash| format!("{hash:032x}"))
    }
}

/// The result of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundTier {
    /// The content of the entry, which should be the name of a tier.
    Entry(Vec<u8>),
    /// The API key has no entry.
    Missing,
    /// The store did not answer. A tier found before is used for some more time.
    Failed,
}

/// The tiers of API keys in a store. Requests look them up in a cache. A separate task asks the store for those that are
/// missing ([`TierDirectory::open`], [`TierDirectory::wanted`], [`TierDirectory::found`]).
pub struct TierDirectory {
    settings: TierSettings,
    /// A panic leaves a clock valid, so rules with a directory are unwind-safe.
    clock: AssertUnwindSafe<Box<dyn Clock>>,
    cache: Mutex<TierCache>,
    found: AtomicU64,
    missing: AtomicU64,
    broken: AtomicU64,
    unknown: AtomicU64,
    failed: AtomicU64,
}

#[derive(Default)]
struct TierCache {
    keys: HashMap<u128, TierEntry>,
    wanted: Vec<TierLookup>,
    /// The task that asks the store.
    asker: Option<Waker>,
    /// Whether a task asks the store.
    has_asker: bool,
}

struct TierEntry {
    tier: Option<Arc<str>>,
    /// When the entry expires; `None` before the first answer.
    until: Option<Timestamp>,
    /// The requests that wait for the answer. `None` if the store was not asked.
    waiting: Option<Vec<Waker>>,
}

impl std::fmt::Debug for TierDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierDirectory").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl TierDirectory {
    /// An empty directory.
    #[must_use]
    pub fn new(settings: TierSettings) -> TierDirectory {
        TierDirectory::with_clock(settings, SystemClock::new())
    }

    /// An empty directory with another clock, by which entries expire.
    #[must_use]
    pub fn with_clock(settings: TierSettings, clock: impl Clock + 'static) -> TierDirectory {
        TierDirectory {
            settings,
            clock: AssertUnwindSafe(Box::new(clock)),
            cache: Mutex::default(),
            found: AtomicU64::new(0),
            missing: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> TierCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TierCounts {
            found: read(&self.found),
            missing: read(&self.missing),
            broken: read(&self.broken),
            unknown: read(&self.unknown),
            failed: read(&self.failed),
            keys: self.lock().keys.len(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, TierCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_unknown(&self) {
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// The tier of an API key, as far as it is known.
    pub(super) fn tier(&self, lookup: TierLookup) -> Option<Arc<str>> {
        self.lock().keys.get(&lookup.hash)?.tier.clone()
    }

    /// The answer to a look-up, if it must be awaited: the API key is not in the cache, or its entry has expired.
    pub(super) fn ask(&self, lookup: TierLookup) -> Option<Answered<'_>> {
        let now = self.clock.now();
        let mut cache = self.lock();
        if !cache.has_asker {
            return None;
        }
        let is_fresh = |entry: &TierEntry| entry.until.is_some_and(|until| now < until);
        if cache.keys.get(&lookup.hash).is_some_and(is_fresh) {
            return None;
        }
        if !cache.keys.contains_key(&lookup.hash) && cache.keys.len() >= self.settings.most_keys {
            cache.make_room();
        }
        let entry = cache.keys.entry(lookup.hash).or_insert(TierEntry { tier: None, until: None, waiting: None });
        if entry.waiting.is_none() {
            entry.waiting = Some(Vec::new());
            cache.wanted.push(lookup);
            if let Some(asker) = cache.asker.take() {
                asker.wake();
            }
        }
        Some(Answered { directory: self, hash: lookup.hash })
    }

    /// Declares that a task asks the store from now on, until [`TierDirectory::close`]. Before that, requests do not wait.
    pub fn open(&self) {
        self.lock().has_asker = true;
    }

    /// Waits for look-ups. Each of them must be answered by [`TierDirectory::found`].
    pub fn wanted(&self) -> impl Future<Output = Vec<TierLookup>> + Send + '_ {
        std::future::poll_fn(|context| {
            let mut cache = self.lock();
            if cache.wanted.is_empty() {
                cache.asker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(std::mem::take(&mut cache.wanted))
        })
    }

    /// Answers a look-up.
    pub fn found(&self, lookup: TierLookup, found: FoundTier) {
        let now = self.clock.now();
        let mut cache = self.lock();
        let Some(entry) = cache.keys.get_mut(&lookup.hash) else { return };
        let (counter, lifetime) = match found {
            FoundTier::Entry(bytes) => {
                entry.tier = tier_name(bytes);
                (if entry.tier.is_some() { &self.found } else { &self.broken }, self.settings.ttl)
            }
            FoundTier::Missing => {
                entry.tier = None;
                (&self.missing, self.settings.ttl)
            }
            // A store that does not answer is asked again soon, but not for every request.
            FoundTier::Failed => (&self.failed, self.settings.ttl.min(ASK_AGAIN_AFTER)),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        entry.until = Some(now + lifetime);
        let waiting = entry.waiting.take();
        drop(cache);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// Answers all waiting look-ups, because no task asks the store any longer.
    pub fn close(&self) {
        let mut cache = self.lock();
        cache.has_asker = false;
        cache.wanted.clear();
        let waiting: Vec<Waker> = cache.keys.values_mut().filter_map(|entry| entry.waiting.take()).flatten().collect();
        drop(cache);
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl TierCache {
    /// Removes the eighth of the entries that expires first. Entries for which requests wait are kept.
    fn make_room(&mut self) {
        let mut ends: Vec<Timestamp> =
            self.keys.values().filter(|entry| entry.waiting.is_none()).filter_map(|entry| entry.until).collect();
        let number = (ends.len() / 8).min(ends.len().saturating_sub(1));
        if ends.is_empty() {
            return;
        }
        let (_, &mut last, _) = ends.select_nth_unstable(number);
        self.keys.retain(|_, entry| entry.waiting.is_some() || entry.until.is_none_or(|until| until > last));
    }
}

/// The tier that an entry names: text of 1 to 100 bytes, without control characters.
fn tier_name(bytes: Vec<u8>) -> Option<Arc<str>> {
    let text = String::from_utf8(bytes).ok()?;
    let is_name = !text.is_empty() && text.len() <= LONGEST_TIER && !text.chars().any(char::is_control);
    is_name.then(|| text.into())
}

/// Waits until a look-up is answered.
pub(super) struct Answered<'d> {
    directory: &'d TierDirectory,
    hash: u128,
}

impl Future for Answered<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut cache = self.directory.lock();
        match cache.keys.get_mut(&self.hash).and_then(|entry| entry.waiting.as_mut()) {
            Some(waiting) => {
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}
