//! What people write themselves.

use redis::Script;
use redis::aio::MultiplexedConnection;

/// A token bucket as it is usually scripted: a hash with the tokens left and the time of the last look, in floating point,
/// one call for each request.
const TOKEN_BUCKET: &str = r"
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(state[1]) or burst
local at = tonumber(state[2]) or now
tokens = math.min(burst, tokens + (now - at) * rate)
local allowed = tokens >= cost
if allowed then
  tokens = tokens - cost
end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate) + 1)
return { allowed and 1 or 0, math.floor(tokens) }
";

#[derive(Clone)]
pub struct Scripted {
    script: std::sync::Arc<Script>,
    connection: MultiplexedConnection,
}

impl Scripted {
    pub async fn new(mut connection: MultiplexedConnection) -> Scripted {
        let script = Script::new(TOKEN_BUCKET);
        script.load_async(&mut connection).await.expect("a script that loads");
        Scripted { script: script.into(), connection }
    }

    /// A hundred a second, bursts of `burst`.
    pub async fn check(&mut self, key: &str, burst: u64) -> bool {
        let mut call = self.script.prepare_invoke();
        call.key(key).arg(100).arg(burst).arg(1);
        let (allowed, _left): (u64, u64) = call.invoke_async(&mut self.connection).await.expect("an answer");
        allowed == 1
    }
}

/// A counter for each second: what is not even a token bucket.
pub async fn count(connection: &mut MultiplexedConnection, key: &str) -> u64 {
    let mut both = redis::pipe();
    both.cmd("INCR").arg(key).cmd("EXPIRE").arg(key).arg(2).ignore();
    let (count,): (u64,) = both.query_async(connection).await.expect("an answer");
    count
}
