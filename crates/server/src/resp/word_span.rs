//! Positions of the words of a request.

use smallvec::SmallVec;

/// Position of a word, relative to the start of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WordSpan {
    pub(super) begin: usize,
    pub(super) end: usize,
}

/// Positions of all words of a request.
pub(super) type Spans = SmallVec<[WordSpan; 8]>;
