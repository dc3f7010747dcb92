//! Finding the numbers that stand in a few fields.

use memchr::memchr2;
use smallvec::SmallVec;
use tidegate_core::rules::FieldPath;

use super::tree::Tree;

/// Finds the numbers that stand in a few fields of a JSON object, which comes in pieces of any size and is not kept.
///
/// What it remembers does not grow with what it sees. Of a field that comes twice the last counts, as it does to most
/// readers of JSON. After an object there can be another, as in lines of JSON: of each field the last number counts.
///
/// ```
/// use tidegate_http::FieldFinder;
///
/// let mut finder = FieldFinder::new(&["usage.total_tokens".parse()?, "max_tokens".parse()?]);
/// finder.feed(br#"{ "choices": [{ "text": "usage: {" }], "usa"#);
/// finder.feed(br#"ge": { "total_tokens": 48"#);
/// finder.feed(br#"0 } }"#);
/// assert_eq!((finder.found(0), finder.found(1)), (Some("480"), None));
/// # Ok::<(), tidegate_core::rules::FieldPathError>(())
/// ```
#[derive(Debug)]
pub struct FieldFinder {
    tree: Tree,
    /// Of objects that have ended.
    found: Vec<Option<Number>>,
    /// Of the present one.
    fresh: Vec<Option<Number>>,
    /// The innermost object that leads to a field.
    object: usize,
    /// How many brackets are open within it that lead nowhere.
    skipped: u32,
    state: State,
    /// A key or a number that is being read.
    word: SmallVec<[u8; 64]>,
}

/// A number as it is written.
type Number = Box<str>;

