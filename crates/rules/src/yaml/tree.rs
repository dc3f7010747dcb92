//! From text to the tree.
//!
//! A file may be untrusted, so its demands on time and memory are bounded: nesting, the number of nodes (including those
//! that aliases repeat) and the length of a scalar.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, Tag};

use super::LARGEST_FILE;
use super::diagnostic::MOST_FINDINGS;
use super::fault::{DEEPEST, LONGEST_SCALAR, MOST_NODES, YamlFault};
use super::node::{Map, Name, Node, Position, Value};

/// The tree, and mistakes that do not prevent it from being read.
#[derive(Debug, Default)]
pub(super) struct YamlTree {
    pub(super) root: Option<Node>,
    pub(super) faults: Vec<YamlFault>,
}

impl YamlTree {
    pub(super) fn grow(text: &str) -> Result<YamlTree, YamlFault> {
        let mut options = Options::default();
        options.emit_comments = false;
        let mut growing = Growing::default();
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) = event.map_err(|error| YamlFault::of_yaml(&error, text))?;
            growing.take(event, span)?;
        }
        Ok(growing.tree)
    }

    fn note(&mut self, fault: YamlFault) {
        if self.faults.len() < MOST_FINDINGS {
            self.faults.push(fault);
        }
    }
}

#[derive(Default)]
struct Growing {
    tree: YamlTree,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    documents: usize,
    nodes: usize,
    bytes: usize,
}

/// A list or a map whose end was not reached yet.
struct Open {
    at: Position,
    anchor: usize,
    items: Items,
}

enum Items {
    List(Vec<Node>),
    Map {
        map: Map,
        names: HashSet<String>,
        /// The key of the next value; `Some(None)` if that value is to be ignored.
        key: Option<Option<Name>>,
        merges: bool,
    },
}

impl Growing {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlFault> {
        let at = Position::of(span);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 { Err(YamlFault::second_document(at)) } else { Ok(()) }
            }
            Event::Scalar(text, style, anchor, tag) => {
                if text.len() > LONGEST_SCALAR {
                    return Err(YamlFault::long_scalar(at, self.open.is_empty()));
                }
                let is_text = style != ScalarStyle::Plain || self.is_text(at, tag.as_deref());
                let node = if is_text {
                    Node::new(at, Value::Text(text.into_owned()))
                } else {
                    Node::plain(at, text.into_owned())
                };
                let merges = style == ScalarStyle::Plain;
                self.finish(node, anchor, merges)
            }
            Event::SequenceStart(_, anchor, tag) => self.begin(at, anchor, tag.as_deref(), Items::List(Vec::new())),
            Event::MappingStart(_, anchor, tag) => {
                let items = Items::Map { map: Map::new(), names: HashSet::new(), key: None, merges: false };
                self.begin(at, anchor, tag.as_deref(), items)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { at, anchor, items: Items::List(items) }) => {
                    self.finish(Node::new(at, Value::List(items)), anchor, false)
                }
                Some(Open { at, anchor, items: Items::Map { map, merges, .. } }) => {
                    let map = if merges { merged(map) } else { map };
                    self.finish(Node::new(at, Value::Map(map)), anchor, false)
                }
                None => Ok(()),
            },
            Event::Alias(anchor) => self.alias(at, anchor),
            _ => Ok(()),
        }
    }

    /// Whether a tag marks a scalar as text, whatever its form.
    fn is_text(&mut self, at: Position, tag: Option<&Tag>) -> bool {
        self.tag(at, tag);
        tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"))
    }

    /// YAML's own tags are redundant; any other tag would need a meaning.
    fn tag(&mut self, at: Position, tag: Option<&Tag>) {
        const KNOWN: [&str; 7] = ["str", "int", "float", "bool", "null", "seq", "map"];
        if let Some(tag) = tag
            && !KNOWN.iter().any(|known| tag.is_yaml_core_schema_tag(known))
        {
            self.tree.note(YamlFault::tag(at, &tag.original()));
        }
    }

    fn begin(&mut self, at: Position, anchor: usize, tag: Option<&Tag>, items: Items) -> Result<(), YamlFault> {
        self.tag(at, tag);
        if self.open.len() >= DEEPEST {
            return Err(YamlFault::deep(at));
        }
        // Findings about a collection point to its beginning, because its whole extent would not help.
        self.open.push(Open { at: Position { width: 1, ..at }, anchor, items });
        Ok(())
    }

    fn alias(&mut self, at: Position, anchor: usize) -> Result<(), YamlFault> {
        let Some(node) = self.anchors.get(&anchor) else { return Err(YamlFault::endless(at)) };
        let size = node.size();
        if self.open.len() + size.levels > DEEPEST {
            return Err(YamlFault::deep(at));
        }
        self.count(at, size.nodes - 1, size.bytes)?;
        let node = self.anchors[&anchor].clone();
        self.finish(node, 0, false)
    }

    fn count(&mut self, at: Position, nodes: usize, bytes: usize) -> Result<(), YamlFault> {
        self.nodes += nodes;
        self.bytes += bytes;
        if self.nodes > MOST_NODES || self.bytes > 2 * LARGEST_FILE {
            return Err(YamlFault::too_much(at));
        }
        Ok(())
    }

    /// Adds a complete node to its parent.
    fn finish(&mut self, node: Node, anchor: usize, may_merge: bool) -> Result<(), YamlFault> {
        self.count(node.at, 1, 0)?;
        if anchor != 0 {
            let size = node.size();
            self.count(node.at, size.nodes, size.bytes)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.items) {
            None => self.tree.root = Some(node),
            Some(Items::List(items)) => items.push(node),
            Some(Items::Map { map, names, key, merges }) => match key.take() {
                Some(Some(name)) => {
                    let nowhere = node.value == Value::Null && node.at.width == 0;
                    let at = if nowhere { name.at } else { node.at };
                    map.push((name, Node { at, ..node }));
                }
                Some(None) => {}
                None => {
                    let name = node.as_text().map(|text| Name { at: node.at, text });
                    let fault = match &name {
                        None => Some(YamlFault::key(node.at, node.kind())),
                        Some(name) if !names.insert(name.text.clone()) => Some(YamlFault::repeated(name)),
                        Some(_) => None,
                    };
                    *merges |= may_merge && name.as_ref().is_some_and(|name| name.text == MERGE);
                    *key = Some(name.filter(|_| fault.is_none()));
                    fault.into_iter().for_each(|fault| self.tree.note(fault));
                }
            },
        }
        Ok(())
    }
}

/// The key whose value's entries belong to the map around it.
const MERGE: &str = "<<";

/// Adds the entries of `<<` to the map, unless it has entries with the same names.
fn merged(map: Map) -> Map {
    let (merges, mut own): (Map, Map) =
        map.into_iter().partition(|(name, node)| name.text == MERGE && is_mergeable(&node.value));
    let maps = merges.into_iter().flat_map(|(_, node)| match node.value {
        Value::Map(map) => vec![map],
        Value::List(items) => items.into_iter().filter_map(Node::into_map).collect(),
        _ => Vec::new(),
    });
    let mut names: HashSet<String> = own.iter().map(|(name, _)| name.text.clone()).collect();
    for (name, node) in maps.flatten() {
        if names.insert(name.text.clone()) {
            own.push((name, node));
        }
    }
    own
}

fn is_mergeable(value: &Value) -> bool {
    match value {
        Value::Map(_) => true,
        Value::List(items) => items.iter().all(|item| matches!(item.value, Value::Map(_))),
        Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::Text(_) => false,
    }
}

impl Node {
    fn into_map(self) -> Option<Map> {
        match self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }
}
