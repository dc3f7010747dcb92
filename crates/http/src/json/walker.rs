//! Walking through JSON that comes in pieces, along the keys that lead to a few fields.

use memchr::memchr2;
use smallvec::SmallVec;
use tidegate_rules::FieldPath;

use super::tree::Tree;

/// Collects what stands in the fields.
pub(super) trait Collect {
    /// Whether keys that differ in case alone are the same, text in a field is of interest, and an object may come behind an
    /// outermost value of another kind.
    const LENIENT: bool;

    /// A value begins at a place that leads to fields or is one. `exact` is whether the key is written as it is looked for.
    fn value(&mut self, tree: &Tree, node: usize, kind: Kind, exact: bool);

    /// The number in a field, as it is written. `None` if it is longer than [`LONGEST_NUMBER`].
    fn number(&mut self, field: usize, written: Option<&str>);

    /// The text in a field, with its escapes, or the beginning of it. Only if [lenient](Collect::LENIENT).
    fn text(&mut self, field: usize, escaped: &[u8]);

    /// An outermost object begins, or, if [lenient](Collect::LENIENT), an outermost value of any kind.
    fn begin_document(&mut self);

    /// An outermost object has ended.
    fn end_document(&mut self);

    /// What came is not JSON. Nothing follows.
    fn lose(&mut self);
}

/// A kind of value, as far as its first byte tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Object,
    Other,
}

/// The longest number that is taken for one.
pub(super) const LONGEST_NUMBER: usize = 64;
/// So much is kept of a text that may be a number: one whose characters are all escaped, and a byte more.
pub(super) const LONGEST_TEXT: usize = 6 * LONGEST_NUMBER + 1;

/// Walks through objects, which come in pieces of any size and are not kept. What it remembers does not grow with what it
/// sees.
#[derive(Debug)]
pub(super) struct Walker<C> {
    tree: Tree,
    pub(super) collector: C,
    /// Whether an outermost object is open.
    within: bool,
    /// The innermost object that leads to a field.
    object: usize,
    /// How many brackets are open within it that lead nowhere.
    skipped: u32,
    state: State,
    /// A key, a number or a text that is being read.
    word: SmallVec<[u8; 64]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before an object.
    Before,
    /// Behind one, or behind another outermost value. An object may come.
    After,
    /// In an object, where a key or the end may come.
    Key,
    InKey {
        escaped: bool,
    },
    /// Before the colon behind a key. `to` is where the key leads.
    Colon {
        to: Option<Place>,
    },
    Value {
        to: Option<Place>,
    },
    InNumber {
        field: usize,
    },
    /// In the text of a field.
    InText {
        field: usize,
        escaped: bool,
    },
    /// In `true` or another word or number that leads nowhere.
    InWord,
    InString {
        escaped: bool,
    },
    /// Between brackets that lead nowhere.
    Skipping,
    /// Behind a value.
    Behind,
    /// This is no object of JSON.
    Lost,
}

/// Where a key leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    node: usize,
    exact: bool,
}

impl<C: Collect> Walker<C> {
    pub(super) fn new(paths: &[FieldPath], collector: impl FnOnce(&Tree) -> C) -> Walker<C> {
        let tree = Tree::new(paths);
        let collector = collector(&tree);
        Walker { tree, collector, within: false, object: 0, skipped: 0, state: State::Before, word: SmallVec::new() }
    }

