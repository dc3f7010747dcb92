//! `AUTH [user] password`.

use super::CommandAnswer;
use crate::metrics;
use crate::resp::RespServer;
use crate::resp::reply::ReplyWriter;
use crate::resp::request::RequestWords;
use crate::resp::session::RespSession;
use crate::resp::settings::DEFAULT_USER;

/// Number of wrong passwords after which a connection is closed.
const MOST_FAILURES: u32 = 8;

pub(super) fn answer<'d>(
    service: &RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    let (user, password) = match (words.get(1), words.get(2)) {
        (Some(user), Some(password)) => (user, password),
        (password, _) => (DEFAULT_USER.as_bytes(), password.unwrap_or_default()),
    };
    if session.settings.users.is_empty() {
        reply.error("ERR", "AUTH was sent, but this server has no password: is this the right server?");
        return CommandAnswer::Now;
    }
    match authenticate(service, session, user, password, reply) {
        Ok(()) => {
            reply.ok();
            CommandAnswer::Now
        }
        Err(answer) => answer,
    }
}

/// Authenticates a client. On failure, the session is unchanged, an error is written, and `Err` is the result of the
/// command. Delays clients that guess.
pub(super) fn authenticate<'d>(
    service: &RespServer,
    session: &mut RespSession,
    user: &[u8],
    password: &[u8],
    reply: &mut ReplyWriter<'_>,
) -> Result<(), CommandAnswer<'d>> {
    let address = session.peer.ip();
    if !std::mem::take(&mut session.has_waited) {
        let delay = service.guesses.delay(address);
        if !delay.is_zero() {
            session.has_waited = true;
            return Err(CommandAnswer::Wait(delay));
        }
    }
    if session.settings.users.know(user, password) {
        session.user = Some(user.into());
        return Ok(());
    }
    service.engine.metrics().auth_failed(metrics::ListenerKind::Resp);
    service.guesses.failed(address, metrics::ListenerKind::Resp.name());
    session.auth_failures += 1;
    reply.error("WRONGPASS", "invalid user name or password");
    Err(if session.auth_failures < MOST_FAILURES { CommandAnswer::Now } else { CommandAnswer::Close })
}
