//! `CL.THROTTLE key max_burst count period [quantity]`: a check under the limit in the arguments, as in redis-cell; and
//! `THROTTLE`, as in throttlecrab.
//!
//! The reply consists of five integers. Seconds are rounded up, as in redis-cell since version 0.3.1, so that a client
//! that waits as long as told succeeds. Here the rounding includes fractions of a millisecond. As in redis-cell,
//! numbers may have a `+` and leading zeros; a period may also have a fraction. If a key's limit changes, its spent
//! cost is kept, where redis-cell interprets the stored time by the new limit. A `quantity` of 0 reads the state
//! without charging.

use std::sync::Arc;

use tidegate_core::limit::{LONGEST_PERIOD, LimitError};
use tidegate_core::{Decision, Key, Micros, Outcome, RuleId};
use tidegate_rules::InlineLimit;

use super::{CommandAnswer, wrong_number};
use crate::resp::RespServer;
use crate::resp::limit_cache::LimitArgs;
use crate::resp::reply::{ReplyWriter, echo};
use crate::resp::request::{RequestWords, lenient_integer, seconds};
use crate::resp::session::RespSession;
use crate::resp::settings::Settings;

const NAME: &[u8] = b"CL.THROTTLE";

/// Dialect of the command. Both count the same keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::resp) enum ThrottleDialect {
    /// `CL.THROTTLE`. Allows a burst of `max_burst` beyond the first request. The reply: 1 if the request is limited,
    /// else 0; the limit; the remaining cost; seconds until a retry, -1 if the request was allowed or can never
    /// succeed; seconds until the limit is fully available.
    RedisCell,
    /// `THROTTLE`. Allows a burst of `max_burst`. The reply: 1 if the request is allowed, else 0; the limit; the
    /// remaining cost; seconds until the limit is fully available; seconds until a retry, 0 if the request was allowed,
    /// -1 if it can never succeed.
    Throttlecrab,
}

impl ThrottleDialect {
    const fn least_burst(self) -> u8 {
        match self {
            ThrottleDialect::RedisCell => 0,
            ThrottleDialect::Throttlecrab => 1,
        }
    }

    const fn command(self) -> &'static str {
        match self {
            ThrottleDialect::RedisCell => "CL.THROTTLE",
            ThrottleDialect::Throttlecrab => "THROTTLE",
        }
    }
}

#[inline]
pub(super) fn is_named(name: &[u8]) -> bool {
    name == NAME || name.eq_ignore_ascii_case(NAME)
}

/// Invalid arguments.
#[derive(Debug, thiserror::Error)]
pub(super) enum ThrottleError {
    #[error("wrong number of arguments")]
    Number,
    #[error("value is not an integer or out of range: {what} must be a whole number, {least} or more")]
    Integer { what: &'static str, least: u8 },
    #[error(
        "value is not an integer or out of range: period is a number of seconds above 0, with at most six decimals"
    )]
    Seconds,
    #[error("a period of {0} seconds is longer than {LONGEST_PERIOD}: use a shorter one")]
    Period(String),
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Arguments of the command.
struct ThrottleArgs<'a> {
    key: &'a [u8],
    args: LimitArgs,
    quantity: u64,
}

impl<'a> ThrottleArgs<'a> {
    #[inline]
    fn decode(dialect: ThrottleDialect, words: RequestWords<'a>) -> Result<ThrottleArgs<'a>, ThrottleError> {
        if !(5..=6).contains(&words.len()) {
            return Err(ThrottleError::Number);
        }
        let number = |index, what, least| {
            let number = words.get(index).and_then(lenient_integer).and_then(|number| u64::try_from(number).ok());
            number.filter(|number| *number >= u64::from(least)).ok_or(ThrottleError::Integer { what, least })
        };
        let least = dialect.least_burst();
        let burst = number(2, "max_burst", least)? - u64::from(least);
        let count = number(3, "count", 1)?;
        let word = words.get(4).unwrap_or_default();
        let period = seconds(word).filter(|period| *period > Micros::ZERO).ok_or(ThrottleError::Seconds)?;
        if period > LONGEST_PERIOD {
            return Err(ThrottleError::Period(echo(word)));
        }
        let quantity = if words.len() == 6 { number(5, "quantity", 0)? } else { 1 };
        Ok(ThrottleArgs { key: words.get(1).unwrap_or_default(), args: LimitArgs { burst, count, period }, quantity })
    }
}

#[inline]
pub(super) fn answer<'d>(
    dialect: ThrottleDialect,
    service: &'d RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    match try_answer(dialect, service, session, words, reply) {
        Ok(answer) => return answer,
        Err(ThrottleError::Number) => wrong_number(dialect.command(), reply),
        Err(wrong) => reply.error("ERR", wrong),
    }
    CommandAnswer::Now
}

