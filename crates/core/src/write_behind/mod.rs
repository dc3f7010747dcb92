//! Write-behind: every node decides by its own copy of a shared limit, and reports the sums of what it admitted a moment later.
//!
//! No request waits for the store, not even the first one of a key. In return a fleet can admit a little more than the limit, and
//! the rule states how much: [`WriteBehind`] is its choice. The types here are pure: they get instants passed in, and neither
//! wait nor send.
//!
//! - [`WriteBehind`]: the choice of a rule, and what follows from it for a fleet of *n* nodes.
//! - [`LocalCopy`]: a node's copy of one key. It decides, says what to report, and learns from the answers.
//!
//! # The bound
//! Let *m* be the most that a node may have admitted and not reported, per key. Costs in a report without an answer count as not
//! reported. With *n* nodes that share *p* percent of a limit of *B*, *m = ⌊p·B / n⌋*, and the fleet admits in any interval at most
//! *n·m ≤ p·B* more than the limit.
//!
//! *Proof.* Let *D* be the debt of the key in the store. Of all admissions so far, take the one that was decided by the latest state of
//! the store, as it was at an instant *a*. A copy decides by the store's last answer; the store itself, which also decides requests
//! directly, by its present state. That admission fitted: *D(a)*, drained since, and all that its node had not reported, was at
//! most *B*. No other node has decided anything by a later state. So all that node *j* admitted and that is not part of *D(a)*
//! was not reported, or in a report without an answer, when *j* last admitted a request; and that is at most *m*. Draining only
//! lowers the sum, and the store charges a report later than the request was admitted, so its debt is never too low. ∎
//!
//! A copy drains from the instant of the store's answer, which is later than the one that the answer describes, and by a clock
//! that may drift by one part in 1024. A copy can be arbitrarily old: nothing in the proof depends on how often nodes report.
//!
//! # Faults
//! | event | more than the limit, beyond *n·m* |
//! |---|---|
//! | the store is unavailable | 0: a node that has *m* unreported stops deciding |
//! | an answer is lost | 0 until the limit has recovered once: what was sent is never sent again, and uses up the allowance for that time. If the report did not run, its costs after that |
//! | a node crashes, or starts and knows nothing of a key | *m* each |
//! | nodes join | *m* each, if the others do not know of them yet |

mod local_copy;
mod setting;
#[cfg(test)]
mod tests;

pub use local_copy::{LocalAnswer, LocalCopy, Noted};
pub use setting::WriteBehind;
