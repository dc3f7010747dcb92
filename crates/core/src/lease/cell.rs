//! The cell that requests take leased tokens from, without a lock.

use super::sync::{AtomicU64, Ordering};
use crate::time::Timestamp;

/// The bits of the word that count tokens. The others are the version.
const TOKEN_BITS: u32 = 40;
const TOKENS: u64 = (1 << TOKEN_BITS) - 1;

/// Leased tokens and the instant at which they end.
///
/// Any number of threads take tokens and put them back. One at a time, the owner of the [holding](super::Holding), starts a new
/// version: with more tokens, with fewer, or with another end.
// The word holds the tokens and the version, and every change is one compare-and-swap of it. The end does not fit into the word.
// It is written before the version that it belongs to is published, into the one of two places that the version before it does not
// use. A thread that reads an end which is already that of a later version fails to swap the word, whose version has changed.
#[derive(Debug)]
pub struct Cell {
    word: AtomicU64,
    ends: [AtomicU64; 2],
}

/// The proof that tokens were taken, with which they can be put back.
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

/// The next version, with so many tokens. Versions come again after 2^24, which is days later even with a hundred a second.
const fn next(word: u64, tokens: u64) -> u64 {
    (version(word) + 1) << TOKEN_BITS | tokens
}

impl Cell {
    pub(super) fn new() -> Cell {
        Cell { word: AtomicU64::new(0), ends: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// Takes `cost` tokens, if so many are there and have not ended. `clock` is read after the tokens were found: a request that is
    /// delayed on the way, even for as long as the machine sleeps, does not get tokens that have ended meanwhile.
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

    /// Puts tokens back that were taken for a request which another limit has denied. Returns whether that was possible: in a later
    /// version they are reported as spent already, and stay so.
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

    /// The tokens that are not taken, those that have ended included.
    #[must_use]
    pub fn unspent(&self) -> u64 {
        tokens(self.word.load(Ordering::Acquire))
    }

    /// The end of the tokens. For the owner only: while a new version starts, it may be that of another one.
    #[must_use]
    pub fn end(&self) -> Timestamp {
        let word = self.word.load(Ordering::Acquire);
        Timestamp::from_micros(self.end_of(version(word)).load(Ordering::Relaxed))
    }

    /// Starts a version with `change(tokens)` tokens that end at `end`, and returns the tokens before. For the owner only.
    pub(super) fn start_version(&self, end: Timestamp, change: impl Fn(u64) -> u64) -> u64 {
        let mut word = self.word.load(Ordering::Acquire);
        // Only the owner changes the version, so this is the place that the present one does not use.
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
