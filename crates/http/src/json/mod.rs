//! Numbers in JSON that comes in pieces, without keeping it.

mod events;
mod finder;
mod tree;

pub use events::EventFinder;
pub use finder::FieldFinder;
