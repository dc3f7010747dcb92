//! Templates that make HTML.

use super::{Escape, Pieces, Template, TemplateError, placeholder};

/// The state of the HTML scanner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Text,
    /// In a tag, outside quotes.
    Tag,
    /// In the value of an attribute that ends with this quote.
    Quoted(u8),
    /// In an element whose text is code.
    Code(&'static str),
}

/// Elements in which text is not text.
const CODE: [&str; 2] = ["script", "style"];

pub(super) fn read(text: &str) -> Result<Template, TemplateError> {
    let (mut pieces, mut place, mut at) = (Pieces::default(), Place::Text, 0);
    // The element that the present tag opens, if its text is code.
    let mut opens = None;
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        if bytes[at..].starts_with(b"{{") {
            if let Place::Code(element) = place {
                // Code has braces of its own.
                if placeholder(text, at).is_ok() {
                    let help = "put it into the attribute of an element, such as `data-wait=\"{{retry_after}}\"`, and read it there";
                    return Err(TemplateError::at(text, at, format!("a placeholder within `<{element}>`"), help));
                }
                at += 2;
                continue;
            }
            let found = placeholder(text, at)?;
            if place == Place::Tag {
                let help = "write it in quotes, such as `title=\"{{detail}}\"`";
                return Err(TemplateError::at(text, at, "a placeholder within a tag that is not in quotes", help));
            }
            pieces.push(text, at, &found, Escape::Html);
            at = found.end;
            continue;
        }
        match (place, byte) {
            (Place::Text, b'<') if bytes[at..].starts_with(b"<!--") => {
                // A value in a comment cannot end it: `>` is escaped.
            }
            (Place::Text, b'<')
                if bytes.get(at + 1).is_some_and(|next| next.is_ascii_alphabetic() || b"/!".contains(next)) =>
            {
                opens = CODE.into_iter().find(|name| begins_with(&bytes[at + 1..], name));
                place = Place::Tag;
            }
            (Place::Tag, b'"' | b'\'') => place = Place::Quoted(byte),
            (Place::Quoted(quote), _) if byte == quote => place = Place::Tag,
            (Place::Tag, b'>') => place = opens.take().map_or(Place::Text, Place::Code),
            (Place::Code(name), b'<') if bytes.get(at + 1) == Some(&b'/') && begins_with(&bytes[at + 2..], name) => {
                place = Place::Tag;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(pieces.finish(text))
}

/// Whether a tag's name is this one.
fn begins_with(bytes: &[u8], name: &str) -> bool {
    bytes.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
        && !bytes.get(name.len()).is_some_and(u8::is_ascii_alphanumeric)
}

/// Writes text as it may stand in an element or in a quoted attribute.
pub(super) fn escape(into: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&#39;"),
            character if character.is_control() => into.push('\u{FFFD}'),
            character => into.push(character),
        }
    }
}
