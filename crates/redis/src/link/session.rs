//! Request/response sessions: commands are sent, and all of their replies are received, one exchange at a time.
//!
//! Every connection begins with a session. Sentinels and cluster nodes are queried through sessions, and the fleet's
//! configuration is read and published through them. Calls of the script use [connections](super::connection) instead, with
//! many in flight at once.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::address::Address;
use super::dialer::Dialer;
use super::error::Unreachable;
use super::resp::{self, Bound, MalformedReply, RespReply};
use super::server_error::ServerError;
use super::settings::Settings;
use super::settings_error::SettingsError;
use super::stream::{Inbox, ServerStream};

/// A connection with nothing in flight.
pub(crate) struct Session {
    pub(super) stream: ServerStream,
    pub(super) inbox: Inbox,
    /// Whether a message was announced since [`Session::announced`] last returned.
    announced: bool,
    /// Why the session ended while it was idle.
    ended: Option<Unreachable>,
}

/// Connects to servers.
#[derive(Clone)]
pub(super) struct Connector {
    tls: Option<Arc<ClientConfig>>,
    dialer: Option<Dialer>,
    pub(super) timeout: Duration,
}

impl Connector {
    pub(super) fn new(settings: &Settings) -> Result<Connector, SettingsError> {
        let dialer = settings.dialer.clone();
        Ok(Connector { tls: settings.client_config()?, dialer, timeout: settings.connect_timeout })
    }

    /// Runs a step of connecting, bounded by the connect timeout.
    pub(super) async fn in_time<T>(
        &self,
        step: impl Future<Output = Result<T, Unreachable>>,
    ) -> Result<T, Unreachable> {
        within(self.timeout, step).await
    }

    pub(super) async fn connect(&self, address: &Address) -> Result<Session, Unreachable> {
        let stream = ServerStream::connect(address, self.tls.as_ref(), self.dialer.as_ref()).await?;
        Ok(Session { stream, inbox: Inbox::new(), announced: false, ended: None })
    }
}

/// Runs a step, and fails with [`Unreachable::Silent`] if it takes longer than `limit`.
pub(super) async fn within<T>(
    limit: Duration,
    step: impl Future<Output = Result<T, Unreachable>>,
) -> Result<T, Unreachable> {
    timeout(limit, step).await.unwrap_or(Err(Unreachable::Silent(limit)))
}

impl From<MalformedReply> for Unreachable {
    fn from(why: MalformedReply) -> Unreachable {
        match why {
            MalformedReply::Protocol => Unreachable::Malformed,
            MalformedReply::TooLarge => Unreachable::TooLarge,
        }
    }
}

/// Commands that are sent together, with a bound on the reply to each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    pub(super) bytes: Vec<u8>,
    bounds: Vec<Bound>,
}

impl Commands {
    pub(crate) fn new() -> Commands {
        Commands::default()
    }

    /// Adds a command.
    pub(crate) fn add(&mut self, words: &[&[u8]], bound: Bound) {
        resp::command(&mut self.bytes, words);
        self.bounds.push(bound);
    }

    /// Adds a command that `write` encodes.
    pub(super) fn add_with(&mut self, bound: Bound, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.bounds.push(bound);
    }

    /// The same commands with one more.
    #[must_use]
    pub(crate) fn with(mut self, words: &[&[u8]], bound: Bound) -> Commands {
        self.add(words, bound);
        self
    }

    /// The same commands as one transaction, between `MULTI` and `EXEC`. The last reply contains their replies.
    #[must_use]
    pub(crate) fn in_transaction(self) -> Commands {
        let mut transaction = Commands::new().with(&[b"MULTI"], Bound::string(0));
        transaction.bytes.extend_from_slice(&self.bytes);
        transaction.bounds.extend(self.bounds.iter().map(|_| Bound::string(0)));
        transaction.with(&[b"EXEC"], Bound::of_array(&self.bounds))
    }
}

