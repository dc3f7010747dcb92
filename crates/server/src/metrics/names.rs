//! Counts under names that may come from clients.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::tally::OTHER;

/// The most names of a file's descriptors that are counted apart.
const MOST_WRITTEN: usize = 4_096;
/// The most names with values of requests in them that are counted apart.
const MOST_MADE_UP: usize = 1_024;
/// The longest name, in bytes. What is longer is counted with the others.
const LONGEST: usize = 256;

#[derive(Debug, Default)]
struct Count {
    within: AtomicU64,
    over: AtomicU64,
}

/// How often descriptors were within their limits and over them, by name.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Those that files give.
    written: RwLock<HashMap<Box<str>, Arc<Count>>>,
    /// Those that have values of requests in them.
    made_up: RwLock<HashMap<Box<str>, Arc<Count>>>,
    other: Count,
}

impl Count {
    fn add(&self, is_over: bool) {
        if is_over { &self.over } else { &self.within }.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        (self.within.load(Ordering::Relaxed), self.over.load(Ordering::Relaxed))
    }
}

impl Names {
    pub(super) fn new() -> Names {
        Names::default()
    }

    pub(super) fn count(&self, name: &str, is_made_up: bool, is_over: bool) {
        let (names, most) = if is_made_up { (&self.made_up, MOST_MADE_UP) } else { (&self.written, MOST_WRITTEN) };
        let known = names.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = known.get(name) {
            return count.add(is_over);
        }
        let is_full = known.len() >= most;
        drop(known);
        if is_full || name.len() > LONGEST {
            return self.other.add(is_over);
        }
        let mut known = names.write().unwrap_or_else(PoisonError::into_inner);
        // Others may have come in between.
        if known.len() >= most && !known.contains_key(name) {
            return self.other.add(is_over);
        }
        known.entry(name.into()).or_default().add(is_over);
    }

    /// All names, with how often they were within and over.
    pub(super) fn all(&self) -> Vec<(Box<str>, (u64, u64))> {
        let mut all: Vec<_> = [&self.written, &self.made_up]
            .iter()
            .flat_map(|names| {
                let names = names.read().unwrap_or_else(PoisonError::into_inner);
                names.iter().map(|(name, count)| (name.clone(), count.get())).collect::<Vec<_>>()
            })
            .collect();
        all.sort_unstable();
        if self.other.get() != (0, 0) {
            all.push((OTHER.into(), self.other.get()));
        }
        all
    }

    /// Starts over, so that what is gone makes room.
    pub(super) fn forget(&self) {
        for names in [&self.written, &self.made_up] {
            names.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_clients_make_up_are_bounded_and_leave_room_for_those_of_files() {
        let names = Names::new();
        for number in 0..100_000_u32 {
            names.count(&format!("d.key_{number}"), true, number % 2 == 0);
        }
        names.count(&"long".repeat(100), true, false);
        names.count("d.key", false, true);
        let all = names.all();
        assert_eq!(all.len(), MOST_MADE_UP + 2);
        let (within, over) = all.iter().fold((0, 0), |sum, (_, count)| (sum.0 + count.0, sum.1 + count.1));
        assert_eq!((within, over), (50_001, 50_001));
        assert!(all.contains(&("d.key".into(), (0, 1))));
    }
}
