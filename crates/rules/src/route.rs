//! Path patterns, alone and in large numbers.
//!
//! A pattern is matched segment by segment: `users` is that word, `*` is any one segment, `{id}` is any one segment with a
//! name, `*.png` is one segment of that form, and `**` is any number of segments, including none. Many patterns form one
//! tree, which a path descends once.

use std::collections::HashMap;
use std::fmt;

use ahash::RandomState;

use super::path::normalize;
use super::pattern::Glob;

/// Maximum number of segments of a pattern, which bounds recursion.
const MOST_SEGMENTS: usize = 64;

/// A path pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PathPattern {
    text: String,
    segments: Vec<PathSegment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PathSegment {
    Word(String),
    Form(Glob),
    One,
    Named(String),
    Rest,
}

/// The error for text that is not a path pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PathPatternError {
    #[error("a path begins with `/`")]
    NoSlash,
    #[error("`{0}` is not a name in braces: write `{{name}}` as a whole segment, with letters, digits and `_`")]
    Brace(String),
    #[error("`{{{0}}}` is used twice")]
    SameName(String),
    #[error("`**` matches whole segments: write it between slashes")]
    HalfRest,
    #[error("`**` is allowed once at the end and once before it: more would make matching slow")]
    ManyRests,
    #[error("a path of more than {MOST_SEGMENTS} segments: end it with `/**` instead")]
    Long,
    #[error("this path is never seen: paths are normalised before they are matched; write `{0}`")]
    NotNormal(String),
}

impl PathPattern {
    pub(super) fn parse(text: &str) -> Result<PathPattern, PathPatternError> {
        let Some(rest) = text.strip_prefix('/') else { return Err(PathPatternError::NoSlash) };
        let mut segments = Vec::new();
        for part in rest.split('/').filter(|_| !rest.is_empty()) {
            if segments.len() == MOST_SEGMENTS {
                return Err(PathPatternError::Long);
            }
            let segment = PathSegment::parse(part)?;
            if let PathSegment::Named(name) = &segment
                && segments.contains(&segment)
            {
                return Err(PathPatternError::SameName(name.clone()));
            }
            segments.push(segment);
        }
        // Clients choose the path, so the time to match it must not grow exponentially with its length.
        let before_end = &segments[..segments.len().saturating_sub(1)];
        if before_end.iter().filter(|segment| **segment == PathSegment::Rest).count() > 1 {
            return Err(PathPatternError::ManyRests);
        }
        // Wildcards are replaced by a sample, because only the words between them must be normalised.
        let sample = text.replace("**", "x").replace(['*', '{', '}'], "x");
        if normalize(&sample) != sample {
            let normal =
                normalize(&text.replace('{', "\u{1}").replace('}', "\u{2}")).replace("%01", "{").replace("%02", "}");
            return Err(PathPatternError::NotNormal(normal));
        }
        Ok(PathPattern { text: text.to_owned(), segments })
    }

    /// The original text of the pattern.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        walk(&self.segments, path, usize::MAX).is_some()
    }

    /// The names in the pattern.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            PathSegment::Named(name) => Some(name.as_str()),
            PathSegment::Word(_) | PathSegment::Form(_) | PathSegment::One | PathSegment::Rest => None,
        })
    }

    /// The segment of `path` with the name `name`, if the pattern matches.
    pub(super) fn named<'p>(&self, name: &str, path: &'p str) -> Option<&'p str> {
        let wanted = self.segments.iter().position(|s| matches!(s, PathSegment::Named(known) if known == name))?;
        walk(&self.segments, path, wanted)
    }

    /// Whether it matches every path.
    pub(super) fn is_everything(&self) -> bool {
        !self.segments.is_empty() && self.segments.iter().all(|segment| *segment == PathSegment::Rest)
    }

    /// Whether it certainly matches every path that `other` matches. Detects only simple cases.
    pub(super) fn covers(&self, other: &PathPattern) -> bool {
        let (wide, narrow) = (&self.segments[..], &other.segments[..]);
        match wide {
            [wide @ .., PathSegment::Rest] => {
                narrow.len() >= wide.len() && wide.iter().zip(narrow).all(|(wide, narrow)| wide.covers(narrow))
            }
            wide => wide.len() == narrow.len() && wide.iter().zip(narrow).all(|(wide, narrow)| wide.covers(narrow)),
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PathSegment {
    fn parse(part: &str) -> Result<PathSegment, PathPatternError> {
        if part.contains(['{', '}']) {
            let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            let is_name =
                |name: &&str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            return match name.filter(is_name) {
                Some(name) => Ok(PathSegment::Named(name.to_owned())),
                None => Err(PathPatternError::Brace(part.to_owned())),
            };
        }
        Ok(match part {
            "**" => PathSegment::Rest,
            "*" => PathSegment::One,
            part if part.contains("**") => return Err(PathPatternError::HalfRest),
            part if part.contains('*') => PathSegment::Form(Glob::new(part)),
            part => PathSegment::Word(part.to_owned()),
        })
    }

    /// Whether it matches every single segment that `other` matches.
    fn covers(&self, other: &PathSegment) -> bool {
        match (self, other) {
            (_, PathSegment::Rest) => *self == PathSegment::Rest,
            (PathSegment::One | PathSegment::Named(_) | PathSegment::Rest, _) => true,
            (PathSegment::Form(glob), PathSegment::Word(word)) => glob.matches(word),
            (PathSegment::Word(_) | PathSegment::Form(_), other) => self == other,
        }
    }

    fn admits(&self, part: &str) -> bool {
        match self {
            PathSegment::Word(word) => word == part,
            PathSegment::Form(glob) => glob.matches(part),
            PathSegment::One | PathSegment::Named(_) | PathSegment::Rest => true,
        }
    }
}

/// The first segment of a normalised path, and the rest.
fn first(path: &str) -> Option<(&str, &str)> {
    match path.split_once('/') {
        Some(split) => Some(split),
        None if path.is_empty() => None,
        None => Some((path, "")),
    }
}

/// The segment of `path` at the pattern's segment `wanted`, if the pattern matches. Empty if the pattern has no such
/// segment.
///
/// Takes time proportional to the product of both lengths: on a mismatch, only the last `**` is extended by a segment. Each
/// `**` matches as little as possible.
fn walk<'p>(pattern: &[PathSegment], path: &'p str, wanted: usize) -> Option<&'p str> {
    let (mut at, mut rest) = (0, path.strip_prefix('/').unwrap_or(path));
    let mut captured = "";
    let mut last_rest: Option<(usize, &str)> = None;
    loop {
        match (pattern.get(at), first(rest)) {
            (None, None) => return Some(captured),
            (Some(PathSegment::Rest), _) => {
                last_rest = Some((at, rest));
                at += 1;
                continue;
            }
            (Some(segment), Some((part, after))) if segment.admits(part) => {
                if at == wanted {
                    captured = part;
                }
                (at, rest) = (at + 1, after);
                continue;
            }
            _ => {}
        }
        let (star, from) = last_rest?;
        let (_, after) = first(from)?;
        last_rest = Some((star, after));
        (at, rest) = (star + 1, after);
    }
}

