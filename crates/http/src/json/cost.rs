//! Finds the cost of a request in its body.

use tidegate_rules::{BodyNumber, FieldPath};

use super::encoding::StringDecoder;
use super::tree::JsonTree;
use super::walker::{Collect, LONGEST_TEXT, ValueKind, Walker, unescaped};

/// Finds the numbers in a few fields of a request's JSON body, which arrives in pieces of any size and is not buffered.
///
/// A client chooses every byte of its request, and JSON parsers differ. Of a repeated key some take the first value and some
/// the last; some stop after the first document and others take the last one; some accept `"500"` or `Max_Tokens`. So the
/// largest number that any parser may find in a field counts. If a parser may find none, the number is
/// [`AtMost`](BodyNumber::AtMost). UTF-16 and UTF-32 are decoded, and a byte order mark is skipped.
///
/// ```
/// use tidegate_rules::BodyNumber;
/// use tidegate_http::CostFinder;
///
/// let found = |body: &str| {
///     let mut finder = CostFinder::new(&["max_tokens".parse()?]);
///     finder.feed(body.as_bytes());
///     Ok::<_, tidegate_rules::FieldPathError>(finder.found(0))
/// };
/// assert_eq!(found(r#"{"max_tokens": 500}"#)?, Some(BodyNumber::Exact(500)));
/// assert_eq!(found(r#"{"max_tokens": 500, "max_tokens": 1}"#)?, Some(BodyNumber::Exact(500)));
/// assert_eq!(found(r#"{"max_tokens": 500}{"max_tokens": 1}"#)?, Some(BodyNumber::AtMost(500)));
/// assert_eq!(found(r#"{"max_tokens": "500"}"#)?, Some(BodyNumber::AtMost(500)));
/// assert_eq!(found("{}")?, None);
/// # Ok::<(), tidegate_rules::FieldPathError>(())
/// ```
#[derive(Debug)]
pub struct CostFinder {
    decoder: StringDecoder,
    walker: Walker<LargestNumbers>,
}

impl CostFinder {
    /// A finder for these fields.
    #[must_use]
    pub fn new(paths: &[FieldPath]) -> CostFinder {
        let collector = |tree: &JsonTree| LargestNumbers {
            fields: vec![CostCandidates::default(); paths.len()],
            seen: vec![false; tree.len()],
            has_begun: false,
        };
        CostFinder { decoder: StringDecoder::default(), walker: Walker::new(paths, collector) }
    }

    /// Reads the next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        let CostFinder { decoder, walker } = self;
        decoder.feed(bytes, &mut |text| walker.feed(text));
    }

    /// The largest number in a field. Fields are numbered from 0 in the order of `paths`.
    ///
    /// The number is [`AtMost`](BodyNumber::AtMost) until the object has ended.
    #[must_use]
    pub fn found(&self, field: usize) -> Option<BodyNumber> {
        let CostCandidates { largest, may_be_missing } = *self.walker.collector.fields.get(field)?;
        let largest = largest?;
        let is_exact = self.walker.is_over() && !may_be_missing;
        Some(if is_exact { BodyNumber::Exact(largest) } else { BodyNumber::AtMost(largest) })
    }

    /// Returns `true` if a document has ended and no other has begun.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.walker.is_over()
    }

    /// Records that the rest of the body will not be read. Every number found becomes [`AtMost`](BodyNumber::AtMost).
    pub fn cut_off(&mut self) {
        self.walker.collector.all_may_be_missing();
    }

    /// Returns `true` if the input is not JSON, so that nothing more will be found.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.walker.is_lost()
    }
}

/// The numbers that parsers may find in one field.
#[derive(Clone, Copy, Debug, Default)]
struct CostCandidates {
    largest: Option<u64>,
    /// A parser may find no number.
    may_be_missing: bool,
}

/// Collects the largest number of each field.
#[derive(Debug)]
struct LargestNumbers {
    fields: Vec<CostCandidates>,
    /// For each node of the tree, whether it has had a value.
    seen: Vec<bool>,
    /// A document has begun.
    has_begun: bool,
}

