//! The limits that a connection brings, worked out once.

use std::sync::Arc;

use tidegate_core::limit::{Gcra, Rate};
use tidegate_core::{Limit, LimitError, Micros};
use tidegate_rules::InlineLimit;

/// How many limits of one connection are kept. Most clients bring one or a few.
const MOST: usize = 32;

/// A limit as `CL.THROTTLE` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// How many may come at once beyond the first.
    pub(super) burst: u64,
    pub(super) count: u64,
    pub(super) period: Micros,
}

impl Said {
    /// # Errors
    /// A limit that means nothing or cannot be counted exactly.
    pub(super) fn limit(&self) -> Result<Limit, LimitError> {
        let rate = Rate::new(self.count, self.period)?;
        Ok(Gcra::new(self.burst.saturating_add(1), rate)?.into())
    }
}

/// The last limits that were brought.
#[derive(Debug, Default)]
pub(super) struct Limits {
    kept: Vec<(Said, Arc<InlineLimit>)>,
    /// The one that was asked for last.
    last: usize,
    /// The one that makes room when there is none.
    oldest: usize,
}

impl Limits {
    /// The limit that was said, as `build` makes it the first time.
    #[inline]
    pub(super) fn get(
        &mut self,
        said: Said,
        build: impl FnOnce(Said) -> Result<InlineLimit, LimitError>,
    ) -> Result<&Arc<InlineLimit>, LimitError> {
        if self.kept.get(self.last).is_none_or(|(known, _)| *known != said) {
            self.last = match self.kept.iter().position(|(known, _)| *known == said) {
                Some(found) => found,
                None => self.keep(said, build(said)?),
            };
        }
        Ok(&self.kept[self.last].1)
    }

    fn keep(&mut self, said: Said, limit: InlineLimit) -> usize {
        let kept = (said, Arc::new(limit));
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

    fn build(said: Said) -> Result<InlineLimit, LimitError> {
        Ok(InlineLimit::new(RuleId::new("r"), said.limit()?, OnStoreFailure::Deny))
    }

    #[test]
    fn a_limit_is_what_redis_cell_means_by_it() {
        let said = Said { burst: 15, count: 30, period: Micros::from_secs(60) };
        assert_eq!(said.limit().unwrap().to_string(), "gcra 30/min burst 16");
    }

    #[test]
    fn a_limit_is_built_once_and_found_again() {
        let mut limits = Limits::default();
        for round in 0..3 {
            for burst in 0..10 {
                let said = Said { burst, count: 1, period: Micros::from_secs(1) };
                let found = limits.get(said, |said| if round == 0 { build(said) } else { Err(LimitError::ZeroRate) });
                assert_eq!(found.unwrap().limit().capacity(), burst + 1);
            }
        }
    }

    #[test]
    fn a_flood_of_limits_keeps_a_few() {
        let mut limits = Limits::default();
        for burst in 0..10 * MOST as u64 {
            let said = Said { burst, count: 1, period: Micros::from_secs(1) };
            assert_eq!(limits.get(said, build).unwrap().limit().capacity(), burst + 1);
        }
        assert_eq!(limits.kept.len(), MOST);
    }
}
