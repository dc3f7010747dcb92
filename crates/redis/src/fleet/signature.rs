//! Signatures of changes: author and time.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidegate_core::Timestamp;

/// The author of a change, and its time by the clock of Redis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The author.
    pub who: String,
    /// The time.
    #[serde(serialize_with = "write_instant", deserialize_with = "read_instant")]
    pub at: Timestamp,
}

pub(super) fn write_instant<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(at.as_micros())
}

pub(super) fn read_instant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    u64::deserialize(deserializer).map(Timestamp::from_micros)
}
