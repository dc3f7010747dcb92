//! `HELLO [2|3 [AUTH user password] [SETNAME name]]`: protocol version and authentication.

use super::{CommandAnswer, auth, client};
use crate::resp::RespServer;
use crate::resp::reply::{ReplyWriter, RespProtocol, echo};
use crate::resp::request::RequestWords;
use crate::resp::session::RespSession;

/// Arguments of `HELLO`.
#[derive(Default)]
struct HelloArgs<'a> {
    protocol: Option<RespProtocol>,
    user: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

#[derive(Debug, thiserror::Error)]
enum HelloError {
    #[error("unsupported protocol version: this server speaks 2 and 3")]
    Version,
    #[error("syntax error in HELLO near '{0}': write HELLO 3 AUTH user password SETNAME name")]
    Option(String),
}

impl<'a> HelloArgs<'a> {
    fn decode(words: RequestWords<'a>) -> Result<HelloArgs<'a>, HelloError> {
        let mut asked = HelloArgs::default();
        let mut words = words.iter().skip(1);
        match words.next() {
            None => return Ok(asked),
            Some(b"2") => asked.protocol = Some(RespProtocol::Resp2),
            Some(b"3") => asked.protocol = Some(RespProtocol::Resp3),
            Some(_) => return Err(HelloError::Version),
        }
        while let Some(option) = words.next() {
            let wrong = || HelloError::Option(echo(option));
            if option.eq_ignore_ascii_case(b"AUTH") {
                asked.user = Some((words.next().ok_or_else(wrong)?, words.next().ok_or_else(wrong)?));
            } else if option.eq_ignore_ascii_case(b"SETNAME") {
                asked.name = Some(words.next().ok_or_else(wrong)?);
            } else {
                return Err(wrong());
            }
        }
        Ok(asked)
    }
}

pub(super) fn answer<'d>(
    service: &RespServer,
    session: &mut RespSession,
    words: RequestWords<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandAnswer<'d> {
    let asked = match HelloArgs::decode(words) {
        Ok(asked) => asked,
        Err(wrong) => {
            let code = match wrong {
                HelloError::Version => "NOPROTO",
                HelloError::Option(_) => "ERR",
            };
            reply.error(code, wrong);
            return CommandAnswer::Now;
        }
    };
    // All options are validated before any takes effect.
    if let Some(name) = asked.name
        && !client::is_name(name)
    {
        client::not_a_name(reply);
        return CommandAnswer::Now;
    }
    if let Some((user, password)) = asked.user
        && let Err(answer) = auth::authenticate(service, session, user, password, reply)
    {
        return answer;
    }
    if session.user.is_none() {
        reply.error("NOAUTH", "Authentication required: send HELLO 3 AUTH user password, or AUTH first");
        return CommandAnswer::Now;
    }
    greet(session, &asked, reply);
    CommandAnswer::Now
}

fn greet(session: &mut RespSession, asked: &HelloArgs<'_>, reply: &mut ReplyWriter<'_>) {
    if let Some(name) = asked.name {
        session.name = name.into();
    }
    if let Some(protocol) = asked.protocol {
        session.protocol = protocol;
    }
    reply.speak(session.protocol);
    reply.map(7);
    reply.bulk("server");
    reply.bulk("tidegate");
    reply.bulk("version");
    reply.bulk(env!("CARGO_PKG_VERSION"));
    reply.bulk("proto");
    reply.integer(session.protocol.number());
    reply.bulk("id");
    reply.count(session.id);
    reply.bulk("mode");
    reply.bulk("standalone");
    reply.bulk("role");
    reply.bulk("master");
    reply.bulk("modules");
    reply.array(0);
}
