//! The name under which a descriptor is counted.

use std::borrow::Cow;

use super::lookup::{DescriptorMatch, MatchKind};

impl<'d> DescriptorMatch<'d, '_> {
    /// The name of the descriptor's metrics, as in envoyproxy/ratelimit: the domain, and the keys and values in the file.
    /// With `value_to_metric` a descriptor adds the request's value. With `detailed_metric` the name contains all values of
    /// the request. Values that share a threshold are represented by their pattern.
    #[must_use]
    pub fn metric(&self) -> Cow<'d, str> {
        match self.descriptor {
            Some(descriptor) if !descriptor.metric_varies => Cow::Borrowed(&descriptor.metric),
            Some(descriptor) => Cow::Owned(self.with_values(descriptor.flags.detailed_metric)),
            None => Cow::Owned(self.as_asked()),
        }
    }

    fn with_values(&self, detailed: bool) -> String {
        let mut name = self.domain.name.to_string();
        self.domain.walk(self.entries, |descriptor, by, (key, value)| {
            let pattern = || {
                let after_key = descriptor.composite.strip_prefix(key).and_then(|rest| rest.strip_prefix('_'));
                after_key.unwrap_or(&descriptor.composite)
            };
            let value = match by {
                MatchKind::Pattern if descriptor.flags.share_threshold => pattern(),
                _ if detailed || descriptor.flags.value_to_metric => value,
                MatchKind::Pattern => pattern(),
                MatchKind::KeyAndValue => value,
                MatchKind::Key => "",
            };
            push(&mut name, key, value);
        });
        name
    }

    fn as_asked(&self) -> String {
        let mut name = self.domain.name.to_string();
        for (key, value) in self.entries {
            push(&mut name, key, value);
        }
        name
    }
}

fn push(name: &mut String, key: &str, value: &str) {
    name.push('.');
    name.push_str(key);
    if !value.is_empty() {
        name.push('_');
        name.push_str(value);
    }
}
