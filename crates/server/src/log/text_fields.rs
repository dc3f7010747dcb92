//! Fields of events in text logs.

use std::fmt::{self, Debug};

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Writes fields as `name=value`. Values of several words are quoted, to mark their end.
pub(super) fn text_fields() -> impl for<'w> FormatFields<'w> + 'static {
    debug_fn(write_field).delimited(" ")
}

fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let text = format!("{value:?}");
    match field.name() {
        "message" => writer.write_str(&text),
        name if is_ambiguous(&text) => write!(writer, "{name}={text:?}"),
        name => write!(writer, "{name}={text}"),
    }
}

/// Whether the end of a value would be ambiguous. Text is quoted already, and lists have brackets.
fn is_ambiguous(value: &str) -> bool {
    value.contains(char::is_whitespace) && !value.starts_with(['"', '[', '{'])
}

#[cfg(test)]
mod tests {
    use super::is_ambiguous;

    #[test]
    fn values_of_several_words_are_quoted() {
        for (value, expected) in
            [("10 rules", true), ("a", false), (r#""two words""#, false), ("[1, 2]", false), ("a\tb", true)]
        {
            assert_eq!(is_ambiguous(value), expected, "{value}");
        }
    }
}
