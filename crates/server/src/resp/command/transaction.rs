//! `MULTI`, `EXEC`, `DISCARD`, `WATCH` and `UNWATCH`, with the errors of Redis.
//!
//! A command is read when it is queued. One that cannot be read makes `EXEC` fail, and then nothing is charged.

use super::asked::{Asked as Request, Misunderstood};
use super::catalogue::Entry;
use super::target::Target;
use super::{Answer, Command, plain, settle, throttle};
use crate::resp::Door;
use crate::resp::reply::Reply;
use crate::resp::request::Words;
use crate::resp::session::Session;
use crate::resp::transaction::QueueFull;

pub(super) fn multi(session: &mut Session, reply: &mut Reply<'_>) {
    match session.transaction {
        Some(_) => reply.error("ERR", "MULTI calls can not be nested"),
        None => {
            session.transaction = Some(Box::default());
            reply.ok();
        }
    }
}

pub(super) fn exec<'d>(session: &mut Session, reply: &mut Reply<'_>) -> Answer<'d> {
    let Some(transaction) = session.transaction.take() else {
        reply.error("ERR", "EXEC without MULTI");
        return Answer::Now;
    };
    match transaction.into_queue() {
        None => reply.error("EXECABORT", "Transaction discarded because of previous errors."),
        Some(queue) => {
            reply.array(queue.len());
            return Answer::Run(queue);
        }
    }
    Answer::Now
}

/// `EXEC` with something behind it ends the transaction, too.
pub(super) fn exec_with_arguments(session: &mut Session, reply: &mut Reply<'_>) {
    session.transaction = None;
    reply.error("EXECABORT", "Transaction discarded because of: wrong number of arguments for 'exec' command");
}

pub(super) fn discard(session: &mut Session, reply: &mut Reply<'_>) {
    match session.transaction.take() {
        Some(_) => reply.ok(),
        None => reply.error("ERR", "DISCARD without MULTI"),
    }
}

pub(super) fn watch(session: &Session, reply: &mut Reply<'_>) {
    match session.transaction {
        Some(_) => reply.error("ERR", "WATCH inside MULTI is not allowed"),
        None => reply.error(
            "ERR",
            "WATCH is not available here: a key is read and charged in one step, so there is nothing to watch. Send MULTI without it",
        ),
    }
}

/// A command that was not queued.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("Command not allowed inside a transaction: send it before MULTI")]
    NotInTransaction,
    #[error(transparent)]
    Throttle(#[from] throttle::Wrong),
    #[error(transparent)]
    Request(#[from] Misunderstood),
    #[error(transparent)]
    Settle(#[from] settle::Wrong),
    #[error(transparent)]
    Select(#[from] plain::NoSuchDatabase),
    #[error(transparent)]
    Full(#[from] QueueFull),
}

/// Queues a command whose number of words is right, if its words can be read.
pub(super) fn queue(entry: &Entry, door: &Door, session: &mut Session, words: Words<'_>, reply: &mut Reply<'_>) {
    match try_queue(entry, door, session, words) {
        Ok(()) => reply.simple("QUEUED"),
        Err(refused) => {
            abort(session);
            reply.error("ERR", refused);
        }
    }
}

fn try_queue(entry: &Entry, door: &Door, session: &mut Session, words: Words<'_>) -> Result<(), Refused> {
    validate(entry, door, session, words)?;
    let bounds = session.settings.transaction;
    if let Some(transaction) = &mut session.transaction {
        transaction.push(words, bounds)?;
    }
    Ok(())
}

/// Reads a command as it will be read when it is run, and does nothing.
fn validate(entry: &Entry, door: &Door, session: &mut Session, words: Words<'_>) -> Result<(), Refused> {
    match entry.command {
        Command::Throttle(dialect) => throttle::validate(dialect, door, session, words)?,
        Command::Check => {
            Request::decode(words.after(1))?;
        }
        Command::Peek | Command::Forgive => {
            Target::decode(words.after(1))?;
        }
        Command::Settle => settle::validate(words)?,
        Command::Select => plain::database(words)?,
        Command::Delete | Command::Ping | Command::Echo | Command::Unwatch => {}
        Command::Hello
        | Command::Auth
        | Command::Client
        | Command::Catalogue
        | Command::Info
        | Command::Multi
        | Command::Exec
        | Command::Discard
        | Command::Watch
        | Command::Reset
        | Command::Quit => return Err(Refused::NotInTransaction),
    }
    Ok(())
}

/// Makes the `EXEC` of an open transaction fail.
pub(super) fn abort(session: &mut Session) {
    if let Some(transaction) = &mut session.transaction {
        transaction.abort();
    }
}
