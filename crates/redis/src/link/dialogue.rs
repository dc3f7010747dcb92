//! Asking a server something and waiting for what it says, one question at a time.
//!
//! This is how connections begin, and how sentinels and clusters are asked about themselves. Calls go another way, many
//! at once.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::address::Address;
use super::error::Unreachable;
use super::fault::{Code, Fault};
use super::resp::{self, Bound, Malformed, Reply};
use super::script::Script;
use super::settings::{Login, Settings, SettingsError};
use super::stream::{Inbox, Stream};

/// A connection on which nothing is under way.
pub(super) struct Dialogue {
    pub(super) stream: Stream,
    pub(super) inbox: Inbox,
}

/// Connects to servers.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) timeout: Duration,
}

impl Connector {
    pub(super) fn new(settings: &Settings) -> Result<Connector, SettingsError> {
        Ok(Connector { tls: settings.client_config()?, timeout: settings.connect_timeout })
    }

    /// Does it, whatever it is, in the time there is to connect.
    pub(super) async fn in_time<T>(
        &self,
        what: impl Future<Output = Result<T, Unreachable>>,
    ) -> Result<T, Unreachable> {
        timeout(self.timeout, what).await.unwrap_or(Err(Unreachable::Silent(self.timeout)))
    }

    pub(super) async fn connect(&self, address: &Address) -> Result<Dialogue, Unreachable> {
        let stream = Stream::connect(address, self.tls.as_ref()).await?;
        Ok(Dialogue { stream, inbox: Inbox::new() })
    }
}

impl From<Malformed> for Unreachable {
    fn from(why: Malformed) -> Unreachable {
        match why {
            Malformed::Protocol => Unreachable::Malformed,
            Malformed::TooLarge => Unreachable::TooLarge,
        }
    }
}

impl Dialogue {
    /// Sends commands, one for each bound, and hands over their replies, when all have come.
    pub(super) async fn exchange<T>(
        &mut self,
        commands: &[u8],
        bounds: &[Bound],
        read: impl FnOnce(&[Reply<'_>]) -> T,
    ) -> Result<T, Unreachable> {
        // A server that does not want us says why and hangs up, perhaps before it has heard anything.
        let written = self.write(commands).await;
        loop {
            if let Some((replies, taken)) = first_replies(self.inbox.unread(), bounds)? {
                let answer = read(&replies);
                drop(replies);
                self.inbox.consume(taken);
                return Ok(answer);
            }
            let (stream, inbox) = (&mut self.stream, &mut self.inbox);
            let why = match poll_fn(|cx| inbox.poll_fill(stream, cx)).await {
                Ok(0) => Unreachable::HungUp,
                Ok(_) => continue,
                Err(error) => error.into(),
            };
            let said = refusal(self.inbox.unread());
            return Err(said.or_else(|| written.err().map(Unreachable::from)).unwrap_or(why));
        }
    }

    async fn write(&mut self, commands: &[u8]) -> io::Result<()> {
        self.stream.write_all(commands).await?;
        self.stream.flush().await
    }
}

fn first_replies<'a>(bytes: &'a [u8], bounds: &[Bound]) -> Result<Option<(Vec<Reply<'a>>, usize)>, Malformed> {
    let (mut replies, mut taken) = (Vec::with_capacity(bounds.len()), 0);
    for &bound in bounds {
        let Some((reply, length)) = Reply::read(&bytes[taken..], bound)? else { return Ok(None) };
        replies.push(reply);
        taken += length;
    }
    Ok(Some((replies, taken)))
}

fn refusal(bytes: &[u8]) -> Option<Unreachable> {
    match Reply::read(bytes, Bound::SMALL) {
        Ok(Some((Reply::Error(text), _))) => Some(Unreachable::Refused(Fault::of(text))),
        _ => None,
    }
}

/// What is said first on a connection.
#[derive(Default)]
struct Greeting {
    commands: Vec<u8>,
    topics: Vec<Topic>,
}

#[derive(Clone, Copy)]
enum Topic {
    Login,
    Name,
    Role,
    Load,
    Probe,
}

impl Greeting {
    fn say(&mut self, topic: Topic, words: &[&[u8]]) {
        resp::command(&mut self.commands, words);
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
        if login.database != 0 {
            self.say(Topic::Login, &[b"SELECT", login.database.to_string().as_bytes()]);
        }
    }

