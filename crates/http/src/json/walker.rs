//! An incremental JSON scanner that follows the keys to a few fields and skips everything else.

use memchr::memchr2;
use smallvec::SmallVec;
use tidegate_rules::FieldPath;

use super::tree::JsonTree;

/// A collector of the values of fields.
pub(super) trait Collect {
    /// Scans leniently: keys match in any case, text in a field is collected, and an object may follow a document of another
    /// kind.
    const LENIENT: bool;

    /// A value begins at a node. `exact` says whether the key matches in case too.
    fn value(&mut self, tree: &JsonTree, node: usize, kind: ValueKind, exact: bool);

    /// A number in a field, as written. `None` if it is longer than [`LONGEST_NUMBER`].
    fn number(&mut self, field: usize, written: Option<&str>);

    /// A text in a field, with its escapes, truncated to [`LONGEST_TEXT`]. Only if [lenient](Collect::LENIENT).
    fn text(&mut self, field: usize, escaped: &[u8]);

    /// A document begins: an object or, if [lenient](Collect::LENIENT), a value of any kind.
    fn begin_document(&mut self);

    /// A document that is an object has ended.
    fn end_document(&mut self);

    /// The input is not JSON. Nothing follows.
    fn lose(&mut self);
}

/// The kind of a value, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Number,
    Object,
    Other,
}

/// The longest number that is collected.
pub(super) const LONGEST_NUMBER: usize = 64;
/// The longest text that is collected: a number with every character escaped, plus one byte to detect longer ones.
pub(super) const LONGEST_TEXT: usize = 6 * LONGEST_NUMBER + 1;

/// Scans JSON that arrives in pieces of any size. Its memory does not grow with the input.
#[derive(Debug)]
pub(super) struct Walker<C> {
    tree: JsonTree,
    pub(super) collector: C,
    /// An outermost object is open.
    within: bool,
    /// The innermost open object that is on the path to a field.
    object: usize,
    /// The number of open brackets within it that are being skipped.
    skipped: u32,
    state: WalkerState,
    /// The key, number or text that is being read.
    word: SmallVec<[u8; 64]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkerState {
    /// Before a document.
    Before,
    /// After a document. Another may follow.
    After,
    /// In an object, before a key or the end.
    Key,
    InKey {
        escaped: bool,
    },
    /// Between a key and its colon.
    Colon {
        to: Option<NodeMatch>,
    },
    Value {
        to: Option<NodeMatch>,
    },
    InNumber {
        field: usize,
    },
    /// In the text of a field.
    InText {
        field: usize,
        escaped: bool,
    },
    /// In a skipped number or word such as `true`.
    InWord,
    InString {
        escaped: bool,
    },
    /// Between skipped brackets.
    Skipping,
    /// After a value in an object.
    AfterValue,
    /// The input is not JSON.
    Lost,
}

/// A node that a key matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeMatch {
    node: usize,
    exact: bool,
}

impl<C: Collect> Walker<C> {
    pub(super) fn new(paths: &[FieldPath], collector: impl FnOnce(&JsonTree) -> C) -> Walker<C> {
        let tree = JsonTree::new(paths);
        let collector = collector(&tree);
        Walker {
            tree,
            collector,
            within: false,
            object: 0,
            skipped: 0,
            state: WalkerState::Before,
            word: SmallVec::new(),
        }
    }