    /// The next piece.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != State::Lost {
            let seen = self.step(bytes);
            bytes = bytes.get(seen..).unwrap_or_default();
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Whether an object has ended and no other has begun.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::After
    }

    /// Begins anew, before an object.
    pub(super) fn begin(&mut self) {
        self.word.clear();
        (self.within, self.object, self.skipped, self.state) = (false, 0, 0, State::Before);
    }

    /// Goes on by at least one byte, and says by how many.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::InString { escaped } => self.in_string(bytes, escaped),
            State::InKey { escaped } => self.in_key(bytes, escaped),
            State::InText { field, escaped } => self.in_text(bytes, field, escaped),
            State::Skipping => self.skipping(bytes),
            State::InNumber { field } => self.in_number(bytes, field),
            State::InWord => {
                let end = bytes.iter().position(|byte| !is_of_word(*byte));
                if end.is_some() {
                    self.state = self.behind();
                }
                end.unwrap_or(bytes.len())
            }
            State::Before | State::After | State::Key | State::Colon { .. } | State::Value { .. } | State::Behind => {
                let blank = bytes.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
                let Some(at) = blank else { return bytes.len() };
                self.meet(bytes[at]) + at
            }
            State::Lost => bytes.len(),
        }
    }

    /// Meets a byte between words, and says whether it was used up.
    fn meet(&mut self, byte: u8) -> usize {
        self.state = match (self.state, byte) {
            (State::Before | State::After, b'{') => {
                (self.within, self.object) = (true, 0);
                self.collector.begin_document();
                State::Key
            }
            (State::Before | State::After, _) if C::LENIENT => {
                self.collector.begin_document();
                return self.begin_value(byte, None);
            }
            (State::Key, b'"') => State::InKey { escaped: false },
            (State::Colon { to }, b':') => State::Value { to },
            (State::Value { to }, _) => return self.begin_value(byte, to),
            (State::Behind, b',') => State::Key,
            (State::Key | State::Behind, b'}') => self.end_object(),
            _ => self.lose(),
        };
        1
    }

    fn begin_value(&mut self, byte: u8, to: Option<Place>) -> usize {
        let kind = match byte {
            b'-' | b'0'..=b'9' => Kind::Number,
            b'{' => Kind::Object,
            _ => Kind::Other,
        };
        if let Some(Place { node, exact }) = to {
            self.collector.value(&self.tree, node, kind, exact);
        }
        let field = to.and_then(|to| self.tree.node(to.node).field);
        self.state = match (byte, to, field) {
            (b'{', Some(Place { node, .. }), _) if !self.tree.is_leaf(node) => {
                self.object = node;
                State::Key
            }
            (b'{' | b'[', ..) => {
                self.skipped = 1;
                State::Skipping
            }
            (b'"', _, Some(field)) if C::LENIENT => State::InText { field, escaped: false },
            (b'"', ..) => State::InString { escaped: false },
            (b'-' | b'0'..=b'9', _, Some(field)) => {
                self.state = State::InNumber { field };
                return 0;
            }
            // `NaN` and `Infinity` are no JSON, but some write and read them.
            (b'-' | b'0'..=b'9' | b't' | b'f' | b'n' | b'N' | b'I', ..) => State::InWord,
            _ => self.lose(),
        };
        1
    }

    fn end_object(&mut self) -> State {
        if let Some(parent) = self.tree.parent(self.object) {
            self.object = parent;
            return State::Behind;
        }
        self.within = false;
        self.collector.end_document();
        State::After
    }

    /// What comes behind a value that leads to no other.
    const fn behind(&self) -> State {
        if self.within { State::Behind } else { State::After }
    }

    fn lose(&mut self) -> State {
        self.collector.lose();
        State::Lost
    }

    fn in_string(&mut self, bytes: &[u8], escaped: bool) -> usize {
        if escaped {
            self.state = State::InString { escaped: false };
            return 1;
        }
        let Some(at) = memchr2(b'"', b'\\', bytes) else { return bytes.len() };
        self.state = match bytes[at] {
            b'\\' => State::InString { escaped: true },
            _ if self.skipped > 0 => State::Skipping,
            _ => self.behind(),
        };
        at + 1
    }

    fn in_key(&mut self, bytes: &[u8], escaped: bool) -> usize {
        let most = self.tree.longest_written_key() + 1;
        let (seen, next) = self.in_word_with_escapes(bytes, escaped, most);
        self.state = match next {
            Next::Escaped(escaped) => State::InKey { escaped },
            Next::End => {
                let to = self.where_it_leads();
                self.word.clear();
                State::Colon { to }
            }
        };
        seen
    }

    fn in_text(&mut self, bytes: &[u8], field: usize, escaped: bool) -> usize {
        let (seen, next) = self.in_word_with_escapes(bytes, escaped, LONGEST_TEXT);
        self.state = match next {
            Next::Escaped(escaped) => State::InText { field, escaped },
            Next::End => {
                self.collector.text(field, &self.word);
                self.word.clear();
                State::Behind
            }
        };
        seen
    }

    /// Goes on in a quoted word, of which `most` bytes are kept.
    fn in_word_with_escapes(&mut self, bytes: &[u8], escaped: bool, most: usize) -> (usize, Next) {
        let (kept, seen, next) = match memchr2(b'"', b'\\', bytes) {
            _ if escaped => (1, 1, Next::Escaped(false)),
            None => (bytes.len(), bytes.len(), Next::Escaped(false)),
            Some(at) if bytes[at] == b'\\' => (at + 1, at + 1, Next::Escaped(true)),
            Some(at) => (at, at + 1, Next::End),
        };
        self.keep(&bytes[..kept], most);
        (seen, next)
    }

    /// Keeps a piece of a word, if so many bytes are not reached yet.
    fn keep(&mut self, piece: &[u8], most: usize) {
        let room = most.saturating_sub(self.word.len()).min(piece.len());
        self.word.extend_from_slice(&piece[..room]);
    }

    fn where_it_leads(&self) -> Option<Place> {
        if self.word.len() > self.tree.longest_written_key() {
            return None;
        }
        if !self.word.contains(&b'\\') {
            return self.place_of(&self.word);
        }
        self.place_of(unescaped(&self.word)?.as_bytes())
    }

    fn place_of(&self, key: &[u8]) -> Option<Place> {
        if let Some(node) = self.tree.child(self.object, key) {
            return Some(Place { node, exact: true });
        }
        if !C::LENIENT {
            return None;
        }
        let node = self.tree.child_in_any_case(self.object, key)?;
        Some(Place { node, exact: false })
    }

    fn in_number(&mut self, bytes: &[u8], field: usize) -> usize {
        let end = bytes.iter().position(|byte| !is_of_word(*byte));
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        self.keep(piece, LONGEST_NUMBER + 1);
        if end.is_some() {
            let is_short = self.word.len() <= LONGEST_NUMBER;
            let number = std::str::from_utf8(&self.word).ok().filter(|_| is_short);
            self.collector.number(field, number);
            self.word.clear();
            self.state = State::Behind;
        }
        piece.len()
    }

    fn skipping(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => {
                    self.state = State::InString { escaped: false };
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
                        self.state = self.behind();
                        return at + 1;
                    }
                }
                _ => {}
            }
        }
        bytes.len()
    }
}

/// Where reading a quoted word has come to.
enum Next {
    /// It goes on; the next byte is escaped, or not.
    Escaped(bool),
    End,
}

/// A string without its escapes. `None` if they make no sense.
pub(super) fn unescaped(word: &[u8]) -> Option<String> {
    serde_json::from_slice(&[b"\"", word, b"\""].concat()).ok()
}

/// Whether a byte belongs to a number or a word such as `true`.
const fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}
