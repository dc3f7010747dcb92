//! JSON templates.

use serde::de::IgnoredAny;

use super::{Escape, Pieces, Template, TemplateError, placeholder};

pub(super) fn read(text: &str) -> Result<Template, TemplateError> {
    let (mut pieces, mut is_in_string, mut at) = (Pieces::default(), false, 0);
    // A copy of the same length with a sample value in place of each placeholder, so that error offsets are those of the
    // text.
    let mut sample = text.as_bytes().to_vec();
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        if bytes[at..].starts_with(b"{{") {
            let found = placeholder(text, at)?;
            let escape = if is_in_string { Escape::JsonText } else { Escape::JsonValue };
            pieces.push(text, at, &found, escape);
            sample[at..found.end].fill(if is_in_string { b'x' } else { b' ' });
            if !is_in_string {
                sample[at] = b'0';
            }
            at = found.end;
            continue;
        }
        match byte {
            b'\\' if is_in_string => at += 1,
            b'"' => is_in_string = !is_in_string,
            _ => {}
        }
        at += 1;
    }
    match serde_json::from_slice::<IgnoredAny>(&sample) {
        Ok(_) => Ok(pieces.finish(text)),
        Err(error) => Err(not_json(text, &error)),
    }
}

#[cold]
fn not_json(text: &str, error: &serde_json::Error) -> TemplateError {
    let start: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    // serde_json counts columns in bytes, and reports column 0 for an empty line.
    let mut offset = (start + error.column().saturating_sub(1)).min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let message = error.to_string();
    let problem = message.split(" at line ").next().unwrap_or_default();
    let help = "outside a string, a placeholder is a whole value: `\"wait\": {{retry_after}}`";
    TemplateError::at(text, offset, format!("this is not JSON: {problem}"), help)
}

/// Escapes text for a JSON string.
pub(super) fn escape(into: &mut String, text: &str) {
    // Cannot fail: any text is a valid JSON string.
    let quoted = serde_json::to_string(text).unwrap_or_default();
    into.push_str(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default());
}
