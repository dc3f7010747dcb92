//! Rendering of reports: text, HTML and CSV.

mod csv;
mod format;
mod html;
mod text;

pub use csv::csv;
pub use html::html;
pub use text::text;