/// Numbered patterns that are matched with a path at once.
#[derive(Debug, Default)]
pub(super) struct PathTree {
    root: Fork,
    are_any: bool,
}

/// A node of the tree, at which patterns differ.
#[derive(Debug, Default)]
struct Fork {
    words: HashMap<Box<str>, Fork, RandomState>,
    forms: Vec<(Glob, Fork)>,
    one: Option<Box<Fork>>,
    rest: Option<Box<Fork>>,
    /// The numbers of the patterns that end at this node.
    ends: Vec<u32>,
}

impl PathTree {
    /// Whether there are no patterns.
    pub(super) const fn is_empty(&self) -> bool {
        !self.are_any
    }

    pub(super) fn insert(&mut self, pattern: &PathPattern, number: u32) {
        self.are_any = true;
        let mut fork = &mut self.root;
        for segment in &pattern.segments {
            fork = match segment {
                PathSegment::Word(word) => fork.words.entry(word.as_str().into()).or_default(),
                PathSegment::Form(glob) => {
                    let known = fork.forms.iter().position(|(known, _)| known == glob);
                    let index = known.unwrap_or_else(|| {
                        fork.forms.push((glob.clone(), Fork::default()));
                        fork.forms.len() - 1
                    });
                    &mut fork.forms[index].1
                }
                PathSegment::One | PathSegment::Named(_) => fork.one.get_or_insert_default(),
                PathSegment::Rest => fork.rest.get_or_insert_default(),
            };
        }
        fork.ends.push(number);
    }

    /// Passes the numbers of all patterns that match to `found`. A number may occur more than once.
    pub(super) fn find(&self, path: &str, found: &mut impl FnMut(u32)) {
        self.root.find(path.trim_start_matches('/'), found);
    }
}

impl Fork {
    fn find(&self, path: &str, found: &mut impl FnMut(u32)) {
        if let Some(rest) = &self.rest {
            rest.find_anywhere(path, found);
        }
        if path.is_empty() {
            self.ends.iter().copied().for_each(found);
            return;
        }
        let (part, after) = path.split_once('/').unwrap_or((path, ""));
        if let Some(fork) = self.words.get(part) {
            fork.find(after, found);
        }
        for (_, fork) in self.forms.iter().filter(|(glob, _)| glob.matches(part)) {
            fork.find(after, found);
        }
        if let Some(fork) = &self.one {
            fork.find(after, found);
        }
    }

    /// Like `find`, after any number of segments.
    fn find_anywhere(&self, path: &str, found: &mut impl FnMut(u32)) {
        // Fast path: `**` is usually last, so the rest of the path does not matter.
        if self.words.is_empty() && self.forms.is_empty() && self.one.is_none() && self.rest.is_none() {
            self.ends.iter().copied().for_each(found);
            return;
        }
        let mut rest = path;
        loop {
            self.find(rest, found);
            if rest.is_empty() {
                return;
            }
            rest = rest.split_once('/').map_or("", |(_, after)| after);
        }
    }
}
