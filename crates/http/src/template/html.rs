//! HTML templates.

use super::{Escape, Pieces, Template, TemplateError, placeholder};

/// The context within HTML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HtmlContext {
    Text,
    /// In a tag, outside quotes.
    Tag,
    /// In an attribute value that ends with this quote.
    Quoted(u8),
    /// In an element whose content is code.
    Code(&'static str),
}

/// Elements whose content is code.
const CODE: [&str; 2] = ["script", "style"];

pub(super) fn read(text: &str) -> Result<Template, TemplateError> {
    let (mut pieces, mut context, mut at) = (Pieces::default(), HtmlContext::Text, 0);
    // The element that the current tag opens, if its content is code.
    let mut opens = None;
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        if bytes[at..].starts_with(b"{{") {
            if let HtmlContext::Code(element) = context {
                // Code may contain `{{` itself.
                if placeholder(text, at).is_ok() {
                    let help = "put it into the attribute of an element, such as `data-wait=\"{{retry_after}}\"`, and read it there";
                    return Err(TemplateError::at(text, at, format!("a placeholder within `<{element}>`"), help));
                }
                at += 2;
                continue;
            }
            let found = placeholder(text, at)?;
            if context == HtmlContext::Tag {
                let help = "write it in quotes, such as `title=\"{{detail}}\"`";
                return Err(TemplateError::at(text, at, "a placeholder within a tag that is not in quotes", help));
            }
            pieces.push(text, at, &found, Escape::Html);
            at = found.end;
            continue;
        }
        match (context, byte) {
            (HtmlContext::Text, b'<') if bytes[at..].starts_with(b"<!--") => {
                // A value in a comment cannot end it: `>` is escaped.
            }
            (HtmlContext::Text, b'<')
                if bytes.get(at + 1).is_some_and(|next| next.is_ascii_alphabetic() || b"/!".contains(next)) =>
            {
                opens = CODE.into_iter().find(|name| begins_with(&bytes[at + 1..], name));
                context = HtmlContext::Tag;
            }
            (HtmlContext::Tag, b'"' | b'\'') => context = HtmlContext::Quoted(byte),
            (HtmlContext::Quoted(quote), _) if byte == quote => context = HtmlContext::Tag,
            (HtmlContext::Tag, b'>') => context = opens.take().map_or(HtmlContext::Text, HtmlContext::Code),
            (HtmlContext::Code(name), b'<')
                if bytes.get(at + 1) == Some(&b'/') && begins_with(&bytes[at + 2..], name) =>
            {
                context = HtmlContext::Tag;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(pieces.finish(text))
}

/// Whether a tag has this name.
fn begins_with(bytes: &[u8], name: &str) -> bool {
    bytes.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes()))
        && !bytes.get(name.len()).is_some_and(u8::is_ascii_alphanumeric)
}

/// Escapes text for an element or a quoted attribute.
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
