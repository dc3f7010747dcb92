//! Commands: decoding, execution and reply of each, side by side.

mod auth;
mod basic;
mod catalogue;
mod check;
mod client;
mod delete;
mod facts;
mod hello;
mod info;
mod reset;
mod ruling_reply;
mod settle;
mod target;
mod throttle;
mod transaction;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use self::catalogue::CommandEntry;
#[cfg(test)]
pub(crate) use self::facts::with_facts;
use self::throttle::ThrottleDialect;
use super::RespServer;
use super::reply::{ReplyWriter, echo};
use super::request::RequestWords;
use super::session::RespSession;
use super::transaction::CommandQueue;

/// Pending reply.
pub(super) type Later<'d> = Pin<Box<dyn Future<Output = Vec<u8>> + Send + 'd>>;

/// Outcome of executing a command.
pub(super) enum CommandAnswer<'d> {
    /// The reply has been written.
    Now,
    /// A call to the store is needed. Nothing has been written yet.
    Later(Later<'d>),
    /// Several calls to the store are needed, so the following commands must wait.
    Alone(Later<'d>),
    /// The reply has been written. The connection closes.
    Close,
    /// Nothing was done. Execute the command again after this time.
    Wait(Duration),
    /// The header of an array of replies has been written. These commands are executed next.
    Run(CommandQueue),
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RespCommand {
    Throttle(ThrottleDialect),
    Check,
    Peek,
    Settle,
    ResetKeys,
    Delete,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Ping,
    Echo,
    Hello,
    Auth,
    Client,
    Catalogue,
    Info,
    Select,
    Reset,
    Quit,
}

impl RespCommand {
    /// Whether the command is allowed before authentication.
    const fn is_allowed_unauthenticated(self) -> bool {
        matches!(self, RespCommand::Hello | RespCommand::Auth | RespCommand::Reset | RespCommand::Quit)
    }

    /// Whether the command is executed immediately between `MULTI` and `EXEC`. All others are queued.
    const fn is_never_queued(self) -> bool {
        matches!(
            self,
            RespCommand::Multi
                | RespCommand::Exec
                | RespCommand::Discard
                | RespCommand::Watch
                | RespCommand::Reset
                | RespCommand::Quit
        )
    }
}

/// Executes a command of at least one word.
#[inline]
pub(super) fn answer<'d>(
    service: &'d RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    let name = words.get(0).unwrap_or_default();
    // Fast path for the most frequent command.
    if throttle::is_named(name) && session.user.is_some() && session.transaction.is_none() {
        return throttle::answer(ThrottleDialect::RedisCell, service, session, words, reply);
    }
    match catalogue::find(name) {
        Some(entry) => answer_as(entry, service, session, words, reply),
        None => unknown(session, words, reply),
    }
}

fn answer_as<'d>(
    entry: &CommandEntry,
    service: &'d RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    if session.user.is_none() && !entry.command.is_allowed_unauthenticated() {
        reply.error("NOAUTH", "Authentication required: send AUTH with the password first");
        return CommandAnswer::Now;
    }
    if !entry.takes(words.len()) {
        match entry.command {
            RespCommand::Exec => transaction::exec_with_arguments(session, reply),
            _ => {
                transaction::abort(session);
                wrong_number(entry.name, reply);
            }
        }
        return CommandAnswer::Now;
    }
    if session.transaction.is_some() && !entry.command.is_never_queued() {
        transaction::queue(entry, service, session, words, reply);
        return CommandAnswer::Now;
    }
    match entry.command {
        RespCommand::Throttle(dialect) => return throttle::answer(dialect, service, session, words, reply),
        RespCommand::Check => return check::check(service, words, reply),
        RespCommand::Peek => return check::peek(service, words, reply),
        RespCommand::Settle => return settle::answer(service, words, reply),
        RespCommand::ResetKeys => return reset::answer(service, words, reply),
        RespCommand::Delete => return delete::answer(service, words, reply),
        RespCommand::Multi => transaction::multi(session, reply),
        RespCommand::Exec => return transaction::exec(session, reply),
        RespCommand::Discard => transaction::discard(session, reply),
        RespCommand::Watch => transaction::watch(session, reply),
        // `WATCH` has no effect here, so there is nothing to undo.
        RespCommand::Unwatch => reply.ok(),
        RespCommand::Ping => basic::ping(words, reply),
        RespCommand::Echo => basic::echo(words, reply),
        RespCommand::Hello => return hello::answer(service, session, words, reply),
        RespCommand::Auth => return auth::answer(service, session, words, reply),
        RespCommand::Client => client::answer(session, words, reply),
        RespCommand::Catalogue => catalogue::answer(words, reply),
        RespCommand::Info => info::answer(service, session, words, reply),
        RespCommand::Select => basic::select(words, reply),
        RespCommand::Reset => {
            session.reset();
            reply.simple("RESET");
        }
        RespCommand::Quit => {
            reply.ok();
            return CommandAnswer::Close;
        }
    }
    CommandAnswer::Now
}

fn wrong_number(name: &str, reply: &mut ReplyWriter<'_>) {
    reply.error("ERR", format_args!("wrong number of arguments for '{}' command", name.to_ascii_lowercase()));
}

fn unknown<'d>(session: &mut RespSession, words: RequestWords<'_>, reply: &mut ReplyWriter<'_>) -> CommandAnswer<'d> {
    let name = words.get(0).unwrap_or_default();
    // A web page may send HTTP to this port through a browser: cross-protocol requests are rejected.
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") {
        reply.error("ERR", "this port speaks the Redis protocol, not HTTP");
        return CommandAnswer::Close;
    }
    if session.user.is_none() {
        reply.error("NOAUTH", "Authentication required: send AUTH with the password first");
        return CommandAnswer::Now;
    }
    transaction::abort(session);
    let mut text = format!("unknown command '{}', with args beginning with:", echo(name));
    for word in words.after(1).iter().take(3) {
        text += &format!(" '{}'", echo(word));
    }
    if let Some(near) = catalogue::nearest(name) {
        text += &format!(". Did you mean {near}?");
    }
    reply.error("ERR", text);
    CommandAnswer::Now
}

/// The most similar name, if any is similar enough.
fn most_like<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let far = |known: &&str| strsim::damerau_levenshtein(&name.to_ascii_lowercase(), &known.to_ascii_lowercase());
    names.min_by_key(far).filter(|known| far(known) * 3 <= known.len().max(3))
}
