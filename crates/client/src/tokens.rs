//! Estimated costs of requests.

/// The number of tokens of a language model that a request will use, as an extension of the request. The pace uses it for
/// limits on tokens.
///
/// A request without it counts as one token, so it is delayed only when nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens(pub u64);
