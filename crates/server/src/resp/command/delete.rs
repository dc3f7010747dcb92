//! `DEL key [key …]`: resets keys of `CL.THROTTLE`. Returns the number of keys that had any state.

use tidegate_core::{Key, StoreError};

use super::CommandAnswer;
use super::check::aside;
use crate::resp::RespServer;
use crate::resp::reply::ReplyWriter;
use crate::resp::request::RequestWords;

pub(super) fn answer<'d>(
    service: &'d RespServer,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    let (keys, protocol) = (words.after(1).to_owned(), reply.protocol());
    CommandAnswer::Alone(Box::pin(async move {
        let forgotten = forget(service, keys.words()).await;
        aside(protocol, |reply| match forgotten {
            Ok(keys) => reply.count(keys),
            Err(error) => reply.error("ERR", format_args!("{error}. It is safe to try again.")),
        })
    }))
}

async fn forget(service: &RespServer, keys: RequestWords<'_>) -> Result<u64, StoreError> {
    let limiter = service.engine.limiter();
    let mut known = 0;
    for key in keys.iter() {
        known += u64::from(limiter.reset_inline(&service.throttle, &Key::from(key)).await?);
    }
    Ok(known)
}
