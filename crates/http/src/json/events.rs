//! Finds numbers in server-sent events.

use memchr::memchr2;
use tidegate_rules::FieldPath;

use super::finder::FieldFinder;

/// Finds the numbers in a few fields of server-sent events (`text/event-stream`) with JSON data. The last event that has a
/// field counts. Events are not buffered.
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
    position: LinePosition,
    /// The last byte was a carriage return. A line feed after it does not end a second line.
    after_return: bool,
    is_done: bool,
}

/// The position within a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinePosition {
    /// In the field name, of which `matching` bytes are those of `data`.
    Name { matching: usize },
    /// After the colon, where one space is skipped.
    Colon,
    /// In data that so far equals the first `matching` bytes of [`END_MARKER`].
    EndMarker { matching: usize },
    /// In other data.
    Data,
    /// In a line with another field name.
    Other,
}

const NAME: &[u8] = b"data";
/// The last event's data in OpenAI's protocol and its imitations.
const END_MARKER: &[u8] = b"[DONE]";

impl EventFinder {
    /// A finder for these fields.
    #[must_use]
    pub fn new(paths: &[FieldPath]) -> EventFinder {
        let position = LinePosition::Name { matching: 0 };
        EventFinder { finder: FieldFinder::new(paths), position, after_return: false, is_done: false }
    }

    /// Reads the next piece.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                bytes = rest;
                continue;
            }
            let end = memchr2(b'\n', b'\r', bytes);
            let (line, _) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.read(line);
            let Some(end) = end else { return };
            self.after_return = bytes.get(end) == Some(&b'\r');
            self.end_line();
            bytes = bytes.get(end + 1..).unwrap_or_default();
        }
    }

    /// The last number in a field, as written. Fields are numbered from 0 in the order of `paths`.
    #[must_use]
    pub fn found(&self, field: usize) -> Option<&str> {
        self.finder.found(field)
    }

    /// Returns `true` if the stream contained its end marker.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Reads a piece of a line.
    fn read(&mut self, mut piece: &[u8]) {
        while let Some((&byte, rest)) = piece.split_first() {
            match self.position {
                LinePosition::Name { matching } => {
                    self.position = match (NAME.get(matching), byte) {
                        (None, b':') => LinePosition::Colon,
                        (Some(&expected), byte) if byte == expected => LinePosition::Name { matching: matching + 1 },
                        _ => LinePosition::Other,
                    };
                }
                LinePosition::Colon => {
                    self.position = LinePosition::EndMarker { matching: 0 };
                    if byte != b' ' {
                        continue;
                    }
                }
                LinePosition::EndMarker { matching } => {
                    self.position = match END_MARKER.get(matching) {
                        Some(&expected) if byte == expected => LinePosition::EndMarker { matching: matching + 1 },
                        _ => LinePosition::Data,
                    };
                    self.finder.feed(&[byte]);
                }
                LinePosition::Data => return self.finder.feed(piece),
                LinePosition::Other => return,
            }
            piece = rest;
        }
    }

    fn end_line(&mut self) {
        match self.position {
            // An empty line ends the event.
            LinePosition::Name { matching: 0 } => self.finder.begin(),
            LinePosition::EndMarker { matching } if matching == END_MARKER.len() => self.is_done = true,
            // Several data lines of an event are one text, joined by line feeds.
            LinePosition::EndMarker { .. } | LinePosition::Data => self.finder.feed(b"\n"),
            LinePosition::Name { .. } | LinePosition::Colon | LinePosition::Other => {}
        }
        self.position = LinePosition::Name { matching: 0 };
    }
}
