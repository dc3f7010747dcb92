//! `CLIENT`: name and details of the connection.

use crate::resp::reply::{ReplyWriter, echo};
use crate::resp::request::RequestWords;
use crate::resp::session::RespSession;

/// Maximum length of a name.
const LONGEST_NAME: usize = 256;

const HELP: [&str; 10] = [
    "CLIENT <subcommand> [<argument> ...]. Subcommands are:",
    "GETNAME: the name of this connection.",
    "ID: the number of this connection.",
    "INFO: details of this connection.",
    "LIST: like INFO; other connections are not listed.",
    "NO-EVICT (ON|OFF), NO-TOUCH (ON|OFF): accepted, without effect.",
    "REPLY ON: accepted; replies cannot be turned off.",
    "SETINFO (LIB-NAME|LIB-VER) <value>: name or version of the client library.",
    "SETNAME <name>: names this connection.",
    "HELP: this text.",
];

pub(super) fn answer(session: &mut RespSession, words: RequestWords<'_>, reply: &mut ReplyWriter<'_>) {
    let asked = words.get(1).unwrap_or_default().to_ascii_uppercase();
    match (asked.as_slice(), words.get(2), words.get(3), words.len()) {
        (b"SETNAME", Some(name), _, 3) => set(&mut session.name, name, reply),
        (b"GETNAME", _, _, 2) if session.name.is_empty() => reply.null(),
        (b"GETNAME", _, _, 2) => reply.bulk(&session.name),
        (b"ID", _, _, 2) => reply.count(session.id),
        (b"INFO", _, _, 2) | (b"LIST", ..) => reply.text(&line(session)),
        (b"SETINFO", Some(what), Some(value), 4) if what.eq_ignore_ascii_case(b"LIB-NAME") => {
            set(&mut session.lib_name, value, reply);
        }
        (b"SETINFO", Some(what), Some(value), 4) if what.eq_ignore_ascii_case(b"LIB-VER") => {
            set(&mut session.lib_version, value, reply);
        }
        (b"SETINFO", Some(what), _, 4) => reply.error("ERR", format_args!("unrecognized option '{}'", echo(what))),
        (b"NO-EVICT" | b"NO-TOUCH", Some(how), _, 3) if is_switch(how) => reply.ok(),
        (b"REPLY", Some(how), _, 3) if how.eq_ignore_ascii_case(b"ON") => reply.ok(),
        (b"REPLY", _, _, 3) => reply.error("ERR", "replies cannot be turned off here"),
        (b"HELP", _, _, 2) => {
            reply.array(HELP.len());
            HELP.iter().for_each(|line| reply.simple(line));
        }
        _ => {
            let asked = echo(words.get(1).unwrap_or_default());
            reply.error(
                "ERR",
                format_args!("unknown subcommand or wrong number of arguments for '{asked}'. Try CLIENT HELP."),
            );
        }
    }
}

fn is_switch(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"ON") || word.eq_ignore_ascii_case(b"OFF")
}

fn set(name: &mut Box<[u8]>, to: &[u8], reply: &mut ReplyWriter<'_>) {
    if is_name(to) {
        *name = to.into();
        reply.ok();
    } else {
        not_a_name(reply);
    }
}

/// Whether a name is valid: printable ASCII without spaces.
pub(super) fn is_name(name: &[u8]) -> bool {
    name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic)
}

pub(super) fn not_a_name(reply: &mut ReplyWriter<'_>) {
    reply.error("ERR", format_args!("a name has at most {LONGEST_NAME} ASCII characters, without spaces"));
}

fn line(session: &RespSession) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "id={} addr={} name={} user={} resp={} lib-name={} lib-ver={}\n",
        session.id,
        session.peer,
        text(&session.name),
        text(session.user.as_deref().unwrap_or_default()),
        session.protocol.number(),
        text(&session.lib_name),
        text(&session.lib_version),
    )
}