/// The longest number that is taken for one.
const LONGEST_NUMBER: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before an object.
    Before,
    /// Behind one. Another may come.
    After,
    /// In an object, where a key or the end may come.
    Key,
    InKey {
        escaped: bool,
    },
    /// Before the colon behind a key. `to` is where the key leads.
    Colon {
        to: Option<usize>,
    },
    Value {
        to: Option<usize>,
    },
    InNumber {
        field: usize,
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

impl FieldFinder {
    /// Looks for these fields.
    #[must_use]
    pub fn new(paths: &[FieldPath]) -> FieldFinder {
        let nothing = vec![None; paths.len()];
        FieldFinder {
            tree: Tree::new(paths),
            found: nothing.clone(),
            fresh: nothing,
            object: 0,
            skipped: 0,
            state: State::Before,
            word: SmallVec::new(),
        }
    }

    /// The next piece.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != State::Lost {
            let seen = self.step(bytes);
            bytes = bytes.get(seen..).unwrap_or_default();
        }
    }

    /// The number in the field of this number, counted from 0 in the order in which they were given, as it is written.
    #[must_use]
    pub fn found(&self, field: usize) -> Option<&str> {
        let fresh = self.fresh.get(field)?.as_deref();
        fresh.or(self.found.get(field)?.as_deref())
    }

    /// Whether what was fed is not JSON, so that nothing more will be found.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.state == State::Lost
    }

    /// Whether an object has ended and no other has begun.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == State::After
    }

    /// Begins anew, with what was found in whole objects. What was found in an object that has not ended is forgotten.
    pub fn begin(&mut self) {
        self.fresh.fill(None);
        self.word.clear();
        (self.object, self.skipped, self.state) = (0, 0, State::Before);
    }

    /// Goes on by at least one byte, and says by how many.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::InString { escaped } => self.in_string(bytes, escaped),
            State::InKey { escaped } => self.in_key(bytes, escaped),
            State::Skipping => self.skipping(bytes),
            State::InNumber { field } => self.in_number(bytes, field),
            State::InWord => {
                let end = bytes.iter().position(|byte| !is_of_word(*byte));
                if end.is_some() {
                    self.state = State::Behind;
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
                self.object = 0;
                State::Key
            }
            (State::Key, b'"') => State::InKey { escaped: false },
            (State::Colon { to }, b':') => State::Value { to },
            (State::Value { to }, _) => return self.begin_value(byte, to),
            (State::Behind, b',') => State::Key,
            (State::Key | State::Behind, b'}') => self.end_object(),
            _ => {
                self.lose();
                State::Lost
            }
        };
        1
    }

    fn begin_value(&mut self, byte: u8, to: Option<usize>) -> usize {
        if let Some(to) = to {
            // Whatever stood there before, this stands there now.
            let fresh = &mut self.fresh;
            self.tree.each_field(to, &mut |field| fresh[field] = None);
        }
        let field = to.and_then(|to| self.tree.node(to).field);
        self.state = match (byte, to) {
            (b'{', Some(to)) if !self.tree.is_leaf(to) => {
                self.object = to;
                State::Key
            }
            (b'{' | b'[', _) => {
                self.skipped = 1;
                State::Skipping
            }
            (b'"', _) => State::InString { escaped: false },
            (b'-' | b'0'..=b'9', _) if field.is_some() => {
                self.word.clear();
                self.state = State::InNumber { field: field.unwrap_or_default() };
                return 0;
            }
            (b'-' | b'0'..=b'9' | b't' | b'f' | b'n', _) => State::InWord,
            _ => {
                self.lose();
                State::Lost
            }
        };
        1
    }

    fn end_object(&mut self) -> State {
        if let Some(parent) = self.tree.parent(self.object) {
            self.object = parent;
            return State::Behind;
        }
        for (found, fresh) in self.found.iter_mut().zip(&mut self.fresh) {
            if let Some(number) = fresh.take() {
                *found = Some(number);
            }
        }
        State::After
    }

    /// What is no JSON says nothing.
    fn lose(&mut self) {
        self.fresh.fill(None);
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
            _ => State::Behind,
        };
        at + 1
    }

    fn in_key(&mut self, bytes: &[u8], escaped: bool) -> usize {
        let (seen, next) = if escaped {
            (1, State::InKey { escaped: false })
        } else {
            match memchr2(b'"', b'\\', bytes) {
                None => (bytes.len(), self.state),
                Some(at) if bytes[at] == b'\\' => (at + 1, State::InKey { escaped: true }),
                Some(at) => {
                    self.keep(&bytes[..at]);
                    let to = self.where_it_leads();
                    self.word.clear();
                    self.state = State::Colon { to };
                    return at + 1;
                }
            }
        };
        self.keep(&bytes[..seen]);
        self.state = next;
        seen
    }

    /// Remembers a piece of a key, if it can still be one that is looked for.
    fn keep(&mut self, piece: &[u8]) {
        let room = self.tree.longest_written_key() + 1;
        let room = room.saturating_sub(self.word.len()).min(piece.len());
        self.word.extend_from_slice(&piece[..room]);
    }

    fn where_it_leads(&self) -> Option<usize> {
        if self.word.len() > self.tree.longest_written_key() {
            return None;
        }
        if !self.word.contains(&b'\\') {
            return self.tree.child(self.object, &self.word);
        }
        let quoted = [b"\"", &self.word[..], b"\""].concat();
        let key: String = serde_json::from_slice(&quoted).ok()?;
        self.tree.child(self.object, key.as_bytes())
    }

    fn in_number(&mut self, bytes: &[u8], field: usize) -> usize {
        let end = bytes.iter().position(|byte| !is_of_word(*byte));
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        let room = (LONGEST_NUMBER + 1).saturating_sub(self.word.len()).min(piece.len());
        self.word.extend_from_slice(&piece[..room]);
        if end.is_some() {
            let is_short = self.word.len() <= LONGEST_NUMBER;
            let number = std::str::from_utf8(&self.word).ok().filter(|_| is_short);
            self.fresh[field] = number.map(Into::into);
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
                        self.lose();
                        self.state = State::Lost;
                        return at + 1;
                    }
                },
                b'}' | b']' => {
                    self.skipped -= 1;
                    if self.skipped == 0 {
                        self.state = State::Behind;
                        return at + 1;
                    }
                }
                _ => {}
            }
        }
        bytes.len()
    }
}

/// Whether a byte belongs to a number or a word such as `true`.
const fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}
