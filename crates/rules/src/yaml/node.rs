//! The tree.

use granit_parser::{Marker, Span};

/// A range of characters in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The line, counted from 1.
    pub line: usize,
    /// The character in the line, counted from 1.
    pub column: usize,
    /// The length in characters.
    pub width: usize,
}

impl Position {
    pub(super) fn at(mark: Marker) -> Position {
        Position { line: mark.line(), column: mark.col() + 1, width: 0 }
    }

    pub(super) fn of(span: Span) -> Position {
        Position { width: span.len(), ..Position::at(span.start) }
    }
}

/// A value in a file, with its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The position.
    pub at: Position,
    /// The value.
    pub value: Value,
    /// The original text of a number or a boolean: as a header, `1.10` is not `1.1`.
    pub(super) written: Option<Box<str>>,
}

/// The kind and content of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An absent value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Integer(i128),
    /// A number with a point or an exponent.
    Float(f64),
    /// Any other scalar.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map.
    Map(Map),
}

/// A key and its value, in the order of the file.
pub type Map = Vec<(Name, Node)>;

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The position.
    pub at: Position,
    /// The text.
    pub text: String,
}

impl Node {
    pub(super) const fn new(at: Position, value: Value) -> Node {
        Node { at, value, written: None }
    }

    /// The value of unquoted text.
    pub(super) fn plain(at: Position, text: String) -> Node {
        let value = match text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => Value::Null,
            "true" | "True" | "TRUE" => Value::Bool(true),
            "false" | "False" | "FALSE" => Value::Bool(false),
            other => match number(other) {
                Some(number) => number,
                None => return Node::new(at, Value::Text(text)),
            },
        };
        Node { at, value, written: Some(text.into()) }
    }

    /// The name of the kind, for messages.
    pub const fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// The text of a scalar. Numbers and booleans have their original text.
    pub fn as_text(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) => Some(text.clone()),
            Value::Integer(_) | Value::Float(_) | Value::Bool(_) => self.written.as_deref().map(str::to_owned),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The number of nodes, levels and bytes of text.
    pub(super) fn size(&self) -> Size {
        let of = |parts: &mut dyn Iterator<Item = Size>| {
            parts.fold(Size { nodes: 1, levels: 1, bytes: 0 }, |sum, part| Size {
                nodes: sum.nodes + part.nodes,
                levels: sum.levels.max(1 + part.levels),
                bytes: sum.bytes + part.bytes,
            })
        };
        match &self.value {
            Value::List(items) => of(&mut items.iter().map(Node::size)),
            Value::Map(map) => of(&mut map.iter().map(|(name, node)| {
                let size = node.size();
                Size { nodes: size.nodes + 1, bytes: size.bytes + name.text.len(), ..size }
            })),
            Value::Text(text) => Size { nodes: 1, levels: 0, bytes: text.len() },
            Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) => {
                Size { nodes: 1, levels: 0, bytes: self.written.as_ref().map_or(0, |text| text.len()) }
            }
        }
    }
}

/// The size of a subtree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) nodes: usize,
    pub(super) levels: usize,
    pub(super) bytes: usize,
}

/// `20`, `-3`, `1_000`, `0x1F`, `1.5`.
fn number(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let based = |prefix, base| text.strip_prefix(prefix).map(|digits| i128::from_str_radix(digits, base).ok());
    if let Some(based) = based("0x", 16).or_else(|| based("0o", 8)) {
        return based.map(Value::Integer);
    }
    if unsigned.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') {
        return text.replace('_', "").parse().ok().map(Value::Integer);
    }
    let is_float = unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    text.parse().ok().filter(|_| is_float).map(Value::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_what_yaml_says_it_is() {
        for (text, value) in [
            ("", Value::Null),
            ("~", Value::Null),
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("FALSE", Value::Bool(false)),
            ("20", Value::Integer(20)),
            ("-3", Value::Integer(-3)),
            ("1_000", Value::Integer(1_000)),
            ("0x1F", Value::Integer(31)),
            ("007", Value::Integer(7)),
            ("1.5", Value::Float(1.5)),
            ("1e3", Value::Float(1e3)),
        ] {
            assert_eq!(Node::plain(Position::default(), text.to_owned()).value, value, "{text}");
        }
        for text in ["off", "no", "20/s", "1.2.3", "0xg", "-", "+", "_1", "1__x", "inf", "nan", "203.0.113.7"] {
            let node = Node::plain(Position::default(), text.to_owned());
            assert_eq!(node.value, Value::Text(text.to_owned()));
        }
    }

    #[test]
    fn numbers_keep_their_spelling() {
        for text in ["1.10", "007", "1_000", "+5", "True"] {
            assert_eq!(Node::plain(Position::default(), text.to_owned()).as_text().as_deref(), Some(text));
        }
    }
}
