//! A tour of decisions in memory with the system clock: the outcome, the remainder and the time to wait.
//!
//! ```text
//! cargo run -p tidegate-examples --bin quickstart
//! ```

use std::error::Error;
use std::thread;

use tidegate_core::{Gate, Micros, Outcome};

const EVERY_ALGORITHM: [(&str, &str); 8] = [
    ("3/min", "token bucket: one comes back every 20 s"),
    ("gcra 3/min", "the same decisions, from one timestamp"),
    ("meter 3/min", "leaky bucket that refuses: the same again"),
    ("shaper 3/min", "leaky bucket that delays: one leaves every 20 s"),
    ("fixed 3/min", "all come back when the minute ends"),
    ("sliding 3/min", "the last minute fades as this one passes"),
    ("log 3/min", "exact: each comes back a minute after it went"),
    ("concurrent 3 ttl 10s", "three at once: a slot that is never released expires after 10 s"),
];

const NEXT: &str = "\
Look next at
  docs/choosing-an-algorithm.md                            which limit for what, with worked cases
  cargo run -p tidegate-examples --bin three_limits        several limits on one request, all or none
  cargo run -p tidegate-examples --bin llm_budget          reserve an estimate, settle at the real cost
  cargo run -p tidegate-examples --bin concurrency_guard   at most so many at once, even after a panic
  cargo run -p tidegate-examples --bin shaping             outbound calls at a steady pace";

fn main() -> Result<(), Box<dyn Error>> {
    println!("5/s burst 3: up to three at once, and five a second, for each key by itself\n");
    let gate = Gate::new("5/s burst 3".parse()?);
    let at_once = [1, 2, 3, 4].map(|_| gate.check("alice"));
    thread::sleep(at_once[3].retry_after().ok_or("the fourth is denied")?.into());
    let (later, bob, too_much) = (gate.check("alice"), gate.check_cost("bob", 2), gate.check_cost("bob", 4));
    for decision in at_once {
        println!("  alice takes 1   {:<24} {} of 3 left", answer(decision.outcome), decision.remaining);
    }
    println!("  alice waits that long");
    for (who, decision) in [("alice takes 1", later), ("bob   takes 2", bob), ("bob   takes 4", too_much)] {
        println!("  {who}   {:<24} {} of 3 left", answer(decision.outcome), decision.remaining);
    }

    println!("\nFour requests at once, by every algorithm; \"no, 20 s\": denied, and asking again in 20 s succeeds\n");
    for (notation, why) in EVERY_ALGORITHM {
        let gate = Gate::new(notation.parse()?);
        let outcomes = [1, 2, 3, 4].map(|_| gate.check("alice").outcome);
        let [first, second, third, fourth] = outcomes.map(in_short);
        println!("  {notation:<21} {first:<4} {second:<8} {third:<8} {fourth:<9} {why}");
        assert!(matches!(outcomes[3], Outcome::Deny { .. }), "{notation}: {outcomes:?}");
    }
    println!("\n{NEXT}");
    assert!(later.is_allowed(), "waiting for the retry-after is enough");
    assert_eq!(too_much.outcome, Outcome::TooLarge { max: 3 }, "what never fits is not worth a retry");
    Ok(())
}

fn answer(outcome: Outcome) -> String {
    match outcome {
        Outcome::Allow { .. } => "allowed".to_owned(),
        Outcome::Deny { retry_after } => format!("denied, retry in {}", span(retry_after)),
        Outcome::TooLarge { max } => format!("never, at most {max} fit"),
    }
}

fn in_short(outcome: Outcome) -> String {
    match outcome {
        Outcome::Allow { delay } if delay.is_zero() => "yes".to_owned(),
        Outcome::Allow { delay } => format!("in {}", span(delay)),
        Outcome::Deny { retry_after } => format!("no, {}", span(retry_after)),
        Outcome::TooLarge { .. } => "never".to_owned(),
    }
}

fn span(span: Micros) -> String {
    let (millis, secs) = (span.as_millis_ceil(), span.as_secs_ceil());
    if millis < 1_000 { format!("{millis} ms") } else { format!("{secs} s") }
}
