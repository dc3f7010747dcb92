//! Finds numbers in JSON that arrives in pieces, without buffering it.

mod cost;
mod encoding;
mod events;
mod finder;
mod tree;
mod walker;

pub use cost::CostFinder;
pub use events::EventFinder;
pub use finder::FieldFinder;
