//! Outbound calls to a partner that accepts at most 50 a second, evenly spaced: all callers ask at once, and each waits
//! for the delay in its decision.
//!
//! ```text
//! cargo run -p tidegate-examples --bin shaping
//! ```

use std::error::Error;
use std::thread;

use tidegate_core::{Clock, Gate, Micros, Outcome, SystemClock};

const CALLS: u64 = 10;
const APART: Micros = Micros::from_millis(20);

fn main() -> Result<(), Box<dyn Error>> {
    let gate = Gate::new("shaper 50/s queue 10".parse()?);
    let clock = SystemClock::new();
    let start = clock.now();

    let decisions: Vec<_> = (0..CALLS).map(|_| gate.check("partner")).collect();
    let one_too_many = gate.check("partner");

    let left_at: Vec<Micros> = thread::scope(|scope| {
        let callers: Vec<_> = decisions
            .iter()
            .map(|decision| {
                scope.spawn(|| {
                    thread::sleep(decision.delay().into());
                    SystemClock::new().now().since(start) // The call to the partner would be made here.
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().expect("no caller panics")).collect()
    });

    for (number, (decision, left_at)) in decisions.iter().zip(&left_at).enumerate() {
        let (delay, left_at) = (decision.delay().as_millis_ceil(), left_at.as_millis_ceil());
        println!("call {number:>2}   delayed by {delay:>3} ms   left after {left_at:>3} ms");
    }
    let Outcome::Deny { retry_after } = one_too_many.outcome else { panic!("the queue holds ten") };
    println!("call 10   queue full, room in {} ms", retry_after.as_millis_ceil());

    for (number, left_at) in (0..).zip(&left_at) {
        let due = number * APART.get();
        // The system clock may be slewed against the timer: a millisecond covers that.
        assert!(left_at.get() + 1_000 >= due, "call {number} left {left_at} after the start, before its turn");
    }
    assert!(retry_after <= APART);
    println!("Calls requested at once left {} ms apart, and none before its turn.", APART.as_millis_ceil());
    Ok(())
}
