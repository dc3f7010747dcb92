//! Cache of the limits in a connection's commands.

use std::sync::Arc;

use tidegate_core::limit::{Gcra, LimitError, Rate};
use tidegate_core::{Limit, Micros};
use tidegate_rules::InlineLimit;

/// Number of cached limits per connection. Most clients use one or a few.
const MOST: usize = 32;

/// Limit in the arguments of `CL.THROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitArgs {
    /// Burst beyond the first request.
    pub(super) burst: u64,
    pub(super) count: u64,
    pub(super) period: Micros,
}

impl LimitArgs {
    /// # Errors
    /// If the limit is invalid or cannot be counted exactly.
    pub(super) fn limit(&self) -> Result<Limit, LimitError> {
        let rate = Rate::new(self.count, self.period)?;
        Ok(Gcra::new(self.burst.saturating_add(1), rate)?.into())
    }
}

/// Most recent limits.
#[derive(Debug, Default)]
pub(super) struct LimitCache {
    kept: Vec<(LimitArgs, Arc<InlineLimit>)>,
    /// Index of the most recently used limit.
    last: usize,
    /// Index of the next limit to replace.
    oldest: usize,
}

impl LimitCache {
    /// The limit for these arguments. Calls `build` unless it is cached.
    #[inline]
    pub(super) fn get(
        &mut self,
        args: LimitArgs,
        build: impl FnOnce(LimitArgs) -> Result<InlineLimit, LimitError>,
    ) -> Result<&Arc<InlineLimit>, LimitError> {
        if self.kept.get(self.last).is_none_or(|(known, _)| *known != args) {
            self.last = match self.kept.iter().position(|(known, _)| *known == args) {
                Some(found) => found,
                None => self.keep(args, build(args)?),
            };
        }
        Ok(&self.kept[self.last].1)
    }

    fn keep(&mut self, args: LimitArgs, limit: InlineLimit) -> usize {
        let kept = (args, Arc::new(limit));
        if self.kept.len() < MOST {
            self.kept.push(kept);
            return self.kept.len() - 1;
        }
        let place = self.oldest;
        self.kept[place] = kept;
        self.oldest = (place + 1) % MOST;
        place
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::RuleId;
    use tidegate_rules::OnStoreFailure;

    use super::*;

    fn build(args: LimitArgs) -> Result<InlineLimit, LimitError> {
        Ok(InlineLimit::new(RuleId::new("r"), args.limit()?, OnStoreFailure::Deny))
    }

    #[test]
    fn a_limit_is_what_redis_cell_means_by_it() {
        let args = LimitArgs { burst: 15, count: 30, period: Micros::from_secs(60) };
        assert_eq!(args.limit().unwrap().to_string(), "gcra 30/min burst 16");
    }

    #[test]
    fn a_limit_is_built_once_and_found_again() {
        let mut limits = LimitCache::default();
        for round in 0..3 {
            for burst in 0..10 {
                let args = LimitArgs { burst, count: 1, period: Micros::from_secs(1) };
                let found = limits.get(args, |args| if round == 0 { build(args) } else { Err(LimitError::ZeroRate) });
                assert_eq!(found.unwrap().limit().capacity(), burst + 1);
            }
        }
    }

    #[test]
    fn a_flood_of_limits_keeps_a_few() {
        let mut limits = LimitCache::default();
        for burst in 0..10 * MOST as u64 {
            let args = LimitArgs { burst, count: 1, period: Micros::from_secs(1) };
            assert_eq!(limits.get(args, build).unwrap().limit().capacity(), burst + 1);
        }
        assert_eq!(limits.kept.len(), MOST);
    }
}
