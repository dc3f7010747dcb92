//! Write-behind: every node decides by its own copy of a shared limit, and reports the sum of its admissions a moment
//! later.
//!
//! A request that a copy decides does not wait for the store, not even the first one of a key. In return a fleet can admit a little more than the limit, and
//! the rule states how much: [`WriteBehind`] is its choice. The types here are pure: they get instants passed in, and neither
//! wait nor send.
//!
//! - [`WriteBehind`]: a rule's choice, and what follows from it for a fleet of *n* nodes.
//! - [`LocalCopy`]: a node's copy of one key. It decides requests, makes reports, and is updated by their answers.
//!
//! # The bound
//! Let *m* be the maximum that a node may have admitted and not reported, per key. Costs in a report without an answer
//! count as not reported. With *n* nodes that share *p* percent of a limit of *B*, *m = ⌊p·B / n⌋*, and the fleet admits in
//! any interval at most *n·m ≤ p·B* more than the limit.
//!
//! *Proof.* Let *D* be the debt of the key in the store. A copy decides by the store's last answer. The store itself also
//! decides requests, by its present state. Of all admissions so far, take the one that was decided by the latest state of
//! the store, as it was at an instant *a*. That admission fitted: the sum of *D(a)*, drained since then, and all that its
//! node had not reported was at most *B*. No other node has made a decision by a later state. So if node *j* admitted
//! something that is not part of *D(a)*, it was not reported, or in a report without an answer, when *j* last admitted a
//! request; this is at most *m*. Draining only lowers the sum, and the store charges a report later than the request was
//! admitted, so its debt is never too low. ∎
//!
//! A copy drains from the instant of the store's answer, which is later than the instant that the answer describes. It
//! drains by a clock that may drift by one part in 1024. A copy can be arbitrarily old: the proof does not depend on how
//! often nodes report.
//!
//! # Faults
//! | event | more than the limit, beyond *n·m* |
//! |---|---|
//! | the store is unavailable | 0: a node that has *m* unreported stops deciding |
//! | an answer is lost | 0 until the limit has recovered once: what was sent is never sent again, and uses up the allowance for that time. If the report did not run, its costs after that |
//! | a node crashes or stops, is cut off for so long that the others do not count it any more, or starts and knows nothing of a key | *m* each |
//! | a limit changes | 0: a copy asks the store until it has answered a report under the new limit. A request or a report under a smaller limit before cuts the debt of a key to twice its burst, as without write-behind |
//! | nodes join | *m* each, if the others do not know of them yet |

#[cfg(test)]
mod changing_fleets;
mod local_copy;
mod setting;
#[cfg(test)]
mod tests;

pub use local_copy::{LocalAnswer, LocalCopy, Noted};
pub use setting::WriteBehind;