    /// What has to be heard before the connection is of use.
    fn judge(&self, replies: &[Reply<'_>]) -> Result<(), Unreachable> {
        let mut not_loaded = None;
        for (topic, reply) in self.topics.iter().zip(replies) {
            let fault = match reply {
                Reply::Error(text) => Some(Fault::of(text)),
                _ => None,
            };
            match (topic, fault) {
                // Names are for the operator's eyes, and not every user may set one.
                (Topic::Name, _) => {}
                // Where asking is not allowed, a replica will say READONLY when it matters.
                (Topic::Role, Some(Fault { code: Code::NoPerm, .. })) => {}
                (Topic::Role, None) => {
                    let role = reply.items().and_then(|items| items.first()?.text());
                    if role != Some(b"master") {
                        return Err(Unreachable::NotPrimary);
                    }
                }
                // Somebody else may have loaded the script. If so, the probe finds it.
                (Topic::Load, fault) => not_loaded = fault,
                (Topic::Probe, Some(fault)) if fault.code == Code::NoScript => {
                    if let Some(why) = not_loaded.take() {
                        return Err(Unreachable::Refused(why));
                    }
                    // It was loaded, and somebody flushed it at that moment: the next call will load it again.
                }
                (Topic::Probe, Some(fault)) if fault.code.means_alive() => {}
                (Topic::Login | Topic::Role | Topic::Probe, Some(fault)) => return Err(Unreachable::Refused(fault)),
                (Topic::Login | Topic::Probe, None) => {}
            }
        }
        Ok(())
    }
}

impl Dialogue {
    /// Says who we are, makes the script known, and makes sure that it runs.
    pub(super) async fn greet_for_calls(
        &mut self,
        login: &Login,
        script: &Script,
        must_be_primary: bool,
    ) -> Result<(), Unreachable> {
        let mut greeting = Greeting::default();
        greeting.login(login);
        greeting.say(Topic::Name, &[b"CLIENT", b"SETNAME", b"tidegate"]);
        if must_be_primary {
            greeting.say(Topic::Role, &[b"ROLE"]);
        }
        greeting.say(Topic::Probe, &[b"PING"]);
        script.load(&mut greeting.commands);
        greeting.topics.push(Topic::Load);
        script.probe(&mut greeting.commands);
        greeting.topics.push(Topic::Probe);
        self.greet(&greeting).await
    }

    async fn greet_for_questions(&mut self, login: &Login) -> Result<(), Unreachable> {
        let mut greeting = Greeting::default();
        greeting.login(&Login { database: 0, ..login.clone() });
        self.greet(&greeting).await
    }

    async fn greet(&mut self, greeting: &Greeting) -> Result<(), Unreachable> {
        let bounds = vec![Bound::SMALL; greeting.topics.len()];
        self.exchange(&greeting.commands, &bounds, |replies| greeting.judge(replies)).await?
    }
}

/// A server that is asked again and again, on one connection while it lasts.
pub(super) struct Asked {
    pub(super) address: Address,
    dialogue: Option<Dialogue>,
}

impl Asked {
    pub(super) const fn new(address: Address) -> Asked {
        Asked { address, dialogue: None }
    }

    async fn ask<T>(&mut self, question: &Question<T>, connector: &Connector, login: &Login) -> Result<T, Unreachable> {
        // If this does not come to a good end, the next time begins with a new connection.
        let mut dialogue = match self.dialogue.take() {
            Some(dialogue) => dialogue,
            None => {
                let mut dialogue = connector.connect(&self.address).await?;
                dialogue.greet_for_questions(login).await?;
                dialogue
            }
        };
        let read = |replies: &[Reply<'_>]| (question.read)(&self.address, replies);
        let answer = dialogue.exchange(&question.commands, question.bounds, read).await?;
        self.dialogue = Some(dialogue);
        answer
    }
}

/// Something to ask of several servers.
pub(super) struct Question<T> {
    pub(super) commands: Vec<u8>,
    /// How large the reply to each command can be.
    pub(super) bounds: &'static [Bound],
    /// Makes sense of the replies of the server at that address.
    pub(super) read: fn(&Address, &[Reply<'_>]) -> Result<T, Unreachable>,
}

/// Asks all of them at once, and waits for more than half of the answers, or for as long as connecting may take.
///
/// The answers of more than half of the servers are enough to know the latest state of what they agree on by majority.
pub(super) async fn ask_all<T: Send + 'static>(
    servers: &mut Vec<Asked>,
    question: &Arc<Question<T>>,
    connector: &Connector,
    login: &Login,
) -> Vec<T> {
    let enough = servers.len() / 2 + 1;
    let mut asked = JoinSet::new();
    let mut silent: Vec<Address> = Vec::with_capacity(servers.len());
    for mut server in servers.drain(..) {
        silent.push(server.address.clone());
        let (question, connector, login) = (question.clone(), connector.clone(), login.clone());
        asked.spawn(async move {
            let answer = connector.in_time(server.ask(&question, &connector, &login)).await;
            (server, answer)
        });
    }
    let mut answers = Vec::new();
    while let Some(joined) = asked.join_next().await {
        let Ok((server, answer)) = joined else { continue };
        silent.retain(|address| *address != server.address);
        servers.push(server);
        answers.extend(answer);
        if answers.len() >= enough {
            break;
        }
    }
    servers.extend(silent.into_iter().map(Asked::new));
    answers
}
