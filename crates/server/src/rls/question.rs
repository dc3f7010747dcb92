//! Converts Envoy's messages to questions for the limiter.

use std::ops::Range;

use smallvec::SmallVec;
use tidegate_rules::envoy::{PerUnit, RateUnit};
use tidegate_rules::{DescriptorRequest, Hits};

use super::Settings;
use super::messages::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit};

/// An invalid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuestionError {
    #[error("the domain is empty: name the domain of a rate-limit file")]
    NoDomain,
    #[error("there are no descriptors: send at least one")]
    NoDescriptors,
    #[error("there are {count} descriptors, and at most {most} are answered at once")]
    TooManyDescriptors { count: usize, most: usize },
    #[error("descriptor {descriptor} has a limit without a unit: send SECOND to YEAR")]
    NoUnit { descriptor: usize },
}

/// The descriptors of a message, in the form that the limiter needs. Everything is borrowed from the message.
#[derive(Debug)]
pub(super) struct RlsQuestion<'m> {
    entries: SmallVec<[(&'m str, &'m str); 6]>,
    descriptors: SmallVec<[DescriptorPart; 2]>,
}

/// A descriptor: the range of its entries, its hits, and the limit that it contains.
type DescriptorPart = (Range<usize>, Hits, Option<PerUnit>);

impl<'m> RlsQuestion<'m> {
    pub(super) fn new(message: &'m RateLimitRequest, settings: &Settings) -> Result<RlsQuestion<'m>, QuestionError> {
        if message.domain.is_empty() {
            return Err(QuestionError::NoDomain);
        }
        let (count, most) = (message.descriptors.len(), settings.most_descriptors);
        match count {
            0 => return Err(QuestionError::NoDescriptors),
            _ if count > most => return Err(QuestionError::TooManyDescriptors { count, most }),
            _ => {}
        }
        let mut question = RlsQuestion { entries: SmallVec::new(), descriptors: SmallVec::new() };
        for (index, descriptor) in message.descriptors.iter().enumerate() {
            let limit = descriptor.limit.as_ref().map(|limit| per_unit(limit, index)).transpose()?;
            let begin = question.entries.len();
            let entries = descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
            question.entries.extend(entries);
            question.descriptors.push((begin..question.entries.len(), hits(message, descriptor), limit));
        }
        Ok(question)
    }

    pub(super) fn asked(&self) -> SmallVec<[DescriptorRequest<'_>; 2]> {
        let asked = |(range, hits, limit): &DescriptorPart| DescriptorRequest {
            entries: self.entries.get(range.clone()).unwrap_or_default(),
            hits: *hits,
            limit: *limit,
        };
        self.descriptors.iter().map(asked).collect()
    }
}

/// The descriptor's hits take precedence, even if 0, over those of the request. For a request, 0 means unset, which is
/// 1.
fn hits(message: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    let hits = descriptor.hits_addend.unwrap_or_else(|| message.hits_addend.max(1).into());
    Hits::of(hits, descriptor.is_negative_hits)
}

fn per_unit(limit: &RateLimitOverride, descriptor: usize) -> Result<PerUnit, QuestionError> {
    let unit = match limit.unit() {
        RateLimitUnit::Unknown => return Err(QuestionError::NoUnit { descriptor }),
        RateLimitUnit::Second => RateUnit::Second,
        RateLimitUnit::Minute => RateUnit::Minute,
        RateLimitUnit::Hour => RateUnit::Hour,
        RateLimitUnit::Day => RateUnit::Day,
        RateLimitUnit::Month => RateUnit::Month,
        RateLimitUnit::Year => RateUnit::Year,
    };
    Ok(PerUnit { requests: limit.requests_per_unit, unit })
}
