//! Estimated costs of requests.

/// The tokens of a language model that a request will use, as an extension of the request. The pace keeps limits on tokens by it.
///
/// A request without it counts as one token, so that it is held back only when nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens(pub u64);
