//! `MULTI`, `EXEC`, `DISCARD`, `WATCH` and `UNWATCH`, with the errors of Redis.
//!
//! A command is parsed when it is queued. An invalid one makes `EXEC` fail, and nothing is charged.

use super::catalogue::CommandEntry;
use super::facts::{FactError, RequestFacts as Request};
use super::target::KeyTarget;
use super::{CommandAnswer, RespCommand, basic, settle, throttle};
use crate::resp::RespServer;
use crate::resp::reply::ReplyWriter;
use crate::resp::request::RequestWords;
use crate::resp::session::RespSession;
use crate::resp::transaction::QueueFull;

pub(super) fn multi(session: &mut RespSession, reply: &mut ReplyWriter<'_>) {
    match session.transaction {
        Some(_) => reply.error("ERR", "MULTI calls can not be nested"),
        None => {
            session.transaction = Some(Box::default());
            reply.ok();
        }
    }
}

pub(super) fn exec<'d>(session: &mut RespSession, reply: &mut ReplyWriter<'_>) -> CommandAnswer<'d> {
    let Some(transaction) = session.transaction.take() else {
        reply.error("ERR", "EXEC without MULTI");
        return CommandAnswer::Now;
    };
    match transaction.into_queue() {
        None => reply.error("EXECABORT", "Transaction discarded because of previous errors."),
        Some(queue) => {
            reply.array(queue.len());
            return CommandAnswer::Run(queue);
        }
    }
    CommandAnswer::Now
}

/// `EXEC` with arguments ends the transaction, too.
pub(super) fn exec_with_arguments(session: &mut RespSession, reply: &mut ReplyWriter<'_>) {
    session.transaction = None;
    reply.error("EXECABORT", "Transaction discarded because of: wrong number of arguments for 'exec' command");
}

pub(super) fn discard(session: &mut RespSession, reply: &mut ReplyWriter<'_>) {
    match session.transaction.take() {
        Some(_) => reply.ok(),
        None => reply.error("ERR", "DISCARD without MULTI"),
    }
}

pub(super) fn watch(session: &RespSession, reply: &mut ReplyWriter<'_>) {
    match session.transaction {
        Some(_) => reply.error("ERR", "WATCH inside MULTI is not allowed"),
        None => reply.error(
            "ERR",
            "WATCH is not available here: a key is read and charged in one step, so there is nothing to watch. Send MULTI without it",
        ),
    }
}

/// A command was not queued.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueueError {
    #[error("Command not allowed inside a transaction: send it before MULTI")]
    NotInTransaction,
    #[error(transparent)]
    Throttle(#[from] throttle::ThrottleError),
    #[error(transparent)]
    Request(#[from] FactError),
    #[error(transparent)]
    Settle(#[from] settle::SettleError),
    #[error(transparent)]
    Select(#[from] basic::DatabaseError),
    #[error(transparent)]
    Full(#[from] QueueFull),
}

/// Queues a command with the right number of arguments, if they are valid.
pub(super) fn queue(
    entry: &CommandEntry,
    service: &RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) {
    match try_queue(entry, service, session, words) {
        Ok(()) => reply.simple("QUEUED"),
        Err(refused) => {
            abort(session);
            reply.error("ERR", refused);
        }
    }
}

fn try_queue(
    entry: &CommandEntry,
    service: &RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
) -> Result<(), QueueError> {
    validate(entry, service, session, words)?;
    let bounds = session.settings.transaction;
    if let Some(transaction) = &mut session.transaction {
        transaction.push(words, bounds)?;
    }
    Ok(())
}

/// Parses a command without executing it.
fn validate(
    entry: &CommandEntry,
    service: &RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
) -> Result<(), QueueError> {
    match entry.command {
        RespCommand::Throttle(dialect) => throttle::validate(dialect, service, session, words)?,
        RespCommand::Check => {
            Request::decode(words.after(1))?;
        }
        RespCommand::Peek | RespCommand::ResetKeys => {
            KeyTarget::decode(words.after(1))?;
        }
        RespCommand::Settle => settle::validate(words)?,
        RespCommand::Select => basic::database(words)?,
        RespCommand::Delete | RespCommand::Ping | RespCommand::Echo | RespCommand::Unwatch => {}
        RespCommand::Hello
        | RespCommand::Auth
        | RespCommand::Client
        | RespCommand::Catalogue
        | RespCommand::Info
        | RespCommand::Multi
        | RespCommand::Exec
        | RespCommand::Discard
        | RespCommand::Watch
        | RespCommand::Reset
        | RespCommand::Quit => return Err(QueueError::NotInTransaction),
    }
    Ok(())
}

/// Makes the `EXEC` of an open transaction fail.
pub(super) fn abort(session: &mut RespSession) {
    if let Some(transaction) = &mut session.transaction {
        transaction.abort();
    }
}
