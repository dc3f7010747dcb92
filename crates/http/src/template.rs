//! Templates for the bodies of denials: text with placeholders.
//!
//! `{{name}}` stands for a value, escaped for its context. In HTML that is text or the quoted value of an attribute. In
//! JSON it is part of a string or a whole value: `{"wait": {{retry_after}}, "text": "Wait {{retry_after}} s"}`.

mod html;
mod json;

use std::fmt::{self, Write};

use tidegate_rules::yaml::closest;

/// A body with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<TemplatePiece>,
}

/// A mistake in a template, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {problem}")]
pub struct TemplateError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The problem.
    pub problem: String,
    /// The suggested text.
    pub help: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePiece {
    Text(Box<str>),
    Value(TemplateField, Escape),
}

/// The value that a placeholder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateField {
    Rule,
    RetryAfter,
    Status,
    Reason,
    Type,
    Title,
    Detail,
    RequestId,
}

/// The context that a value is escaped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    Html,
    /// Part of a JSON string.
    JsonText,
    /// A whole JSON value.
    JsonValue,
}

/// The values of a denial that templates can show.
#[derive(Clone, Copy)]
pub(crate) struct TemplateValues<'a> {
    pub(crate) status: http::StatusCode,
    pub(crate) kind: &'a str,
    pub(crate) title: &'a str,
    pub(crate) detail: &'a dyn fmt::Display,
    /// The limit that denies, if it is visible to the client.
    pub(crate) rule: Option<&'a str>,
    /// Seconds to wait, if waiting helps.
    pub(crate) retry_after: Option<u64>,
    pub(crate) request_id: Option<&'a str>,
}

impl TemplateField {
    const ALL: [(&'static str, TemplateField); 8] = [
        ("rule", TemplateField::Rule),
        ("retry_after", TemplateField::RetryAfter),
        ("status", TemplateField::Status),
        ("reason", TemplateField::Reason),
        ("type", TemplateField::Type),
        ("title", TemplateField::Title),
        ("detail", TemplateField::Detail),
        ("request_id", TemplateField::RequestId),
    ];

    fn named(name: &str) -> Option<TemplateField> {
        TemplateField::ALL.iter().find(|(known, _)| *known == name).map(|(_, field)| *field)
    }

    const fn is_number(self) -> bool {
        matches!(self, TemplateField::RetryAfter | TemplateField::Status)
    }

    /// The field's value as text. `None` if the denial has none.
    fn value(self, explanation: &TemplateValues<'_>) -> Option<String> {
        match self {
            TemplateField::Rule => explanation.rule.map(str::to_owned),
            TemplateField::RetryAfter => explanation.retry_after.map(|seconds| seconds.to_string()),
            TemplateField::Status => Some(explanation.status.as_u16().to_string()),
            TemplateField::Reason => Some(reason(explanation.status).to_owned()),
            TemplateField::Type => Some(explanation.kind.to_owned()),
            TemplateField::Title => Some(explanation.title.to_owned()),
            TemplateField::Detail => Some(explanation.detail.to_string()),
            TemplateField::RequestId => explanation.request_id.map(str::to_owned),
        }
    }
}

/// The reason phrase of a status.
pub(crate) fn reason(status: http::StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or(if status.is_server_error() { "Error" } else { "Denied" })
}

impl Template {
    /// Parses a template of HTML. A placeholder without a value becomes empty.
    ///
    /// ```
    /// use tidegate_http::Template;
    ///
    /// assert!(Template::html("<p>Come back in {{ retry_after }} seconds.").is_ok());
    /// let error = Template::html("<h1>Sorry</h1>\n<p>{{retry_afer}}").unwrap_err();
    /// assert_eq!(error.to_string(), "2:4: there is no placeholder `retry_afer`");
    /// assert_eq!(error.help, "did you mean `retry_after`?");
    /// ```
    ///
    /// # Errors
    /// A placeholder is unknown, or is in a context where no escaping makes it safe.
    pub fn html(text: &str) -> Result<Template, TemplateError> {
        html::read(text)
    }

    /// Parses a template of JSON. A placeholder without a value becomes `null`, or empty within a string.
    ///
    /// ```
    /// use tidegate_http::Template;
    ///
    /// assert!(Template::json(r#"{"error": {{title}}, "retry_after": {{retry_after}}}"#).is_ok());
    /// let error = Template::json(r#"{"error": {{title}},}"#).unwrap_err();
    /// assert_eq!((error.line, error.column), (1, 21));
    /// ```
    ///
    /// # Errors
    /// A placeholder is unknown, or the result is not JSON.
    pub fn json(text: &str) -> Result<Template, TemplateError> {
        json::read(text)
    }

    pub(crate) const fn empty() -> Template {
        Template { pieces: Vec::new() }
    }

    pub(crate) fn render(&self, explanation: &TemplateValues<'_>) -> String {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(piece) => text.push_str(piece),
                TemplatePiece::Value(field, Escape::Html) => {
                    html::escape(&mut text, &field.value(explanation).unwrap_or_default());
                }
                TemplatePiece::Value(field, Escape::JsonText) => {
                    json::escape(&mut text, &field.value(explanation).unwrap_or_default());
                }
                TemplatePiece::Value(field, Escape::JsonValue) => match field.value(explanation) {
                    None => text.push_str("null"),
                    Some(number) if field.is_number() => text.push_str(&number),
                    Some(value) => {
                        text.push('"');
                        json::escape(&mut text, &value);
                        text.push('"');
                    }
                },
            }
        }
        text
    }
}

/// A placeholder in a text.
struct Placeholder {
    field: TemplateField,
    /// The offset after its `}}`.
    end: usize,
}

/// Parses the placeholder whose `{{` is at `start`.
fn placeholder(text: &str, start: usize) -> Result<Placeholder, TemplateError> {
    let inside = &text[start + 2..];
    let Some(length) = inside.find("}}").filter(|length| !inside[..*length].contains('\n')) else {
        return Err(TemplateError::at(text, start, "`{{` begins a placeholder that does not end", "end it with `}}`"));
    };
    let name = inside[..length].trim();
    let Some(field) = TemplateField::named(name) else {
        let help = match closest(name, TemplateField::ALL.map(|(known, _)| known)) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => {
                let mut all = String::from("there are");
                for (number, (known, _)) in TemplateField::ALL.iter().enumerate() {
                    // Writing to a `String` cannot fail.
                    let _ = write!(all, "{} `{known}`", if number == 0 { "" } else { "," });
                }
                all
            }
        };
        return Err(TemplateError::at(text, start, format!("there is no placeholder `{name}`"), help));
    };
    Ok(Placeholder { field, end: start + 2 + length + 2 })
}

impl TemplateError {
    fn at(text: &str, offset: usize, problem: impl Into<String>, help: impl Into<String>) -> TemplateError {
        let before = &text[..offset];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        TemplateError { line, column, problem: problem.into(), help: help.into() }
    }
}

/// The pieces parsed so far.
#[derive(Default)]
struct Pieces {
    pieces: Vec<TemplatePiece>,
    /// The end of the text that is in a piece.
    done: usize,
}

impl Pieces {
    fn push(&mut self, text: &str, start: usize, placeholder: &Placeholder, escape: Escape) {
        self.text(&text[self.done..start]);
        self.pieces.push(TemplatePiece::Value(placeholder.field, escape));
        self.done = placeholder.end;
    }

    fn finish(mut self, text: &str) -> Template {
        self.text(&text[self.done..]);
        Template { pieces: self.pieces }
    }

    fn text(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.pieces.push(TemplatePiece::Text(piece.into()));
        }
    }
}

#[cfg(test)]
mod tests;
