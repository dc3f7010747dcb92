//! Metadata that a descriptor returns to the client, uninterpreted.

use crate::yaml::{Node, Value};

/// A value in a descriptor's `metadata`.
#[derive(Clone, Debug, PartialEq)]
pub enum Metadata {
    /// No value.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(f64),
    /// Text.
    Text(String),
    /// Several values.
    List(Vec<Metadata>),
    /// Named values, in the order of the file.
    Map(Vec<(String, Metadata)>),
}

impl Metadata {
    #[expect(clippy::cast_precision_loss, reason = "a protobuf Struct, which these become, has doubles only")]
    pub(super) fn of(node: &Node) -> Metadata {
        match &node.value {
            Value::Null => Metadata::Null,
            Value::Bool(flag) => Metadata::Bool(*flag),
            Value::Integer(number) => Metadata::Number(*number as f64),
            Value::Float(number) => Metadata::Number(*number),
            Value::Text(text) => Metadata::Text(text.clone()),
            Value::List(items) => Metadata::List(items.iter().map(Metadata::of).collect()),
            Value::Map(map) => {
                Metadata::Map(map.iter().map(|(name, node)| (name.text.clone(), Metadata::of(node))).collect())
            }
        }
    }
}
