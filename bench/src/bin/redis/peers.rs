//! Scripts as people write them themselves.

use redis::Script;
use redis::aio::MultiplexedConnection;

/// Token buckets as they are usually scripted: a hash for each, with the remaining tokens and the last time, in
/// floating point, and one call per request.
const TOKEN_BUCKETS: &str = r"
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local left, allowed = {}, true
for i, key in ipairs(KEYS) do
  local state = redis.call('HMGET', key, 'tokens', 'at')
  local tokens = tonumber(state[1]) or burst
  local at = tonumber(state[2]) or now
  left[i] = math.min(burst, tokens + (now - at) * rate)
  allowed = allowed and left[i] >= cost
end
for i, key in ipairs(KEYS) do
  if allowed then
    left[i] = left[i] - cost
  end
  redis.call('HSET', key, 'tokens', left[i], 'at', now)
  redis.call('EXPIRE', key, math.ceil(burst / rate) + 1)
end
return { allowed and 1 or 0, math.floor(left[1]) }
";

#[derive(Clone)]
pub struct Scripted {
    script: std::sync::Arc<Script>,
    connection: MultiplexedConnection,
}

impl Scripted {
    pub async fn new(mut connection: MultiplexedConnection) -> Scripted {
        let script = Script::new(TOKEN_BUCKETS);
        script.load_async(&mut connection).await.expect("a script that loads");
        Scripted { script: script.into(), connection }
    }

    /// Checks this many limits, each of a hundred a second with a burst of `burst`.
    pub async fn check(&mut self, key: &str, limits: u64, burst: u64) -> bool {
        let mut call = self.script.prepare_invoke();
        call.key(key);
        for limit in 1..limits {
            call.key(format!("{key}:{limit}"));
        }
        call.arg(100).arg(burst).arg(1);
        let (allowed, _left): (u64, u64) = call.invoke_async(&mut self.connection).await.expect("an answer");
        allowed == 1
    }
}

/// A counter per second, which is simpler than a token bucket.
pub async fn count(connection: &mut MultiplexedConnection, key: &str) -> u64 {
    let mut both = redis::pipe();
    both.cmd("INCR").arg(key).cmd("EXPIRE").arg(key).arg(2).ignore();
    let (count,): (u64,) = both.query_async(connection).await.expect("an answer");
    count
}
