//! Tests every interleaving of threads that take tokens, put them back, and start versions.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::cell::{Cell, Taken};
use crate::time::Timestamp;

const SOON: Timestamp = Timestamp::from_micros(10);
const LATER: Timestamp = Timestamp::from_micros(20);

fn cell_with(tokens: u64, end: Timestamp) -> Arc<Cell> {
    let cell = Cell::new();
    cell.start_version(end, |_| tokens);
    Arc::new(cell)
}

fn take(cell: &Cell, cost: u64) -> Option<Taken> {
    cell.take(cost, || Timestamp::EPOCH)
}

#[test]
fn loom_no_token_is_taken_twice() {
    loom::model(|| {
        let cell = cell_with(3, SOON);
        let takers = [1, 2].map(|cost| {
            let cell = Arc::clone(&cell);
            thread::spawn(move || take(&cell, cost).map_or(0, |taken| taken.tokens))
        });
        let own = take(&cell, 1).map_or(0, |taken| taken.tokens);
        let taken: u64 = takers.map(|taker| taker.join().unwrap()).iter().sum();
        assert_eq!(own + taken + cell.tokens(Timestamp::EPOCH), 3);
    });
}

#[test]
fn loom_a_report_counts_every_token_that_stays_taken() {
    loom::model(|| {
        let cell = cell_with(2, SOON);
        let (spender, undecided) = (Arc::clone(&cell), Arc::clone(&cell));
        let spender = thread::spawn(move || take(&spender, 1).map_or(0, |taken| taken.tokens));
        let undecided = thread::spawn(move || match take(&undecided, 1) {
            // A token that cannot be put back stays taken.
            Some(taken) if !undecided.put_back(taken) => 1,
            _ => 0,
        });
        // The owner reports the difference as spent and keeps the rest.
        let left = cell.start_version(SOON, |tokens| tokens);
        let reported = 2 - left;
        let (spent, abandoned) = (spender.join().unwrap(), undecided.join().unwrap());
        let spent_since = left - cell.tokens(Timestamp::EPOCH);
        assert_eq!(reported + spent_since, spent + abandoned);
    });
}

#[test]
fn loom_tokens_are_taken_before_the_end_of_their_own_version() {
    loom::model(|| {
        // The first version has one token, which ends soon. The second version has two more, and a later end.
        let cell = cell_with(1, SOON);
        let first = cell.version();
        let now = Arc::new(AtomicU64::new(0));
        let (taker, clock) = (Arc::clone(&cell), Arc::clone(&now));
        let taker = thread::spawn(move || {
            let read = std::cell::Cell::new(0);
            let taken = taker.take(1, || {
                read.set(clock.load(Ordering::SeqCst));
                Timestamp::from_micros(read.get())
            });
            taken.map(|taken| (taken.version, read.get()))
        });
        now.store(SOON.as_micros(), Ordering::SeqCst);
        cell.start_version(LATER, |_| 2);
        now.store(LATER.as_micros(), Ordering::SeqCst);
        cell.start_version(Timestamp::from_micros(30), |_| 3);
        if let Some((version, at)) = taker.join().unwrap() {
            let end = [SOON.as_micros(), LATER.as_micros(), 30][usize::try_from(version - first).unwrap()];
            assert!(at < end, "version {version} at {at}");
        }
    });
}

#[test]
fn loom_a_token_put_back_meets_a_refill() {
    loom::model(|| {
        let cell = cell_with(1, SOON);
        let undecided = Arc::clone(&cell);
        let undecided = thread::spawn(move || match take(&undecided, 1) {
            Some(taken) => u64::from(!undecided.put_back(taken)),
            None => 0,
        });
        let left = cell.start_version(LATER, |tokens| tokens + 5);
        let abandoned = undecided.join().unwrap();
        assert_eq!((cell.tokens(Timestamp::EPOCH), abandoned), (left + 5, 1 - left));
    });
}
