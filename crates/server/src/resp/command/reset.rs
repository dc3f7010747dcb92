//! `TG.RESET fact value …`, or `TG.RESET RULE id part …`: forgets what keys have spent. Answers with the number of limits
//! under which there was anything to forget.

use tidegate_core::StoreError;
use tidegate_rules::ResetError;

use super::Answer;
use super::asked::Misunderstood;
use super::check::aside;
use super::target::Target;
use crate::resp::Door;
use crate::resp::reply::Reply;
use crate::resp::request::Words;

pub(super) fn answer<'d>(door: &'d Door, words: Words<'_>, reply: &mut Reply<'_>) -> Answer<'d> {
    let (words, protocol) = (words.after(1).to_owned(), reply.protocol());
    Answer::Alone(Box::pin(async move {
        let forgotten = forget(door, words.words()).await;
        aside(protocol, |reply| match forgotten {
            Ok(limits) => reply.count(limits as u64),
            Err(error) => reply.error("ERR", error),
        })
    }))
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Misunderstood(#[from] Misunderstood),
    #[error(transparent)]
    Key(#[from] ResetError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

async fn forget(door: &Door, words: Words<'_>) -> Result<usize, Failed> {
    Ok(match Target::decode(words)? {
        Target::Request(asked) => door.engine.limiter().reset(&*asked).await?,
        Target::Key { rule, parts } => door.engine.reset_key(rule, &parts).await?,
    })
}
