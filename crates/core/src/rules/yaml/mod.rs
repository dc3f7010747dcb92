//! YAML as a tree whose every node knows where it stands.
//!
//! Files are not read straight into the types that rules are made of: that would stop at the first mistake. They become a
//! tree first, and what is read from the tree collects every mistake in it.

mod fault;
mod node;
mod reader;
mod source;
mod tree;

pub(super) use node::{Name, Node, Position, Value};
pub(super) use reader::{Fields, Reader, one_of};
pub(super) use source::{LARGEST_FILE, Source};
