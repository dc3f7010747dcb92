//! A tree of the field paths to find.

use tidegate_rules::FieldPath;

/// A key on the path to a field.
#[derive(Debug)]
pub(super) struct JsonNode {
    key: Box<[u8]>,
    parent: usize,
    children: Vec<usize>,
    /// The number of the field whose path ends here.
    pub(super) field: Option<usize>,
}

/// All paths by their keys. Node 0 is the outermost object.
#[derive(Debug)]
pub(super) struct JsonTree {
    nodes: Vec<JsonNode>,
    longest_key: usize,
}

impl JsonTree {
    pub(super) fn new(paths: &[FieldPath]) -> JsonTree {
        let root = JsonNode { key: Box::default(), parent: 0, children: Vec::new(), field: None };
        let mut tree = JsonTree { nodes: vec![root], longest_key: 0 };
        for (number, path) in paths.iter().enumerate() {
            let node = path.keys().fold(0, |at, key| tree.child_or_new(at, key.as_bytes()));
            tree.nodes[node].field.get_or_insert(number);
        }
        tree
    }

    fn child_or_new(&mut self, parent: usize, key: &[u8]) -> usize {
        self.longest_key = self.longest_key.max(key.len());
        if let Some(known) = self.child(parent, key) {
            return known;
        }
        let child = self.nodes.len();
        self.nodes.push(JsonNode { key: key.into(), parent, children: Vec::new(), field: None });
        self.nodes[parent].children.push(child);
        child
    }

    pub(super) fn node(&self, node: usize) -> &JsonNode {
        &self.nodes[node]
    }

    pub(super) fn child(&self, of: usize, key: &[u8]) -> Option<usize> {
        self.nodes[of].children.iter().copied().find(|&child| *self.nodes[child].key == *key)
    }

    /// The child with this key, ignoring case.
    pub(super) fn child_in_any_case(&self, of: usize, key: &[u8]) -> Option<usize> {
        let children = &self.nodes[of].children;
        let key = std::str::from_utf8(key).ok()?;
        let is_key = |node: &JsonNode| std::str::from_utf8(&node.key).is_ok_and(|known| folded(known).eq(folded(key)));
        children.iter().copied().find(|&child| is_key(&self.nodes[child]))
    }

    /// The number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The parent of a node. `None` for the outermost object.
    pub(super) fn parent(&self, of: usize) -> Option<usize> {
        (of != 0).then(|| self.nodes[of].parent)
    }

    pub(super) fn is_leaf(&self, node: usize) -> bool {
        self.nodes[node].children.is_empty()
    }

    /// Calls `visit` with each field at or under a node.
    pub(super) fn each_field(&self, under: usize, visit: &mut impl FnMut(usize)) {
        self.nodes[under].field.into_iter().for_each(&mut *visit);
        for &child in &self.nodes[under].children {
            self.each_field(child, visit);
        }
    }

    /// The length of the longest key with every character escaped.
    pub(super) const fn longest_written_key(&self) -> usize {
        6 * self.longest_key
    }
}

/// A key with its case folded. Through upper case to lower case, because some letters share only one of the two: `ſ` and `s`
/// the upper case, the Kelvin sign and `k` the lower case.
fn folded(key: &str) -> impl Iterator<Item = char> {
    key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}