impl Session {
    /// Sends commands and passes their replies to `read` once all are received.
    pub(crate) async fn exchange<T>(
        &mut self,
        commands: &Commands,
        read: impl FnOnce(&[RespReply<'_>]) -> T,
    ) -> Result<T, Unreachable> {
        if let Some(why) = self.ended.take() {
            return Err(why);
        }
        // A server that refuses a client sends an error and closes the connection, possibly before it has read anything.
        let written = self.write(&commands.bytes).await;
        loop {
            if let Some(first) = FirstReplies::read(self.inbox.unread(), &commands.bounds)? {
                let answer = read(&first.replies);
                let FirstReplies { taken, announced, .. } = first;
                self.announced |= announced;
                self.inbox.consume(taken);
                return Ok(answer);
            }
            let Err(why) = self.fill().await else { continue };
            let said = refusal(self.inbox.unread());
            return Err(said.or_else(|| written.err().map(Unreachable::from)).unwrap_or(why));
        }
    }

    async fn write(&mut self, commands: &[u8]) -> io::Result<()> {
        self.stream.write_all(commands).await?;
        self.stream.flush().await
    }

    /// Reads more bytes into the inbox.
    async fn fill(&mut self) -> Result<(), Unreachable> {
        let (stream, inbox) = (&mut self.stream, &mut self.inbox);
        match poll_fn(|cx| inbox.poll_fill(stream, cx)).await {
            Ok(0) => Err(Unreachable::HungUp),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Subscribes to a channel, on a connection with version 3 of the protocol.
    pub(crate) async fn subscribe(&mut self, channel: &[u8]) -> Result<(), Unreachable> {
        let command = Commands::new().with(&[b"SUBSCRIBE", channel], Bound::SMALL);
        self.write(&command.bytes).await?;
        loop {
            match RespReply::read(self.inbox.unread(), Bound::ANNOUNCEMENTS)? {
                None => self.fill().await?,
                Some((reply, taken)) => {
                    let done = match &reply {
                        RespReply::Push(items) => {
                            let is_confirmed = items.first().and_then(RespReply::text) == Some(b"subscribe");
                            self.announced |= !is_confirmed;
                            is_confirmed.then_some(Ok(()))
                        }
                        RespReply::Error(text) => Some(Err(Unreachable::Refused(ServerError::of(text)))),
                        _ => Some(Err(Unreachable::Malformed)),
                    };
                    drop(reply);
                    self.inbox.consume(taken);
                    if let Some(result) = done {
                        return result;
                    }
                }
            }
        }
    }

    /// Waits until a message is announced or the connection ends. In the latter case, the next exchange fails. No
    /// announcement is lost if the future is dropped.
    pub(crate) async fn announced(&mut self) {
        while !std::mem::take(&mut self.announced) && self.ended.is_none() {
            if let Err(why) = self.next_announcement().await {
                self.ended = Some(why);
            }
        }
    }

    async fn next_announcement(&mut self) -> Result<(), Unreachable> {
        match RespReply::read(self.inbox.unread(), Bound::ANNOUNCEMENTS)? {
            None => self.fill().await,
            Some((RespReply::Push(_), taken)) => {
                self.inbox.consume(taken);
                self.announced = true;
                Ok(())
            }
            // A reply without a command.
            Some(_) => Err(Unreachable::Malformed),
        }
    }
}

/// The replies to the commands of one exchange.
struct FirstReplies<'a> {
    replies: Vec<RespReply<'a>>,
    /// The number of bytes of the replies, including announcements between them.
    taken: usize,
    announced: bool,
}

impl<'a> FirstReplies<'a> {
    fn read(bytes: &'a [u8], bounds: &[Bound]) -> Result<Option<FirstReplies<'a>>, MalformedReply> {
        let mut first = FirstReplies { replies: Vec::with_capacity(bounds.len()), taken: 0, announced: false };
        let mut announcements = Bound::ANNOUNCEMENTS;
        for &bound in bounds {
            while bytes.get(first.taken) == Some(&b'>') {
                let Some((_, length)) = RespReply::read(&bytes[first.taken..], announcements)? else { return Ok(None) };
                announcements.bytes = announcements.bytes.saturating_sub(length);
                (first.taken, first.announced) = (first.taken + length, true);
            }
            let Some((reply, length)) = RespReply::read(&bytes[first.taken..], bound)? else { return Ok(None) };
            first.replies.push(reply);
            first.taken += length;
        }
        Ok(Some(first))
    }
}

fn refusal(bytes: &[u8]) -> Option<Unreachable> {
    match RespReply::read(bytes, Bound::SMALL) {
        Ok(Some((RespReply::Error(text), _))) => Some(Unreachable::Refused(ServerError::of(text))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_between_replies_are_noted_and_skipped() {
        let bytes = b">2\r\n+message\r\n+x\r\n:1\r\n>1\r\n+message\r\n+OK\r\n:7\r\n";
        let first = FirstReplies::read(bytes, &[Bound::SMALL; 2]).unwrap().unwrap();
        assert_eq!(first.replies, [RespReply::Integer(1), RespReply::Simple(b"OK")]);
        assert!(first.announced && first.taken == bytes.len() - 4);
        assert!(FirstReplies::read(&bytes[..20], &[Bound::SMALL; 2]).unwrap().is_none());
    }

    #[test]
    fn announcements_without_end_are_refused() {
        let one = [&b">1\r\n$60000\r\n"[..], &vec![b'x'; 60_000], b"\r\n"].concat();
        let enough = Bound::ANNOUNCEMENTS.bytes / one.len();
        assert!(FirstReplies::read(&one.repeat(enough), &[Bound::SMALL]).unwrap().is_none());
        assert_eq!(FirstReplies::read(&one.repeat(enough + 1), &[Bound::SMALL]).err(), Some(MalformedReply::TooLarge));
    }

    #[test]
    fn a_transaction_has_its_commands_between_multi_and_exec() {
        let commands = Commands::new().with(&[b"GET", b"a"], Bound::string(9)).with(&[b"DEL", b"b"], Bound::string(0));
        let transaction = commands.in_transaction();
        let expected =
            "*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n*2\r\n$3\r\nDEL\r\n$1\r\nb\r\n*1\r\n$4\r\nEXEC\r\n";
        assert_eq!(String::from_utf8(transaction.bytes), Ok(expected.to_owned()));
        assert_eq!(transaction.bounds.len(), 4);
    }
}
