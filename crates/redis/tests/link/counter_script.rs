//! A minimal script that follows the link's contract.

use std::time::Duration;

use tidegate_redis::link::{Cause, Link, Settings, Unreachable};
use tidegate_redis::{Frame, LinkError};
use tidegate_test_support::eventually;

/// A body begins with the number of its keys. The rest is the operation: `add` increments each key and returns the last
/// one, `peek` returns the last one, `time` returns the time passed to the script, and `fail` raises an error.
pub(crate) const SCRIPT: &str = r"
local function run(keys, what)
  if what == 'time' then return ARGV[1] end
  if what == 'fail' then return redis.error_reply('ERR it was told to') end
  local value = ''
  for _, key in ipairs(keys) do
    value = redis.pcall(what == 'peek' and 'GET' or 'INCR', key)
    if type(value) == 'table' then return value end
  end
  return tostring(value)
end

local answers, at = {}, 0
for i = 2, #ARGV do
  local keys = {}
  for k = 1, string.byte(ARGV[i]) do keys[k] = KEYS[at + k] end
  at = at + #keys
  answers[i - 1] = run(keys, string.sub(ARGV[i], 2))
end
return answers
";

/// Long enough for a call to be answered on a busy machine.
pub(crate) const AMPLE: Duration = Duration::from_secs(20);

/// The default deadline of a call.
pub(crate) const DEADLINE: Duration = Duration::from_millis(20);

pub(crate) fn frame(keys: &[&str], what: &str) -> Frame {
    let keys: Vec<Vec<u8>> = keys.iter().map(|&key| key.into()).collect();
    let mut body = vec![u8::try_from(keys.len()).unwrap()];
    body.extend_from_slice(what.as_bytes());
    Frame { keys, body }
}

pub(crate) fn open(settings: Settings) -> Link {
    Link::open(settings, SCRIPT).unwrap()
}

pub(crate) fn open_url(url: &str) -> Link {
    open(Settings::standalone(url).unwrap())
}

/// A link that has answered a call.
pub(crate) async fn ready(link: &Link) {
    eventually("a first answer", async || peek(link, "nobody", AMPLE).await.ok()).await;
}

pub(crate) async fn add(link: &Link, key: &str, deadline: Duration) -> Result<u64, LinkError> {
    link.call(frame(&[key], "add"), deadline).await.map(number)
}

pub(crate) async fn peek(link: &Link, key: &str, deadline: Duration) -> Result<Vec<u8>, LinkError> {
    link.call(frame(&[key], "peek"), deadline).await
}

/// Waits until calls fail because there is no connection. Returns the reason.
pub(crate) async fn unreachable(link: &Link) -> Unreachable {
    eventually("a link without connection", async || match add(link, "a", DEADLINE).await {
        Err(LinkError::NotRun(Cause::BreakerOpen(cause))) => match &*cause {
            Cause::Unreachable(why) => Some((**why).clone()),
            _ => None,
        },
        // The second is a call sent just before the connection ended; the third occurs on a busy machine.
        Err(LinkError::NotRun(_) | LinkError::Unknown(Cause::ConnectionLost | Cause::Deadline)) => None,
        other => panic!("{other:?}"),
    })
    .await
}

fn number(answer: Vec<u8>) -> u64 {
    String::from_utf8(answer).unwrap().parse().unwrap()
}
