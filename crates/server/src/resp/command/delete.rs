//! `DEL key [key …]`: forgets what keys have spent under `CL.THROTTLE`. Answers with the number of keys of which anything was
//! known.

use tidegate_core::{Key, StoreError};

use super::Answer;
use super::check::aside;
use crate::resp::Door;
use crate::resp::reply::Reply;
use crate::resp::request::Words;

pub(super) fn answer<'d>(door: &'d Door, words: Words<'_>, reply: &mut Reply<'_>) -> Answer<'d> {
    let (keys, protocol) = (words.after(1).to_owned(), reply.protocol());
    Answer::Alone(Box::pin(async move {
        let forgotten = forget(door, keys.words()).await;
        aside(protocol, |reply| match forgotten {
            Ok(keys) => reply.count(keys),
            Err(error) => reply.error("ERR", format_args!("{error}. It is safe to try again.")),
        })
    }))
}

async fn forget(door: &Door, keys: Words<'_>) -> Result<u64, StoreError> {
    let limiter = door.engine.limiter();
    let mut known = 0;
    for key in keys.iter() {
        known += u64::from(limiter.reset_inline(&door.throttle, &Key::from(key)).await?);
    }
    Ok(known)
}
