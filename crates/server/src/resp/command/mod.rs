//! Words to commands: each one's decoding, its doing and its reply side by side.

mod asked;
mod auth;
mod catalogue;
mod check;
mod client;
mod delete;
mod hello;
mod info;
mod plain;
mod reset;
mod ruling;
mod settle;
mod target;
mod throttle;
mod transaction;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

#[cfg(test)]
pub(crate) use self::asked::with_facts;
use self::catalogue::Entry;
use self::throttle::Dialect;
use super::Door;
use super::reply::{Reply, echo};
use super::request::Words;
use super::session::Session;
use super::transaction::Queue;

/// A reply that has to be waited for.
pub(super) type Later<'d> = Pin<Box<dyn Future<Output = Vec<u8>> + Send + 'd>>;

/// How a command was answered.
pub(super) enum Answer<'d> {
    /// The reply is written.
    Now,
    /// The store has to be asked. Nothing is written.
    Later(Later<'d>),
    /// The same, and more than once: what follows has to wait for it.
    Alone(Later<'d>),
    /// The reply is written, and nothing more is to be read.
    Close,
    /// Nothing was done. The command is to be answered again after this time.
    Wait(Duration),
    /// The length of the replies to these is written, and they are to be answered next.
    Run(Queue),
}

/// The commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Throttle(Dialect),
    Check,
    Peek,
    Settle,
    Forgive,
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

impl Command {
    /// Those that a client may send before it has shown its password.
    const fn is_for_strangers(self) -> bool {
        matches!(self, Command::Hello | Command::Auth | Command::Reset | Command::Quit)
    }

    /// Those that are answered at once between `MULTI` and `EXEC`. All others are queued.
    const fn is_never_queued(self) -> bool {
        matches!(
            self,
            Command::Multi | Command::Exec | Command::Discard | Command::Watch | Command::Reset | Command::Quit
        )
    }
}

/// Does what the words ask for. There is one at least.
#[inline]
pub(super) fn answer<'d>(door: &'d Door, session: &mut Session, words: Words<'_>, reply: &mut Reply<'_>) -> Answer<'d> {
    let name = words.get(0).unwrap_or_default();
    // Nearly all that is asked.
    if throttle::is_named(name) && session.user.is_some() && session.transaction.is_none() {
        return throttle::answer(Dialect::RedisCell, door, session, words, reply);
    }
    match catalogue::find(name) {
        Some(entry) => answer_as(entry, door, session, words, reply),
        None => unknown(session, words, reply),
    }
}

fn answer_as<'d>(
    entry: &Entry,
    door: &'d Door,
    session: &mut Session,
    words: Words<'_>,
    reply: &mut Reply<'_>,
) -> Answer<'d> {
    if session.user.is_none() && !entry.command.is_for_strangers() {
        reply.error("NOAUTH", "Authentication required: send AUTH with the password first");
        return Answer::Now;
    }
    if !entry.takes(words.len()) {
        match entry.command {
            Command::Exec => transaction::exec_with_arguments(session, reply),
            _ => {
                transaction::abort(session);
                wrong_number(entry.name, reply);
            }
        }
        return Answer::Now;
    }
    if session.transaction.is_some() && !entry.command.is_never_queued() {
        transaction::queue(entry, door, session, words, reply);
        return Answer::Now;
    }
    match entry.command {
        Command::Throttle(dialect) => return throttle::answer(dialect, door, session, words, reply),
        Command::Check => return check::check(door, words, reply),
        Command::Peek => return check::peek(door, words, reply),
        Command::Settle => return settle::answer(door, words, reply),
        Command::Forgive => return reset::answer(door, words, reply),
        Command::Delete => return delete::answer(door, words, reply),
        Command::Multi => transaction::multi(session, reply),
        Command::Exec => return transaction::exec(session, reply),
        Command::Discard => transaction::discard(session, reply),
        Command::Watch => transaction::watch(session, reply),
        // Nothing is watched.
        Command::Unwatch => reply.ok(),
        Command::Ping => plain::ping(words, reply),
        Command::Echo => plain::echo(words, reply),
        Command::Hello => return hello::answer(door, session, words, reply),
        Command::Auth => return auth::answer(door, session, words, reply),
        Command::Client => client::answer(session, words, reply),
        Command::Catalogue => catalogue::answer(words, reply),
        Command::Info => info::answer(door, session, words, reply),
        Command::Select => plain::select(words, reply),
        Command::Reset => {
            session.reset();
            reply.simple("RESET");
        }
        Command::Quit => {
            reply.ok();
            return Answer::Close;
        }
    }
    Answer::Now
}

fn wrong_number(name: &str, reply: &mut Reply<'_>) {
    reply.error("ERR", format_args!("wrong number of arguments for '{}' command", name.to_ascii_lowercase()));
}

fn unknown<'d>(session: &mut Session, words: Words<'_>, reply: &mut Reply<'_>) -> Answer<'d> {
    let name = words.get(0).unwrap_or_default();
    // A browser that was made to talk to this port: whatever else it says, it is not meant for here.
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") {
        reply.error("ERR", "this port speaks the Redis protocol, not HTTP");
        return Answer::Close;
    }
    if session.user.is_none() {
        reply.error("NOAUTH", "Authentication required: send AUTH with the password first");
        return Answer::Now;
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
    Answer::Now
}

/// The names of which one is most like `name`, if any is.
fn most_like<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let far = |known: &&str| strsim::damerau_levenshtein(&name.to_ascii_lowercase(), &known.to_ascii_lowercase());
    names.min_by_key(far).filter(|known| far(known) * 3 <= known.len().max(3))
}
