//! A report, for people and for programs.

mod csv;
mod html;
mod text;
mod words;

pub use csv::csv;
pub use html::html;
pub use text::text;
