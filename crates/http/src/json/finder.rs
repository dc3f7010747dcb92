//! Finding the numbers that stand in a few fields of what an upstream says.

use tidegate_rules::FieldPath;

use super::tree::Tree;
use super::walker::{Collect, Kind, Walker};

/// Finds the numbers that stand in a few fields of a JSON object, which comes in pieces of any size and is not kept.
///
/// What it remembers does not grow with what it sees. Of a field that comes twice the last counts, as it does to most
/// readers of JSON. After an object there can be another, as in lines of JSON: of each field the last number counts. That is
/// for those who are trusted to say what they mean; for requests there is [`CostFinder`](crate::CostFinder).
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
    walker: Walker<Last>,
}

/// A number as it is written.
type Number = Box<str>;

/// The last number in each field.
#[derive(Debug)]
struct Last {
    /// Of objects that have ended.
    found: Vec<Option<Number>>,
    /// Of the present one.
    fresh: Vec<Option<Number>>,
}

impl FieldFinder {
    /// Looks for these fields.
    #[must_use]
    pub fn new(paths: &[FieldPath]) -> FieldFinder {
        let nothing = vec![None; paths.len()];
        FieldFinder { walker: Walker::new(paths, |_| Last { found: nothing.clone(), fresh: nothing }) }
    }

    /// The next piece.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.walker.feed(bytes);
    }

    /// The number in the field of this number, counted from 0 in the order in which they were given, as it is written.
    #[must_use]
    pub fn found(&self, field: usize) -> Option<&str> {
        let Last { found, fresh } = &self.walker.collector;
        fresh.get(field)?.as_deref().or(found.get(field)?.as_deref())
    }

    /// Whether what was fed is not JSON, so that nothing more will be found.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.walker.is_lost()
    }

    /// Begins anew, with what was found in whole objects. What was found in an object that has not ended is forgotten.
    pub fn begin(&mut self) {
        self.walker.collector.fresh.fill(None);
        self.walker.begin();
    }
}

impl Collect for Last {
    const LENIENT: bool = false;

    /// Whatever stood there before, this stands there now.
    fn value(&mut self, tree: &Tree, node: usize, _: Kind, _: bool) {
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

    /// What is no JSON says nothing.
    fn lose(&mut self) {
        self.fresh.fill(None);
    }
}
