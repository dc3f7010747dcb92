//! Runs several threads that start together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::machine::{pin_to_core, preemptions};

/// The results of several threads.
pub struct Together<T> {
    /// Time from the start of the first thread to the end of the last.
    pub took: Duration,
    /// The return value of each thread.
    pub results: Vec<T>,
    /// Whether any thread was preempted.
    pub preempted: bool,
}

struct Run<T> {
    began: Instant,
    ended: Instant,
    preempted: bool,
    result: T,
}

/// Runs `work` on each of `threads` threads concurrently, each on a separate core.
///
/// # Panics
/// If one of them panics.
pub fn together<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Together<T> {
    let missing = AtomicUsize::new(threads);
    let run = |number| {
        pin_to_core(number);
        let preempted_before = preemptions();
        // Spinning, because a thread that sleeps at a barrier starts late.
        missing.fetch_sub(1, Ordering::SeqCst);
        while missing.load(Ordering::SeqCst) > 0 {
            std::hint::spin_loop();
        }
        let began = Instant::now();
        let result = work(number);
        let ended = Instant::now();
        Run { began, ended, preempted: preemptions() > preempted_before, result }
    };
    let runs: Vec<_> = std::thread::scope(|scope| {
        let run = &run;
        let handles: Vec<_> = (0..threads).map(|number| scope.spawn(move || run(number))).collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread panicked")).collect()
    });
    let began = runs.iter().map(|run| run.began).min().expect("at least one thread");
    let ended = runs.iter().map(|run| run.ended).max().expect("at least one thread");
    Together {
        took: ended - began,
        preempted: runs.iter().any(|run| run.preempted),
        results: runs.into_iter().map(|run| run.result).collect(),
    }
}

/// Runs `work` on one pinned thread.
pub fn alone<T: Send>(work: impl Fn() -> T + Sync) -> T {
    together(1, |_| work()).results.remove(0)
}

/// Like [`together`], repeated once if a thread was preempted.
pub fn undisturbed<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Together<T> {
    let first = together(threads, &work);
    if !first.preempted {
        return first;
    }
    let second = together(threads, &work);
    if second.took < first.took { second } else { first }
}
