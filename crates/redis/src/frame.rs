//! One request, as it travels.

/// One request for one server.
///
/// In a cluster all its keys lie in one hash slot; elsewhere they may be any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The names of the keys that it may touch.
    pub keys: Vec<Vec<u8>>,
    /// What the script is to do with them. Begins with how many keys there are.
    pub body: Vec<u8>,
}
