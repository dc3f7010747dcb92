//! Three limits on every request: 10 a second and 1000 an hour for each user, and 25 a minute for the whole tenant. All
//! of them admit a request, or none is charged.
//!
//! ```text
//! cargo run -p tidegate-examples --bin three_limits
//! ```

use std::error::Error;

use tidegate_core::{Charge, Key, Limit, MemoryStore, Outcome, RuleId, Verdict};

struct Api {
    store: MemoryStore,
    per_second: (RuleId, Limit),
    per_hour: (RuleId, Limit),
    per_tenant: (RuleId, Limit),
}

/// The remainder of a user and of the tenant.
#[derive(Debug, PartialEq)]
struct Left {
    this_second: u64,
    this_hour: u64,
    tenant: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let api = Api {
        store: MemoryStore::new(),
        per_second: (RuleId::new("user-second"), "10/s".parse()?),
        per_hour: (RuleId::new("user-hour"), "1000/h".parse()?),
        per_tenant: (RuleId::new("tenant-minute"), "25/min".parse()?),
    };
    let alice = api.send("alice", 12)?;
    let bob = api.send("bob", 10)?;
    let carol = api.send("carol", 8)?;

    assert_eq!(alice, Left { this_second: 0, this_hour: 990, tenant: 15 }, "ten allowed, then the second was full");
    assert_eq!(bob, Left { this_second: 0, this_hour: 990, tenant: 5 }, "Bob has separate limits");
    assert_eq!(
        carol,
        Left { this_second: 5, this_hour: 995, tenant: 0 },
        "the tenant's limit ran out: five were charged"
    );
    println!("Denied requests were not charged.");
    Ok(())
}

impl Api {
    /// Sends `times` requests at once, and returns what is left.
    fn send(&self, user: &str, times: usize) -> Result<Left, Box<dyn Error>> {
        let (user_key, tenant_key) = (Key::of(["acme", user]), Key::from("acme"));
        let charges = [
            Charge::new(&self.per_second.0, &user_key, &self.per_second.1),
            Charge::new(&self.per_hour.0, &user_key, &self.per_hour.1),
            Charge::new(&self.per_tenant.0, &tenant_key, &self.per_tenant.1),
        ];
        let answers = (0..times).map(|_| self.store.decide(&charges)).collect::<Result<Vec<_>, _>>()?;
        let left = self.store.peek(&charges.map(|charge| charge.cost(0)));

        let allowed = answers.iter().filter(|answer| answer.is_allowed()).count();
        println!("{user} sends {times}: {allowed} allowed, {} denied", times - allowed);
        if let Some(denied) = answers.iter().find(|answer| !answer.is_allowed()) {
            if let Outcome::Deny { retry_after } = Verdict::of(&denied.decisions).outcome {
                println!("  verdict: retry after {} ms", retry_after.as_millis_ceil());
            }
            for (charge, _) in Verdict::refusals(&charges, &denied.decisions) {
                println!("  denied by {}: {} for {:?}", charge.rule, charge.limit, charge.key);
            }
        }
        let left = Left { this_second: left[0].remaining, this_hour: left[1].remaining, tenant: left[2].remaining };
        println!(
            "  left: {} this second, {} this hour, {} for the tenant\n",
            left.this_second, left.this_hour, left.tenant
        );
        Ok(left)
    }
}