/// Parses a command without charging anything.
pub(super) fn validate(
    dialect: ThrottleDialect,
    service: &RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
) -> Result<(), ThrottleError> {
    let ThrottleArgs { args, .. } = ThrottleArgs::decode(dialect, words)?;
    limit_of(service, session, args).map(drop)
}

#[inline]
fn try_answer<'d>(
    dialect: ThrottleDialect,
    service: &'d RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> Result<CommandAnswer<'d>, ThrottleError> {
    let ThrottleArgs { key, args, quantity } = ThrottleArgs::decode(dialect, words)?;
    let limit = limit_of(service, session, args)?;
    if let Some((decision, _)) = service.engine.charge(limit, &Key::from(key), quantity).now() {
        reply.five(integers(dialect, limit, &decision));
        return Ok(CommandAnswer::Now);
    }
    let (limit, key, protocol) = (Arc::clone(limit), key.to_vec(), reply.protocol());
    Ok(CommandAnswer::Later(Box::pin(async move {
        let (decision, _) = service.engine.charge(&limit, &Key::from(key.as_slice()), quantity).await;
        let mut out = Vec::with_capacity(64);
        ReplyWriter::new(&mut out, protocol).five(integers(dialect, &limit, &decision));
        out
    })))
}

#[inline]
fn limit_of<'s>(
    service: &RespServer,
    session: &'s mut RespSession,
    args: LimitArgs,
) -> Result<&'s Arc<InlineLimit>, ThrottleError> {
    let RespSession { limits, settings, .. } = session;
    Ok(limits.get(args, |args| build(&service.throttle, settings, args))?)
}

fn build(rule: &RuleId, settings: &Settings, args: LimitArgs) -> Result<InlineLimit, LimitError> {
    let limit = InlineLimit::new(rule.clone(), args.limit()?, settings.on_store_failure);
    Ok(match settings.store_deadline {
        Some(deadline) => limit.deadline(deadline),
        None => limit,
    })
}

