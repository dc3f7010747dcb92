//! Table of commands, and `COMMAND`, which describes them to clients.

use super::throttle::ThrottleDialect;
use super::{RespCommand, most_like};
use crate::resp::reply::{ReplyWriter, echo};
use crate::resp::request::RequestWords;

/// A command.
pub(super) struct CommandEntry {
    pub(super) name: &'static str,
    pub(super) command: RespCommand,
    /// Number of words including the name, as in Redis: exact if positive, the minimum if negative.
    arity: i64,
    /// Index of the last key, as in Redis: 0 without keys, 1 if the first argument is the only key, -1 if all arguments are
    /// keys.
    last_key: i64,
    group: &'static str,
    summary: &'static str,
    arguments: &'static [Argument],
}

struct Argument {
    name: &'static str,
    kind: &'static str,
    /// Keyword before the argument.
    token: Option<&'static str>,
    is_optional: bool,
    is_multiple: bool,
}

const fn argument(name: &'static str, kind: &'static str) -> Argument {
    Argument { name, kind, token: None, is_optional: false, is_multiple: false }
}

const fn optional(argument: Argument) -> Argument {
    Argument { is_optional: true, ..argument }
}

const fn many(argument: Argument) -> Argument {
    Argument { is_multiple: true, ..argument }
}

const fn after(token: &'static str, argument: Argument) -> Argument {
    Argument { token: Some(token), ..argument }
}

const NO_ARGUMENTS: &[Argument] = &[];
const SUBCOMMAND: &[Argument] = &[argument("subcommand", "string"), optional(many(argument("argument", "string")))];
const FACTS: &[Argument] = &[many(argument("fact value | fact name value", "string"))];

const fn entry(
    (name, command, arity): (&'static str, RespCommand, i64),
    group: &'static str,
    summary: &'static str,
    arguments: &'static [Argument],
) -> CommandEntry {
    CommandEntry {
        name,
        command,
        arity,
        last_key: match command {
            RespCommand::Throttle(_) => 1,
            RespCommand::Delete => -1,
            _ => 0,
        },
        group,
        summary,
        arguments,
    }
}

const INLINE_LIMIT: &[Argument] = &[
    argument("key", "key"),
    argument("max_burst", "integer"),
    argument("count", "integer"),
    argument("period", "double"),
    optional(argument("quantity", "integer")),
];

static COMMANDS: [CommandEntry; 22] = [
    entry(
        ("CL.THROTTLE", RespCommand::Throttle(ThrottleDialect::RedisCell), -5),
        "limiting",
        "Charges a key under a limit in the arguments: count per period seconds, with a burst of max_burst more",
        INLINE_LIMIT,
    ),
    entry(
        ("THROTTLE", RespCommand::Throttle(ThrottleDialect::Throttlecrab), -5),
        "limiting",
        "Like CL.THROTTLE, as in throttlecrab: a burst of max_burst, and 1 if it is allowed",
        INLINE_LIMIT,
    ),
    entry(("DEL", RespCommand::Delete, -2), "limiting", "Resets keys of CL.THROTTLE", &[many(argument("key", "key"))]),
    entry(
        ("TG.CHECK", RespCommand::Check, -3),
        "limiting",
        "Decides a request by the rules, and charges it if it is allowed",
        FACTS,
    ),
    entry(
        ("TG.PEEK", RespCommand::Peek, -3),
        "limiting",
        "Returns the decision of TG.CHECK without charging anything",
        FACTS,
    ),
    entry(
        ("TG.SETTLE", RespCommand::Settle, -3),
        "limiting",
        "Settles a reservation of TG.CHECK at its actual cost, and releases its slots",
        &[argument("receipt", "string"), many(argument("actual", "integer"))],
    ),
    entry(
        ("TG.RESET", RespCommand::ResetKeys, -3),
        "limiting",
        "Resets the keys of a request, under all rules that apply to it or under one",
        &[optional(after("RULE", argument("id", "string"))), many(argument("fact value | fact name value", "string"))],
    ),
    entry(
        ("PING", RespCommand::Ping, -1),
        "connection",
        "Returns PONG, or the message",
        &[optional(argument("message", "string"))],
    ),
    entry(("MULTI", RespCommand::Multi, 1), "transactions", "Queues the commands that follow", NO_ARGUMENTS),
    entry(
        ("EXEC", RespCommand::Exec, 1),
        "transactions",
        "Runs the queued commands, or none if one was refused",
        NO_ARGUMENTS,
    ),
    entry(("DISCARD", RespCommand::Discard, 1), "transactions", "Drops the queued commands", NO_ARGUMENTS),
    entry(
        ("WATCH", RespCommand::Watch, -2),
        "transactions",
        "Not available: keys cannot be watched",
        &[many(argument("key", "key"))],
    ),
    entry(("UNWATCH", RespCommand::Unwatch, 1), "transactions", "Accepted, without effect", NO_ARGUMENTS),
    entry(("ECHO", RespCommand::Echo, 2), "connection", "Returns the message", &[argument("message", "string")]),
    entry(
        ("HELLO", RespCommand::Hello, -1),
        "connection",
        "Selects the protocol version, and authenticates",
        &[
            optional(argument("protover", "integer")),
            optional(after("AUTH", argument("username password", "string"))),
            optional(after("SETNAME", argument("name", "string"))),
        ],
    ),
    entry(
        ("AUTH", RespCommand::Auth, -2),
        "connection",
        "Authenticates with a password",
        &[optional(argument("username", "string")), argument("password", "string")],
    ),
    entry(("CLIENT", RespCommand::Client, -2), "connection", "Name and details of the connection", SUBCOMMAND),
    entry(
        ("COMMAND", RespCommand::Catalogue, -1),
        "server",
        "Describes the commands",
        &[
            optional(argument("COUNT | DOCS | INFO | LIST | GETKEYS", "string")),
            optional(many(argument("name", "string"))),
        ],
    ),
    entry(
        ("INFO", RespCommand::Info, -1),
        "server",
        "Information about the server",
        &[optional(many(argument("section", "string")))],
    ),
    entry(
        ("SELECT", RespCommand::Select, 2),
        "connection",
        "Selects database 0, the only one",
        &[argument("index", "integer")],
    ),
    entry(("RESET", RespCommand::Reset, 1), "connection", "Resets the connection", NO_ARGUMENTS),
    entry(("QUIT", RespCommand::Quit, -1), "connection", "Closes the connection", NO_ARGUMENTS),
];

impl CommandEntry {
    pub(super) fn takes(&self, words: usize) -> bool {
        let words = i64::try_from(words).unwrap_or(i64::MAX);
        let most = match self.command {
            RespCommand::Throttle(_) => 6,
            RespCommand::Ping => 2,
            RespCommand::Auth => 3,
            _ => i64::MAX,
        };
        if self.arity < 0 { words >= -self.arity && words <= most } else { words == self.arity }
    }
}

pub(super) fn find(name: &[u8]) -> Option<&'static CommandEntry> {
    COMMANDS.iter().find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name))
}

