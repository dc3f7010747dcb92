//! `AUTH [user] password`.

use crate::resp::reply::Reply;
use crate::resp::request::Words;
use crate::resp::session::Session;
use crate::resp::settings::DEFAULT_USER;

pub(super) fn answer(session: &mut Session, words: Words<'_>, reply: &mut Reply<'_>) {
    let (user, password) = match (words.get(1), words.get(2)) {
        (Some(user), Some(password)) => (user, password),
        (password, _) => (DEFAULT_USER.as_bytes(), password.unwrap_or_default()),
    };
    if session.settings.users.is_empty() {
        reply.error("ERR", "AUTH was sent, but no password is set here: is this the server that was meant?");
    } else if come_in(session, user, password) {
        reply.ok();
    } else {
        wrong_password(reply);
    }
}

/// Lets a client in that knows the password. One that does not stays as it was.
pub(super) fn come_in(session: &mut Session, user: &[u8], password: &[u8]) -> bool {
    let known = session.settings.users.know(user, password);
    if known {
        session.user = Some(user.into());
    }
    known
}

pub(super) fn wrong_password(reply: &mut Reply<'_>) {
    reply.error("WRONGPASS", "there is no such user with such a password");
}
