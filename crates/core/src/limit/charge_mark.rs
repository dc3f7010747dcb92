//! The position of a charge in a key's state.

/// The position of a charge in a key's state, needed to refund it. Only the limit that made the charge can read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChargeMark(pub u64, pub u64);
