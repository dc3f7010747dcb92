//! The first exchange on a connection: login, name, role and script.

use super::error::Unreachable;
use super::resp::{Bound, RespReply};
use super::script::Script;
use super::server_error::{ErrorCode, ServerError};
use super::server_generation::{RunId, run_id};
use super::session::{Commands, Session};
use super::settings::Login;

#[derive(Default)]
struct Greeting {
    commands: Commands,
    topics: Vec<Topic>,
}

/// The purpose of a command of the greeting.
#[derive(Clone, Copy)]
enum Topic {
    Login,
    Name,
    /// The server's identity.
    Server,
    Role,
    Load,
    Probe,
}

impl Greeting {
    fn say(&mut self, topic: Topic, words: &[&[u8]]) {
        self.commands.add(words, Bound::SMALL);
        self.topics.push(topic);
    }

    fn login(&mut self, login: &Login) {
        match (&login.user, &login.password) {
            (Some(user), Some(password)) => {
                self.say(Topic::Login, &[b"AUTH", user.as_bytes(), password.as_bytes()]);
            }
            (None, Some(password)) => self.say(Topic::Login, &[b"AUTH", password.as_bytes()]),
            (_, None) => {}
        }
        self.select(login);
    }

    /// Logs in with version 3 of the protocol, in which a server sends announcements between replies.
    fn login_for_announcements(&mut self, login: &Login) {
        let user = login.user.as_deref().unwrap_or("default");
        match &login.password {
            Some(password) => {
                self.say(Topic::Login, &[b"HELLO", b"3", b"AUTH", user.as_bytes(), password.as_bytes()]);
            }
            None => self.say(Topic::Login, &[b"HELLO", b"3"]),
        }
        self.select(login);
    }

    fn select(&mut self, login: &Login) {
        if login.database != 0 {
            self.say(Topic::Login, &[b"SELECT", login.database.to_string().as_bytes()]);
        }
    }

    /// The server's run id, if it returned one.
    fn run_id(&self, replies: &[RespReply<'_>]) -> RunId {
        let mut server_infos = self.topics.iter().zip(replies).filter(|(topic, _)| matches!(topic, Topic::Server));
        server_infos.find_map(|(_, reply)| run_id(reply.text()?))
    }

    /// Checks whether the replies permit the use of the connection.
    fn judge(&self, replies: &[RespReply<'_>]) -> Result<(), Unreachable> {
        let mut not_loaded = None;
        for (topic, reply) in self.topics.iter().zip(replies) {
            let fault = match reply {
                RespReply::Error(text) => Some(ServerError::of(text)),
                _ => None,
            };
            match (topic, fault) {
                // The name is only for operators, and some users have no permission to set one.
                (Topic::Name, _) => {}
                // Without the run id, every connection counts as one to another server.
                (Topic::Server, _) => {}
                // A replica whose role may not be queried answers READONLY to the first write.
                (Topic::Role, Some(ServerError { code: ErrorCode::NoPerm, .. })) => {}
                (Topic::Role, None) => {
                    let role = reply.items().and_then(|items| items.first()?.text());
                    if role != Some(b"master") {
                        return Err(Unreachable::NotPrimary);
                    }
                }
                // Another client may have loaded the script. The probe shows whether it is loaded.
                (Topic::Load, fault) => not_loaded = fault,
                (Topic::Probe, Some(fault)) if fault.code == ErrorCode::NoScript => {
                    if let Some(why) = not_loaded.take() {
                        return Err(Unreachable::Refused(why));
                    }
                    // The script was loaded and then flushed. The next call loads it again.
                }
                (Topic::Probe, Some(fault)) if fault.code.means_alive() => {}
                (Topic::Login | Topic::Role | Topic::Probe, Some(fault)) => return Err(Unreachable::Refused(fault)),
                (Topic::Login | Topic::Probe, None) => {}
            }
        }
        Ok(())
    }
}

impl Session {
    /// Logs in, loads the script, and checks that it runs. Returns the server's run id.
    pub(super) async fn greet_for_calls(
        &mut self,
        login: &Login,
        script: &Script,
        must_be_primary: bool,
    ) -> Result<RunId, Unreachable> {
        let mut greeting = Greeting::default();
        greeting.login(login);
        greeting.say(Topic::Name, &[b"CLIENT", b"SETNAME", b"tidegate"]);
        greeting.say(Topic::Server, &[b"INFO", b"server"]);
        if must_be_primary {
            greeting.say(Topic::Role, &[b"ROLE"]);
        }
        greeting.say(Topic::Probe, &[b"PING"]);
        greeting.commands.add_with(Bound::SMALL, |out| script.load(out));
        greeting.topics.push(Topic::Load);
        greeting.commands.add_with(Bound::SMALL, |out| script.probe(out));
        greeting.topics.push(Topic::Probe);
        let judged = |replies: &[RespReply<'_>]| greeting.judge(replies).map(|()| greeting.run_id(replies));
        self.exchange(&greeting.commands, judged).await?
    }

    /// Logs in, for commands other than calls of the script.
    pub(super) async fn greet_for_commands(&mut self, login: &Login) -> Result<(), Unreachable> {
        let mut greeting = Greeting::default();
        greeting.login(login);
        self.greet(&greeting).await
    }

    /// Logs in, for commands and announcements.
    pub(super) async fn greet_for_announcements(&mut self, login: &Login) -> Result<(), Unreachable> {
        let mut greeting = Greeting::default();
        greeting.login_for_announcements(login);
        self.greet(&greeting).await
    }

    async fn greet(&mut self, greeting: &Greeting) -> Result<(), Unreachable> {
        self.exchange(&greeting.commands, |replies| greeting.judge(replies)).await?
    }
}
