//! The cell from which requests take leased tokens, without a lock.

use super::sync::{AtomicU64, Ordering};
use crate::time::Timestamp;

/// Number of bits of the word that count tokens. The other bits are the version.
const TOKEN_BITS: u32 = 40;
const TOKENS: u64 = (1 << TOKEN_BITS) - 1;

/// Leased tokens and the instant at which they end.
///
/// Any number of threads take tokens and put them back. Only one thread at a time, the owner of the
/// [holding](super::Holding), starts a new version, which changes the number of tokens or their end.
// The word contains the tokens and the version, and every change is one compare-and-swap of it. The end does not fit into
// the word. There are two places for it, used by alternate versions: the end is written to the place that the present
// version does not use, and then its version is published. If a thread reads the end of a later version, its swap fails,
// because the version in the word has changed.
#[derive(Debug)]
pub struct Cell {
    word: AtomicU64,
    ends: [AtomicU64; 2],
}

/// Proof that tokens were taken, which is needed to put them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "tokens of a request that another limit denies are put back with it"]
pub struct Taken {
    pub(super) tokens: u64,
    pub(super) version: u64,
}

const fn version(word: u64) -> u64 {
    word >> TOKEN_BITS
}

const fn tokens(word: u64) -> u64 {
    word & TOKENS
}

/// The word of the next version, with this many tokens. Version numbers repeat after 2^24 versions: about two days at a
/// hundred versions per second.
const fn next(word: u64, tokens: u64) -> u64 {
    (version(word) + 1) << TOKEN_BITS | tokens
}

impl Cell {
    pub(super) fn new() -> Cell {
        Cell { word: AtomicU64::new(0), ends: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// Takes `cost` tokens, if there are that many and they have not ended. The clock is read after the tokens were found:
    /// a request that is delayed in between, even while the machine sleeps, does not get tokens that have ended since.
    #[inline]
    pub fn take(&self, cost: u64, clock: impl Fn() -> Timestamp) -> Option<Taken> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let left = tokens(word).checked_sub(cost)?;
            let end = self.end_of(version(word)).load(Ordering::Acquire);
            if clock().as_micros() >= end {
                return None;
            }
            let after = word - tokens(word) + left;
            match self.word.compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(Taken { tokens: cost, version: version(word) }),
                Err(present) => word = present,
            }
        }
    }

    /// Puts back the tokens of a request that another limit has denied. Returns whether that was possible. If a new version
    /// has started, the tokens have already been reported as spent, and remain so.
    pub fn put_back(&self, taken: Taken) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        while version(word) == taken.version {
            match self.word.compare_exchange_weak(word, word + taken.tokens, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(present) => word = present,
            }
        }
        false
    }

    /// The tokens that can be taken at `now`.
    #[must_use]
    pub fn tokens(&self, now: Timestamp) -> u64 {
        let word = self.word.load(Ordering::Acquire);
        let end = self.end_of(version(word)).load(Ordering::Acquire);
        if now.as_micros() < end { tokens(word) } else { 0 }
    }

    /// The tokens that are not taken, including those that have ended.
    #[must_use]
    pub fn unspent(&self) -> u64 {
        tokens(self.word.load(Ordering::Acquire))
    }

    /// The end of the tokens. Only for the owner: in other threads, this may be the end of another version while a new one
    /// starts.
    #[must_use]
    pub fn end(&self) -> Timestamp {
        let word = self.word.load(Ordering::Acquire);
        Timestamp::from_micros(self.end_of(version(word)).load(Ordering::Relaxed))
    }

    /// Starts a version with `change(tokens)` tokens that end at `end`, and returns the previous number of tokens. Only for
    /// the owner.
    pub(super) fn start_version(&self, end: Timestamp, change: impl Fn(u64) -> u64) -> u64 {
        let mut word = self.word.load(Ordering::Acquire);
        // Only the owner changes the version, so the present version does not use this place.
        self.end_of(version(word) + 1).store(end.as_micros(), Ordering::Release);
        loop {
            let after = next(word, change(tokens(word)).min(TOKENS));
            match self.word.compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return tokens(word),
                Err(present) => word = present,
            }
        }
    }

    #[inline]
    const fn end_of(&self, version: u64) -> &AtomicU64 {
        &self.ends[(version % 2) as usize]
    }

    #[cfg(test)]
    pub(super) fn version(&self) -> u64 {
        version(self.word.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(tidegate_loom)))]
impl Clone for Cell {
    fn clone(&self) -> Cell {
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        Cell { word: copy(&self.word), ends: self.ends.each_ref().map(copy) }
    }
}
