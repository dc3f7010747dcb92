//! Finding numbers in the events of a stream.

use memchr::memchr2;
use tidegate_rules::FieldPath;

use super::finder::FieldFinder;

/// Finds the numbers that stand in a few fields of the events that a server sends (`text/event-stream`), whose data are
/// JSON. Of each field, the last event that has it counts. Nothing is kept of the events.
///
/// ```
/// use tidegate_http::EventFinder;
///
/// let mut finder = EventFinder::new(&["usage.total_tokens".parse()?]);
/// finder.feed(b"data: {\"text\": \"Hel\", \"usage\": null}\n\nda");
/// finder.feed(b"ta: {\"usage\": {\"total_tokens\": 480}}\n\ndata: [DONE]\n\n");
/// assert_eq!(finder.found(0), Some("480"));
/// assert!(finder.is_done());
/// # Ok::<(), tidegate_rules::FieldPathError>(())
/// ```
#[derive(Debug)]
pub struct EventFinder {
    finder: FieldFinder,
    place: Place,
    /// Whether the last byte was a carriage return, whose line feed ends no second line.
    after_return: bool,
    is_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the name of a line, so many bytes of which are those of `data`.
    Name { matching: usize },
    /// Behind the colon, where one space does not count.
    Colon,
    /// In the data, all of which so far are the beginning of the mark that ends some streams, so many bytes of it.
    Mark { matching: usize },
    /// In the data.
    Data,
    /// In a line that says something else.
    Other,
}

const NAME: &[u8] = b"data";
/// What OpenAI and those who speak its language end their streams with.
const MARK: &[u8] = b"[DONE]";

impl EventFinder {
    /// Looks for these fields.
    #[must_use]
    pub fn new(paths: &[FieldPath]) -> EventFinder {
        let place = Place::Name { matching: 0 };
        EventFinder { finder: FieldFinder::new(paths), place, after_return: false, is_done: false }
    }

    /// The next piece.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                bytes = rest;
                continue;
            }
            let end = memchr2(b'\n', b'\r', bytes);
            let (line, _) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.see(line);
            let Some(end) = end else { return };
            self.after_return = bytes.get(end) == Some(&b'\r');
            self.end_line();
            bytes = bytes.get(end + 1..).unwrap_or_default();
        }
    }

    /// The number in the field of this number, counted from 0 in the order in which they were given, as it is written.
    #[must_use]
    pub fn found(&self, field: usize) -> Option<&str> {
        self.finder.found(field)
    }

    /// Whether the stream has said that it is over.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// A piece of a line.
    fn see(&mut self, mut piece: &[u8]) {
        while let Some((&byte, rest)) = piece.split_first() {
            match self.place {
                Place::Name { matching } => {
                    self.place = match (NAME.get(matching), byte) {
                        (None, b':') => Place::Colon,
                        (Some(&expected), byte) if byte == expected => Place::Name { matching: matching + 1 },
                        _ => Place::Other,
                    };
                }
                Place::Colon => {
                    self.place = Place::Mark { matching: 0 };
                    if byte != b' ' {
                        continue;
                    }
                }
                Place::Mark { matching } => {
                    self.place = match MARK.get(matching) {
                        Some(&expected) if byte == expected => Place::Mark { matching: matching + 1 },
                        _ => Place::Data,
                    };
                    self.finder.feed(&[byte]);
                }
                Place::Data => return self.finder.feed(piece),
                Place::Other => return,
            }
            piece = rest;
        }
    }

    fn end_line(&mut self) {
        match self.place {
            // An empty line ends the event.
            Place::Name { matching: 0 } => self.finder.begin(),
            Place::Mark { matching } if matching == MARK.len() => self.is_done = true,
            // Lines of data are one text, with a line feed between.
            Place::Mark { .. } | Place::Data => self.finder.feed(b"\n"),
            Place::Name { .. } | Place::Colon | Place::Other => {}
        }
        self.place = Place::Name { matching: 0 };
    }
}
