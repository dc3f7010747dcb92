//! Names of keys in `overrides`.

use std::fmt::Write;

use smallvec::SmallVec;

/// The name of a key in overrides. Contains the lengths of parts, so that one value cannot pass for two.
pub(super) fn override_name<'p>(parts: impl ExactSizeIterator<Item = &'p str>) -> String {
    let alone = parts.len() == 1;
    let mut name = String::new();
    for part in parts {
        if !alone {
            let _ = write!(name, "{}:", part.len());
        }
        name.push_str(part);
    }
    name
}

/// The parts of a key with this name in overrides, if it has `number` parts.
pub(super) fn override_parts(name: &str, number: usize) -> SmallVec<[&str; 2]> {
    if number == 1 {
        return SmallVec::from_slice(&[name]);
    }
    let (mut parts, mut rest) = (SmallVec::new(), name);
    while let Some((length, after)) = rest.split_once(':')
        && let Some((part, after)) = length.parse().ok().and_then(|length| after.split_at_checked(length))
    {
        parts.push(part);
        rest = after;
    }
    parts
}
