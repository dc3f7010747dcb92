//! Finds numbers in some fields of a response.

use tidegate_rules::FieldPath;

use super::tree::JsonTree;
use super::walker::{Collect, ValueKind, Walker};

/// Finds the numbers in a few fields of a JSON object, which arrives in pieces of any size and is not buffered.
///
/// Its memory does not grow with the input. The last value of a repeated field counts, as in most JSON parsers, also across
/// several objects, as in JSON lines. The input must be trusted, such as an upstream's response; for requests use
/// [`CostFinder`](crate::CostFinder).
///
/// ```
/// use tidegate_http::FieldFinder;
///
/// let mut finder = FieldFinder::new(&["usage.total_tokens".parse()?, "max_tokens".parse()?]);
/// finder.feed(br#"{ "choices": [{ "text": "usage: {" }], "usa"#);
/// finder.feed(br#"ge": { "total_tokens": 48"#);
/// finder.feed(br#"0 } }"#);
/// assert_eq!((finder.found(0), finder.found(1)), (Some("480"), None));
/// # Ok::<(), tidegate_rules::FieldPathError>(())
/// ```
#[derive(Debug)]
pub struct FieldFinder {
    walker: Walker<LastNumbers>,
}

/// A number, as written.
type Number = Box<str>;

/// The last number in each field.
#[derive(Debug)]
struct LastNumbers {
    /// In complete objects.
    found: Vec<Option<Number>>,
    /// In the current object.
    fresh: Vec<Option<Number>>,
}

impl FieldFinder {
    /// A finder for these fields.
    #[must_use]
    pub fn new(paths: &[FieldPath]) -> FieldFinder {
        let nothing = vec![None; paths.len()];
        FieldFinder { walker: Walker::new(paths, |_| LastNumbers { found: nothing.clone(), fresh: nothing }) }
    }

    /// Reads the next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.walker.feed(bytes);
    }

    /// The last number in a field, as written. Fields are numbered from 0 in the order of `paths`.
    #[must_use]
    pub fn found(&self, field: usize) -> Option<&str> {
        let LastNumbers { found, fresh } = &self.walker.collector;
        fresh.get(field)?.as_deref().or(found.get(field)?.as_deref())
    }

    /// Returns `true` if the input is not JSON, so that nothing more will be found.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.walker.is_lost()
    }

    /// Starts a new document. Numbers of complete objects are kept; those of an incomplete object are dropped.
    pub fn begin(&mut self) {
        self.walker.collector.fresh.fill(None);
        self.walker.begin();
    }
}

impl Collect for LastNumbers {
    const LENIENT: bool = false;

    /// Clears the fields at this node: a new value replaces the previous ones.
    fn value(&mut self, tree: &JsonTree, node: usize, _: ValueKind, _: bool) {
        let fresh = &mut self.fresh;
        tree.each_field(node, &mut |field| fresh[field] = None);
    }

    fn number(&mut self, field: usize, written: Option<&str>) {
        self.fresh[field] = written.map(Into::into);
    }

    fn text(&mut self, _: usize, _: &[u8]) {}

    fn begin_document(&mut self) {}

    fn end_document(&mut self) {
        for (found, fresh) in self.found.iter_mut().zip(&mut self.fresh) {
            if let Some(number) = fresh.take() {
                *found = Some(number);
            }
        }
    }

    /// Drops the numbers of the current object: it is not valid JSON.
    fn lose(&mut self) {
        self.fresh.fill(None);
    }
}
