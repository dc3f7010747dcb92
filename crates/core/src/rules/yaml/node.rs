//! The tree.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// Where something stands in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::rules) struct Position {
    pub(in crate::rules) line: usize,
    pub(in crate::rules) column: usize,
    pub(in crate::rules) width: usize,
}

impl Position {
    pub(super) fn of(location: &Location) -> Position {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Position {
            line: number(location.line()),
            column: number(location.column()),
            width: usize::try_from(location.span().len()).unwrap_or(0),
        }
    }
}

/// Something that stands in a file.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::rules) struct Node {
    pub(in crate::rules) at: Position,
    pub(in crate::rules) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::rules) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Map),
}

/// A key and its value, in the order of the file.
pub(in crate::rules) type Map = Vec<(Name, Node)>;

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rules) struct Name {
    pub(in crate::rules) at: Position,
    pub(in crate::rules) text: String,
}

impl Node {
    pub(super) fn located(spanned: Spanned<Node>) -> Node {
        Node { at: Position::of(&spanned.referenced), value: spanned.value.value }
    }

    /// What kind of thing it is, for messages.
    pub(in crate::rules) const fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// The text of a scalar: numbers and booleans as they are usually written.
    pub(in crate::rules) fn as_text(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) => Some(text.clone()),
            Value::Integer(number) => Some(number.to_string()),
            Value::Float(number) => Some(number.to_string()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The first scalar of more than `most` bytes.
    pub(super) fn longer_than(&self, most: usize) -> Option<&Node> {
        match &self.value {
            Value::Text(text) => (text.len() > most).then_some(self),
            Value::List(items) => items.iter().find_map(|item| item.longer_than(most)),
            Value::Map(map) => map
                .iter()
                .find_map(|(name, value)| if name.text.len() > most { Some(self) } else { value.longer_than(most) }),
            Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) => None,
        }
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Integer(number))
    }

    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(Value::Integer(i128::try_from(number).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Spanned<Node>>()? {
            items.push(Node::located(item));
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((name, value)) = access.next_entry::<Spanned<String>, Spanned<Node>>()? {
            let name = Name { at: Position::of(&name.referenced), text: name.value };
            map.push((name, Node::located(value)));
        }
        Ok(Value::Map(map))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        let value = deserializer.deserialize_any(AnyValue)?;
        Ok(Node { at: Position::default(), value })
    }
}
