//! A budget of model tokens: reserve an estimate before the call, settle at the actual usage. Calls that run at the
//! same time cannot overdraw the budget together, and a call that fails costs nothing.
//!
//! ```text
//! cargo run -p tidegate-examples --bin llm_budget
//! ```

use std::error::Error;
use std::time::Duration;

use tidegate_core::gate::Refusal;
use tidegate_core::{Gate, Settlement};

/// The lifetime of a reservation: longer than any call takes.
const OPEN: Duration = Duration::from_secs(120);

struct Model;

impl Model {
    /// Simulates an answer, and returns the number of tokens used.
    fn complete(prompt: &str, most: u64) -> Result<u64, &'static str> {
        if prompt.is_empty() { Err("the model does not answer") } else { Ok(most.min(prompt.len() as u64 * 40)) }
    }
}

fn ask(budget: &Gate, prompt: &str, estimate: u64) -> Result<Settlement, Box<dyn Error>> {
    let permit = budget.reserve("acme", estimate, OPEN)?;
    let used = Model::complete(prompt, 3_000)?; // An error ends the call here: the permit gives all of it back.
    Ok(permit.settle(&[used]))
}

fn main() -> Result<(), Box<dyn Error>> {
    let budget = Gate::new("10_000/day".parse()?);
    let left = |after: &str| {
        let left = budget.peek("acme").remaining;
        println!("{left:>6} tokens left   {after}");
        left
    };
    assert_eq!(left("at the start"), 10_000);

    assert_eq!(ask(&budget, "Name a tide.", 2_000)?, Settlement::Settled { given_back: 1_520, charged: 0 });
    assert_eq!(left("after a call estimated at 2000 that used 480"), 9_520);

    assert_eq!(ask(&budget, &"Tides? ".repeat(5), 1_000)?, Settlement::Settled { given_back: 0, charged: 400 });
    assert_eq!(left("after a call estimated at 1000 that used 1400"), 8_120);

    assert!(ask(&budget, "", 5_000).is_err());
    assert_eq!(left("after a call estimated at 5000 that failed"), 8_120);

    // The estimates of two calls in flight are reserved, so a third call is denied before it costs anything.
    let (first, second) = (budget.reserve("acme", 4_000, OPEN)?, budget.reserve("acme", 4_000, OPEN)?);
    assert_eq!(left("while two calls estimated at 4000 each are in flight"), 120);
    let Err(Refusal::Denied(decision)) = budget.reserve("acme", 4_000, OPEN) else { panic!("there is no room for it") };
    assert_eq!(decision.remaining, 120);
    let receipt = first.into_receipt().ok_or("it holds 4000")?;
    assert_eq!(budget.store().settle(&receipt, &[2_500]), Settlement::Settled { given_back: 1_500, charged: 0 });
    assert_eq!(budget.store().settle(&receipt, &[0]), Settlement::Gone, "a receipt settles once");
    drop(second);
    assert_eq!(left("after one used 2500 and the other was abandoned"), 5_620);
    Ok(())
}