impl LargestNumbers {
    fn all_may_be_missing(&mut self) {
        self.fields.iter_mut().for_each(|field| field.may_be_missing = true);
    }

    fn candidate(&mut self, field: usize, number: u64) {
        let field = &mut self.fields[field];
        field.largest = field.largest.max(Some(number));
    }
}

impl Collect for LargestNumbers {
    const LENIENT: bool = true;

    fn value(&mut self, tree: &JsonTree, node: usize, kind: ValueKind, exact: bool) {
        let own = tree.node(node).field;
        // A repeated number is still a number to every parser. In a repeated object around it the field may be missing.
        let is_repeated = std::mem::replace(&mut self.seen[node], true);
        let fields = &mut self.fields;
        tree.each_field(node, &mut |field| {
            let is_number = own == Some(field) && kind == ValueKind::Number;
            let is_within = own != Some(field) && kind == ValueKind::Object && !is_repeated;
            fields[field].may_be_missing |= !exact || !(is_number || is_within);
        });
    }

    fn number(&mut self, field: usize, written: Option<&str>) {
        // A number too long to keep counts as larger than any limit, which most such numbers are.
        let Some(written) = written else { return self.candidate(field, u64::MAX) };
        match BodyNumber::parse(written) {
            Some(number) => self.candidate(field, number.largest()),
            None => {
                self.fields[field].may_be_missing = true;
                if let Some(number) = lenient(written) {
                    self.candidate(field, number);
                }
            }
        }
    }

    fn text(&mut self, field: usize, escaped: &[u8]) {
        if escaped.len() == LONGEST_TEXT {
            let is_numeric = |byte: &u8| byte.is_ascii_hexdigit() || b" \\_+-.uxX".contains(byte);
            if escaped.iter().all(is_numeric) && escaped.iter().any(u8::is_ascii_digit) {
                self.candidate(field, u64::MAX);
            }
        }
        // A truncated text may end within an escape.
        let whole = if escaped.len() == LONGEST_TEXT { without_half_escape(escaped) } else { escaped };
        if let Some(number) = unescaped(whole).and_then(|text| lenient(&text)) {
            self.candidate(field, number);
        }
    }

    fn begin_document(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) {
            self.all_may_be_missing();
        }
    }

    fn end_document(&mut self) {}

    fn lose(&mut self) {
        self.all_may_be_missing();
    }
}

/// The part of a truncated text that can be unescaped. An escape has at most six bytes, and a surrogate pair has two
/// escapes.
fn without_half_escape(escaped: &[u8]) -> &[u8] {
    let end = escaped.len().saturating_sub(12);
    let escaped = match escaped[end..].iter().position(|byte| *byte == b'\\') {
        Some(backslash) => &escaped[..end + backslash],
        None => escaped,
    };
    // The text may also end within a character.
    std::str::from_utf8(escaped).map_or_else(|error| &escaped[..error.valid_up_to()], str::as_bytes)
}

/// The number that a lenient parser may find in a text: with a sign, with underscores, in hexadecimal, or with trailing
/// text.
fn lenient(text: &str) -> Option<u64> {
    let text: String = text.trim().chars().filter(|char| *char != '_').collect();
    let text = text.strip_prefix('+').unwrap_or(&text);
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let end = digits.find(|char: char| !char.is_ascii_hexdigit()).unwrap_or(digits.len());
        let hexadecimal = u64::from_str_radix(&digits[..end], 16);
        return (end > 0).then(|| hexadecimal.unwrap_or(u64::MAX));
    }
    // The exponent counts only if it has digits.
    let digits = |text: &str| text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let whole = digits(text);
    let fraction = text[whole..].strip_prefix('.').map_or(0, |rest| 1 + digits(rest));
    let mantissa = whole + fraction;
    let exponent = text[mantissa..].strip_prefix(['e', 'E']).map_or(0, |rest| {
        let sign = usize::from(rest.starts_with(['+', '-']));
        match digits(&rest[sign..]) {
            0 => 0,
            digits => 1 + sign + digits,
        }
    });
    BodyNumber::parse(&text[..mantissa + exponent]).map(BodyNumber::largest)
}