/// The most similar command name, if any is similar enough.
pub(super) fn nearest(name: &[u8]) -> Option<&'static str> {
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= 32)?;
    most_like(name, COMMANDS.iter().map(|entry| entry.name))
}

pub(super) fn answer(words: RequestWords<'_>, reply: &mut ReplyWriter<'_>) {
    let asked = words.get(1).unwrap_or_default().to_ascii_uppercase();
    let named = || words.after(2).iter().map(find);
    match (asked.as_slice(), words.len()) {
        (b"", 1) => list(COMMANDS.iter().map(Some), reply),
        (b"INFO", 2) => list(COMMANDS.iter().map(Some), reply),
        (b"INFO", _) => list(named(), reply),
        (b"COUNT", 2) => reply.count(COMMANDS.len() as u64),
        (b"LIST", 2) => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|entry| reply.bulk(entry.name.to_ascii_lowercase()));
        }
        (b"DOCS", 2) => docs(COMMANDS.iter(), reply),
        (b"DOCS", _) => docs(named().flatten(), reply),
        (b"GETKEYS", 4..) => match find(words.get(2).unwrap_or_default()) {
            Some(entry) if entry.last_key != 0 => {
                let arguments = words.after(3);
                let keys = if entry.last_key < 0 { arguments.len() } else { 1 };
                reply.array(keys);
                arguments.iter().take(keys).for_each(|key| reply.bulk(key));
            }
            Some(_) => reply.error("ERR", "The command has no key arguments"),
            None => reply.error("ERR", "Invalid command specified"),
        },
        _ => {
            let asked = echo(words.get(1).unwrap_or_default());
            reply.error("ERR", format_args!("unknown subcommand or wrong number of arguments for '{asked}': there are COUNT, DOCS, GETKEYS, INFO and LIST"));
        }
    }
}

/// Entries of `COMMAND INFO`: arity, flags and key positions.
fn list(entries: impl Iterator<Item = Option<&'static CommandEntry>>, reply: &mut ReplyWriter<'_>) {
    let entries: Vec<_> = entries.collect();
    reply.array(entries.len());
    for entry in entries {
        let Some(entry) = entry else {
            reply.null();
            continue;
        };
        let has_key = i64::from(entry.last_key != 0);
        reply.array(10);
        reply.bulk(entry.name.to_ascii_lowercase());
        reply.integer(entry.arity);
        reply.array(1);
        reply.simple("fast");
        // First key, last key, and the step between keys.
        reply.integer(has_key);
        reply.integer(entry.last_key);
        reply.integer(has_key);
        // Empty lists of ACL categories, tips, key specifications and subcommands.
        (0..4).for_each(|_| reply.array(0));
    }
}

/// Entries of `COMMAND DOCS`.
fn docs(entries: impl Iterator<Item = &'static CommandEntry>, reply: &mut ReplyWriter<'_>) {
    let entries: Vec<_> = entries.collect();
    reply.map(entries.len());
    for entry in entries {
        reply.bulk(entry.name.to_ascii_lowercase());
        reply.map(4);
        for (name, value) in [("summary", entry.summary), ("since", env!("CARGO_PKG_VERSION")), ("group", entry.group)]
        {
            reply.bulk(name);
            reply.bulk(value);
        }
        reply.bulk("arguments");
        reply.array(entry.arguments.len());
        entry.arguments.iter().for_each(|argument| argument.write(reply));
    }
}

impl Argument {
    fn write(&self, reply: &mut ReplyWriter<'_>) {
        let flags = [("optional", self.is_optional), ("multiple", self.is_multiple)];
        let flags = flags.iter().filter(|(_, set)| *set);
        let texts = [("name", Some(self.name)), ("type", Some(self.kind)), ("token", self.token)];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, text?)));
        reply.map(texts.clone().count() + usize::from(flags.clone().count() > 0));
        for (name, text) in texts {
            reply.bulk(name);
            reply.bulk(text);
        }
        if flags.clone().count() > 0 {
            reply.bulk("flags");
            reply.array(flags.clone().count());
            flags.for_each(|(name, _)| reply.simple(name));
        }
    }
}
