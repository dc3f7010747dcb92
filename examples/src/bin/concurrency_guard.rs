//! At most three concurrent exports for a tenant. A permit holds a slot: dropping it releases the slot, even if the
//! thread panics.
//!
//! ```text
//! cargo run -p tidegate-examples --bin concurrency_guard
//! ```

use std::error::Error;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tidegate_core::gate::{Permit, Refusal};
use tidegate_core::{Gate, SystemClock};

const SLOTS: usize = 3;
/// The `ttl` of the limit, which is the lease of a slot.
const JOBS: usize = 12;

#[derive(Default)]
struct Exports {
    running: AtomicUsize,
    peak: AtomicUsize,
    done: AtomicUsize,
    turned_away: AtomicUsize,
}

impl Exports {
    /// Waits for a slot. A denial's retry-after is the end of the first lease, which matters if its holder has crashed.
    /// Other holders release their slots much sooner, so this retries before that.
    fn slot(&self, gate: &Gate) -> Result<Permit<SystemClock>, Refusal> {
        loop {
            match gate.slot("acme") {
                Err(Refusal::Denied(_)) => self.turned_away.fetch_add(1, Ordering::Relaxed),
                permit_or_failure => return permit_or_failure,
            };
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn export(&self, gate: &Gate) -> Result<(), Refusal> {
        let _slot = self.slot(gate)?;
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(running, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let gate = Gate::new("concurrent 3 ttl 30s".parse()?);
    let exports = Exports::default();
    thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS).map(|_| scope.spawn(|| exports.export(&gate))).collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("no export panics"))
    })?;
    let (done, peak) = (exports.done.into_inner(), exports.peak.into_inner());
    println!("{done} exports done, at most {peak} at once, denied {} times", exports.turned_away.into_inner());
    assert!(done == JOBS && peak <= SLOTS);

    let crashed = thread::scope(|scope| {
        let job = scope.spawn(|| {
            let _slot = gate.slot("acme");
            resume_unwind(Box::new(gate.peek("acme").remaining)); // A panic, but for the message on the screen.
        });
        job.join()
    });
    let free_meanwhile = crashed.expect_err("it panics").downcast_ref().copied();
    let free = gate.peek("acme").remaining;
    println!("after an export that panicked {free} of {SLOTS} slots are free");
    assert_eq!((free_meanwhile, free), (Some(2_u64), 3));
    Ok(())
}
