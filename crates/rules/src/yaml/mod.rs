//! YAML as a tree in which every node has its position.
//!
//! Files are not deserialized directly into rules and settings, because that would stop at the first mistake. They are
//! parsed into a tree ([`Source`]), which is then read while every mistake is collected ([`Reader`]), each with its place
//! and how to correct it ([`Diagnostic`]).

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
pub use source::Source;

pub use tidegate_core::notation::closest;

/// The largest file that is read, in bytes.
pub const LARGEST_FILE: usize = 16 << 20;
