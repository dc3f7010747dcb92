//! `PING`, `ECHO` and `SELECT`.

use crate::resp::reply::ReplyWriter;
use crate::resp::request::{RequestWords, integer};

/// `PING [message]`.
pub(super) fn ping(words: RequestWords<'_>, reply: &mut ReplyWriter<'_>) {
    match words.get(1) {
        Some(message) => reply.bulk(message),
        None => reply.simple("PONG"),
    }
}

/// `ECHO message`.
pub(super) fn echo(words: RequestWords<'_>, reply: &mut ReplyWriter<'_>) {
    reply.bulk(words.get(1).unwrap_or_default());
}

/// Invalid argument of `SELECT`.
#[derive(Debug, thiserror::Error)]
pub(super) enum DatabaseError {
    #[error("DB index is out of range: there is only 0")]
    OutOfRange,
    #[error("value is not an integer or out of range: the index of a database is 0")]
    NotANumber,
}

/// `SELECT 0`: there is only database 0.
pub(super) fn select(words: RequestWords<'_>, reply: &mut ReplyWriter<'_>) {
    match database(words) {
        Ok(()) => reply.ok(),
        Err(error) => reply.error("ERR", error),
    }
}

/// Checks that `SELECT` names database 0.
pub(super) fn database(words: RequestWords<'_>) -> Result<(), DatabaseError> {
    match words.get(1).and_then(integer) {
        Some(0) => Ok(()),
        Some(_) => Err(DatabaseError::OutOfRange),
        None => Err(DatabaseError::NotANumber),
    }
}