#[inline]
fn integers(dialect: ThrottleDialect, limit: &InlineLimit, decision: &Decision) -> [i64; 5] {
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let capacity = whole(limit.limit().capacity());
    let (remaining, reset_after) = (whole(decision.remaining), whole(decision.reset_after.as_secs_ceil()));
    let wait = match decision.outcome {
        Outcome::Allow { .. } => None,
        Outcome::Deny { retry_after } => Some(whole(retry_after.as_secs_ceil())),
        Outcome::TooLarge { .. } => Some(-1),
    };
    match dialect {
        ThrottleDialect::RedisCell => [i64::from(wait.is_some()), capacity, remaining, wait.unwrap_or(-1), reset_after],
        ThrottleDialect::Throttlecrab => {
            [i64::from(wait.is_none()), capacity, remaining, reset_after, wait.unwrap_or(0)]
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{RuleId, Timestamp};
    use tidegate_rules::OnStoreFailure;

    use super::*;

    /// Replies to requests for one key, given as (milliseconds, quantity).
    fn answers(args: LimitArgs, asked: &[(u64, u64)]) -> Vec<[i64; 5]> {
        let limit = InlineLimit::new(RuleId::new("r"), args.limit().unwrap(), OnStoreFailure::Deny);
        let (mut state, mut now) = (limit.limit().fresh(), 1_700_000_000_000);
        let mut answer = |&(waited, quantity): &(u64, u64)| {
            now += waited;
            let decision = limit.limit().decide(&mut state, quantity, Timestamp::from_micros(now * 1_000));
            integers(ThrottleDialect::RedisCell, &limit, &decision)
        };
        asked.iter().map(&mut answer).collect()
    }

    const fn args(burst: u64, count: u64, period: u64) -> LimitArgs {
        LimitArgs { burst, count, period: Micros::from_secs(period) }
    }

    #[test]
    fn the_example_of_redis_cell_is_answered_as_there() {
        assert_eq!(answers(args(15, 30, 60), &[(0, 1)]), [[0, 16, 15, -1, 2]]);
    }

    #[test]
    fn a_burst_is_spent_and_comes_back() {
        let mut asked = vec![(0, 1); 17];
        asked.extend([(2_000, 1), (0, 1), (32_000, 0)]);
        let answers = answers(args(15, 30, 60), &asked);
        for (index, answer) in (0..).zip(&answers[..16]) {
            assert_eq!(*answer, [0, 16, 15 - index, -1, 2 * (index + 1)]);
        }
        assert_eq!(answers[16..], [[1, 16, 0, 2, 32], [0, 16, 0, -1, 32], [1, 16, 0, 2, 32], [0, 16, 16, -1, 0]]);
    }

    #[test]
    fn without_a_burst_one_passes_at_a_time() {
        let asked = [(0, 1), (0, 1), (1_000, 1)];
        assert_eq!(answers(args(0, 1, 1), &asked), [[0, 1, 0, -1, 1], [1, 1, 0, 1, 1], [0, 1, 0, -1, 1]]);
    }

    /// Half a second remains.
    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(answers(args(0, 1, 1), &[(0, 1), (500, 1)])[1], [1, 1, 0, 1, 1]);
        assert_eq!(answers(args(4, 10, 1), &[(0, 1)]), [[0, 5, 4, -1, 1]]);
        assert_eq!(answers(args(0, 1, 60), &[(0, 1), (30_001, 1)])[1], [1, 1, 0, 30, 30]);
    }

    #[test]
    fn a_quantity_of_nothing_takes_nothing_and_is_never_limited() {
        let asked = [(0, 0), (0, 16), (0, 0), (0, 1), (0, 0)];
        let all = [[0, 16, 16, -1, 0], [0, 16, 0, -1, 32], [0, 16, 0, -1, 32], [1, 16, 0, 2, 32], [0, 16, 0, -1, 32]];
        assert_eq!(answers(args(15, 30, 60), &asked), all);
    }

    #[test]
    fn costs_that_never_fit_have_no_retry() {
        let all = [[1, 16, 16, -1, 0], [0, 16, 12, -1, 8], [1, 16, 12, 4, 8]];
        assert_eq!(answers(args(15, 30, 60), &[(0, 17), (0, 4), (0, 14)]), all);
    }

    #[test]
    fn high_rates_hold() {
        let asked: Vec<_> = std::iter::repeat_n((0, 1), 11).chain([(1, 20)]).collect();
        let answers = answers(args(9, 10_000_000, 1), &asked);
        assert!(answers[..10].iter().all(|answer| answer[0] == 0));
        assert_eq!((answers[10], answers[11][0]), ([1, 10, 0, 1, 1], 1));
    }

    #[test]
    fn the_largest_numbers_are_counted_or_refused() {
        assert!(args(u64::MAX, 1, 1).limit().is_err());
        assert!(args(1, u64::MAX, 1).limit().is_err());
        assert!(args(1, 1, u64::MAX).limit().is_err());
        assert!(args(1, 0, 1).limit().is_err() && args(1, 1, 0).limit().is_err());
        assert_eq!(answers(args(1_000_000_000, 1_000_000, 1), &[(0, 1)])[0][..3], [0, 1_000_000_001, 1_000_000_000]);
    }
}
