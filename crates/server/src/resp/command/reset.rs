//! `TG.RESET fact value …`, or `TG.RESET RULE id part …`: resets keys. Returns the number of limits under which a key
//! had any state.

use tidegate_core::StoreError;
use tidegate_rules::ResetError;

use super::CommandAnswer;
use super::check::aside;
use super::facts::FactError;
use super::target::KeyTarget;
use crate::resp::RespServer;
use crate::resp::reply::ReplyWriter;
use crate::resp::request::RequestWords;

pub(super) fn answer<'d>(
    service: &'d RespServer,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    let (words, protocol) = (words.after(1).to_owned(), reply.protocol());
    CommandAnswer::Alone(Box::pin(async move {
        let forgotten = forget(service, words.words()).await;
        aside(protocol, |reply| match forgotten {
            Ok(limits) => reply.count(limits as u64),
            Err(error) => reply.error("ERR", error),
        })
    }))
}

#[derive(Debug, thiserror::Error)]
enum ResetCommandError {
    #[error(transparent)]
    FactError(#[from] FactError),
    #[error(transparent)]
    Key(#[from] ResetError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

async fn forget(service: &RespServer, words: RequestWords<'_>) -> Result<usize, ResetCommandError> {
    Ok(match KeyTarget::decode(words)? {
        KeyTarget::Request(asked) => service.engine.limiter().reset(&*asked).await?,
        KeyTarget::Key { rule, parts } => service.engine.reset_key(rule, &parts).await?,
    })
}
