//! Descriptors with a limit, as operators see them.

use serde::Serialize;
use tidegate_core::RuleId;
use tidegate_core::limit::Limit;

use super::Domain;
use super::allowance::Allowance;
use super::descriptor::Descriptor;

/// A descriptor of a file that has a `rate_limit`.
#[derive(Clone, Debug, Serialize)]
pub struct ListedDescriptor<'d> {
    /// The id to which state belongs: the domain and the path of keys and values in the file.
    #[serde(serialize_with = "as_text")]
    pub id: &'d RuleId,
    /// The domain.
    pub domain: &'d str,
    /// The limit's name; absent if it has none.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'d str,
    /// The number of requests in a unit; absent if they are unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_unit: Option<u32>,
    /// The unit of time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<&'static str>,
    /// Whether the descriptor is counted but never denies.
    pub shadow_mode: bool,
    /// Quota mode: excess is reported to the client, not denied.
    pub quota_mode: bool,
    /// The file.
    pub file: &'d str,
    /// The line in the file.
    pub line: usize,
    #[serde(skip)]
    pub(crate) limit: Option<Limit>,
}

fn as_text<S: serde::Serializer>(id: &&RuleId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.as_str())
}

impl ListedDescriptor<'_> {
    /// The limit; `None` if requests are unlimited.
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        self.limit
    }
}

impl Domain {
    /// The descriptors with a `rate_limit`, in the order of the file. Each precedes those below it.
    pub fn limited_descriptors(&self) -> impl Iterator<Item = ListedDescriptor<'_>> {
        self.top.each().filter_map(|descriptor| self.listed(descriptor))
    }

    /// Returns `true` if this id is that of limits that come with requests.
    #[must_use]
    pub fn is_override(&self, id: &str) -> bool {
        self.overrides.iter().any(|rule| rule.as_str() == id)
    }

    fn listed<'d>(&'d self, descriptor: &'d Descriptor) -> Option<ListedDescriptor<'d>> {
        let rate_limit = descriptor.rate_limit.as_ref()?;
        Some(ListedDescriptor {
            id: &descriptor.rule,
            domain: self.name(),
            name: &rate_limit.name,
            requests_per_unit: rate_limit.per_unit.map(|per_unit| per_unit.requests),
            unit: rate_limit.per_unit.map(|per_unit| per_unit.unit.name()),
            shadow_mode: descriptor.flags.shadow_mode,
            quota_mode: descriptor.flags.quota_mode,
            file: &descriptor.place.file,
            line: descriptor.place.line,
            limit: match rate_limit.allowance {
                Allowance::Limited(limit) => Some(limit),
                Allowance::Unlimited | Allowance::Whitelisted => None,
            },
        })
    }
}