    /// Reads the next piece.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != WalkerState::Lost {
            let seen = self.step(bytes);
            bytes = bytes.get(seen..).unwrap_or_default();
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state == WalkerState::Lost
    }

    /// Whether a document has ended and no other has begun.
    pub(super) fn is_over(&self) -> bool {
        self.state == WalkerState::After
    }

    /// Starts over, before a document.
    pub(super) fn begin(&mut self) {
        self.word.clear();
        (self.within, self.object, self.skipped, self.state) = (false, 0, 0, WalkerState::Before);
    }

    /// Consumes at least one byte, unless the state changes, and returns how many.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            WalkerState::InString { escaped } => self.in_string(bytes, escaped),
            WalkerState::InKey { escaped } => self.in_key(bytes, escaped),
            WalkerState::InText { field, escaped } => self.in_text(bytes, field, escaped),
            WalkerState::Skipping => self.skipping(bytes),
            WalkerState::InNumber { field } => self.in_number(bytes, field),
            WalkerState::InWord => {
                let end = bytes.iter().position(|byte| !is_word_byte(*byte));
                if end.is_some() {
                    self.state = self.after_value();
                }
                end.unwrap_or(bytes.len())
            }
            WalkerState::Before
            | WalkerState::After
            | WalkerState::Key
            | WalkerState::Colon { .. }
            | WalkerState::Value { .. }
            | WalkerState::AfterValue => {
                let blank = bytes.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
                let Some(at) = blank else { return bytes.len() };
                self.delimiter(bytes[at]) + at
            }
            WalkerState::Lost => bytes.len(),
        }
    }

    /// Handles a byte between tokens. Returns 1 if it was consumed, otherwise 0.
    fn delimiter(&mut self, byte: u8) -> usize {
        self.state = match (self.state, byte) {
            (WalkerState::Before | WalkerState::After, b'{') => {
                (self.within, self.object) = (true, 0);
                self.collector.begin_document();
                WalkerState::Key
            }
            (WalkerState::Before | WalkerState::After, _) if C::LENIENT => {
                self.collector.begin_document();
                return self.begin_value(byte, None);
            }
            (WalkerState::Key, b'"') => WalkerState::InKey { escaped: false },
            (WalkerState::Colon { to }, b':') => WalkerState::Value { to },
            (WalkerState::Value { to }, _) => return self.begin_value(byte, to),
            (WalkerState::AfterValue, b',') => WalkerState::Key,
            (WalkerState::Key | WalkerState::AfterValue, b'}') => self.end_object(),
            _ => self.lose(),
        };
        1
    }

    fn begin_value(&mut self, byte: u8, to: Option<NodeMatch>) -> usize {
        let kind = match byte {
            b'-' | b'0'..=b'9' => ValueKind::Number,
            b'{' => ValueKind::Object,
            _ => ValueKind::Other,
        };
        if let Some(NodeMatch { node, exact }) = to {
            self.collector.value(&self.tree, node, kind, exact);
        }
        let field = to.and_then(|to| self.tree.node(to.node).field);
        self.state = match (byte, to, field) {
            (b'{', Some(NodeMatch { node, .. }), _) if !self.tree.is_leaf(node) => {
                self.object = node;
                WalkerState::Key
            }
            (b'{' | b'[', ..) => {
                self.skipped = 1;
                WalkerState::Skipping
            }
            (b'"', _, Some(field)) if C::LENIENT => WalkerState::InText { field, escaped: false },
            (b'"', ..) => WalkerState::InString { escaped: false },
            (b'-' | b'0'..=b'9', _, Some(field)) => {
                self.state = WalkerState::InNumber { field };
                return 0;
            }
            // `NaN` and `Infinity` are not JSON, but some programs write and parse them.
            (b'-' | b'0'..=b'9' | b't' | b'f' | b'n' | b'N' | b'I', ..) => WalkerState::InWord,
            _ => self.lose(),
        };
        1
    }

    fn end_object(&mut self) -> WalkerState {
        if let Some(parent) = self.tree.parent(self.object) {
            self.object = parent;
            return WalkerState::AfterValue;
        }
        self.within = false;
        self.collector.end_document();
        WalkerState::After
    }

    /// The state after a value.
    const fn after_value(&self) -> WalkerState {
        if self.within { WalkerState::AfterValue } else { WalkerState::After }
    }

    fn lose(&mut self) -> WalkerState {
        self.collector.lose();
        WalkerState::Lost
    }

    fn in_string(&mut self, bytes: &[u8], escaped: bool) -> usize {
        if escaped {
            self.state = WalkerState::InString { escaped: false };
            return 1;
        }
        let Some(at) = memchr2(b'"', b'\\', bytes) else { return bytes.len() };
        self.state = match bytes[at] {
            b'\\' => WalkerState::InString { escaped: true },
            _ if self.skipped > 0 => WalkerState::Skipping,
            _ => self.after_value(),
        };
        at + 1
    }

    fn in_key(&mut self, bytes: &[u8], escaped: bool) -> usize {
        let max = self.tree.longest_written_key() + 1;
        let (seen, next) = self.in_word_with_escapes(bytes, escaped, max);
        self.state = match next {
            NextToken::Escaped(escaped) => WalkerState::InKey { escaped },
            NextToken::End => {
                let to = self.matched_key();
                self.word.clear();
                WalkerState::Colon { to }
            }
        };
        seen
    }

    fn in_text(&mut self, bytes: &[u8], field: usize, escaped: bool) -> usize {
        let (seen, next) = self.in_word_with_escapes(bytes, escaped, LONGEST_TEXT);
        self.state = match next {
            NextToken::Escaped(escaped) => WalkerState::InText { field, escaped },
            NextToken::End => {
                self.collector.text(field, &self.word);
                self.word.clear();
                WalkerState::AfterValue
            }
        };
        seen
    }

    /// Continues in a quoted word, of which at most `max` bytes are kept.
    fn in_word_with_escapes(&mut self, bytes: &[u8], escaped: bool, max: usize) -> (usize, NextToken) {
        let (kept, seen, next) = match memchr2(b'"', b'\\', bytes) {
            _ if escaped => (1, 1, NextToken::Escaped(false)),
            None => (bytes.len(), bytes.len(), NextToken::Escaped(false)),
            Some(at) if bytes[at] == b'\\' => (at + 1, at + 1, NextToken::Escaped(true)),
            Some(at) => (at, at + 1, NextToken::End),
        };
        self.keep(&bytes[..kept], max);
        (seen, next)
    }

    /// Appends a piece to the word, up to `max` bytes in total.
    fn keep(&mut self, piece: &[u8], max: usize) {
        let room = max.saturating_sub(self.word.len()).min(piece.len());
        self.word.extend_from_slice(&piece[..room]);
    }

    fn matched_key(&self) -> Option<NodeMatch> {
        if self.word.len() > self.tree.longest_written_key() {
            return None;
        }
        if !self.word.contains(&b'\\') {
            return self.match_of(&self.word);
        }
        self.match_of(unescaped(&self.word)?.as_bytes())
    }

    fn match_of(&self, key: &[u8]) -> Option<NodeMatch> {
        if let Some(node) = self.tree.child(self.object, key) {
            return Some(NodeMatch { node, exact: true });
        }
        if !C::LENIENT {
            return None;
        }
        let node = self.tree.child_in_any_case(self.object, key)?;
        Some(NodeMatch { node, exact: false })
    }

    fn in_number(&mut self, bytes: &[u8], field: usize) -> usize {
        let end = bytes.iter().position(|byte| !is_word_byte(*byte));
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        self.keep(piece, LONGEST_NUMBER + 1);
        if end.is_some() {
            let is_short = self.word.len() <= LONGEST_NUMBER;
            let number = std::str::from_utf8(&self.word).ok().filter(|_| is_short);
            self.collector.number(field, number);
            self.word.clear();
            self.state = WalkerState::AfterValue;
        }
        piece.len()
    }

    fn skipping(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => {
                    self.state = WalkerState::InString { escaped: false };
                    return at + 1;
                }
                b'{' | b'[' => match self.skipped.checked_add(1) {
                    Some(skipped) => self.skipped = skipped,
                    None => {
                        self.state = self.lose();
                        return at + 1;
                    }
                },
                b'}' | b']' => {
                    self.skipped -= 1;
                    if self.skipped == 0 {
                        self.state = self.after_value();
                        return at + 1;
                    }
                }
                _ => {}
            }
        }
        bytes.len()
    }
}

/// The state within a quoted word.
enum NextToken {
    /// The word continues. Whether the next byte is escaped.
    Escaped(bool),
    End,
}

/// A string with its escapes decoded. `None` if they are invalid.
pub(super) fn unescaped(word: &[u8]) -> Option<String> {
    serde_json::from_slice(&[b"\"", word, b"\""].concat()).ok()
}

/// Whether a byte is part of a number or of a word such as `true`.
const fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}
