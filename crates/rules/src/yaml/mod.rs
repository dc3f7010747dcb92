//! YAML as a tree whose every node knows where it stands.
//!
//! Files are not read straight into the types that rules and settings are made of: that would stop at the first mistake.
//! They become a tree first ([`Source`]), and what is read from the tree collects every mistake in it ([`Reader`]), each
//! with its place and what to write instead ([`Diagnostic`]).

mod diagnostic;
mod fault;
mod node;
mod reader;
mod source;
mod tree;

pub(crate) use diagnostic::MOST_FINDINGS;
pub use diagnostic::{Diagnostic, Diagnostics, Place, Severity};
pub use node::{Map, Name, Node, Position, Value};
pub(crate) use reader::one_of;
pub use reader::{Fields, Reader};
pub use source::{LARGEST_FILE, Source};

pub use tidegate_core::notation::closest;
