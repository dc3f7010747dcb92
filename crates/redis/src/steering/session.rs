//! A connection to the server that keeps what is published.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind, FromRedisValue, Pipeline, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, RedisError, RedisResult, cmd, pipe,
};
use tidegate_core::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Steering;
use super::error::SteeringError;
use super::keys::Keys;
use super::published::{
    Head, LARGEST_HEAD, LARGEST_MODES, LARGEST_RULES, Published, PublishedModes, PublishedRules, read_text,
};
use crate::link::{Address, Door, Login, Stream};

/// How often a cluster may say that what we look for is elsewhere.
const MOST_REDIRECTIONS: usize = 3;

/// What a server may send between two commands: all that is published, and what is announced meanwhile.
const MOST_BYTES: usize = LARGEST_RULES + LARGEST_MODES + LARGEST_HEAD + 256 * 1024;

/// A stream on which a server may answer commands, but not send without end.
struct BoundedStream {
    stream: Stream,
    /// How much may still come until something is written.
    left: usize,
}

impl AsyncRead for BoundedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let count = buffer.filled().len() - before;
        let Some(left) = self.left.checked_sub(count) else {
            buffer.set_filled(before);
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server sends more than it was asked for",
            )));
        };
        self.left = left;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.left = MOST_BYTES;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection, used for one thing after the other. It is given up at the first failure.
pub(super) struct Session {
    pub(super) connection: MultiplexedConnection,
    pub(super) keys: Keys,
}

/// What a head stands for. The text of the rules is there if it was asked for.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) head: Head,
    pub(super) text: Option<String>,
    pub(super) modes: PublishedModes,
}

impl Contents {
    pub(super) fn into_published(self, now: Timestamp) -> Published {
        let Contents { head, text, modes } = self;
        let rules = head.rules.zip(text).map(|(rules, text)| PublishedRules {
            version: rules.edition.version,
            name: rules.name,
            text,
            signed: rules.signed,
        });
        Published { version: head.edition.version, signed: head.signed, rules, modes, now }
    }
}

impl Steering {
    /// A connection to the server that keeps what is published. If there is somebody to `wake`, that happens whenever a
    /// change is announced, as long as the server lets us listen.
    pub(super) async fn connect(&self, wake: Option<&Arc<Notify>>) -> Result<Session, SteeringError> {
        let mut last = SteeringError::unreachable("no server is known");
        for address in self.door.addresses().await? {
            match self.connect_from(address, wake).await {
                Ok(session) => return Ok(session),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connect_from(&self, first: Address, wake: Option<&Arc<Notify>>) -> Result<Session, SteeringError> {
        let mut address = first;
        for _ in 0..MOST_REDIRECTIONS {
            let connection = match open(&self.door, &address, self.timeout, wake).await {
                // A server, or something before it, that does not know how to announce: looking is enough.
                Err(error) if wake.is_some() && error.kind() == ErrorKind::RESP3NotSupported => {
                    open(&self.door, &address, self.timeout, None).await?
                }
                other => other?,
            };
            let mut session = Session { connection, keys: self.keys.clone() };
            let probe = cmd("STRLEN").arg(session.keys.head()).query_async::<u64>(&mut session.connection).await;
            match probe {
                Err(error) if error.redirect_node().is_some() => address = elsewhere(&error, &address)?,
                // Somebody else's key is no reason not to talk.
                Err(error) if error.code() == Some("WRONGTYPE") => return session.listening(wake).await,
                Err(error) => return Err(error.into()),
                Ok(_) => return session.listening(wake).await,
            }
        }
        Err(SteeringError::unreachable("the cluster sends us from node to node"))
    }
}

fn elsewhere(error: &RedisError, here: &Address) -> Result<Address, SteeringError> {
    let (told, _) = error.redirect_node().unwrap_or_default();
    // A node that does not know its own name leaves the host out: it is the one that was asked.
    let whole = match (told.strip_prefix(':'), here.host()) {
        (Some(port), Some(host)) => format!("{host}:{port}"),
        _ => told.to_owned(),
    };
    Address::parse_announced(&whole).ok_or_else(|| SteeringError::unreachable(format_args!("no address: {whole}")))
}

async fn open(
    door: &Door,
    address: &Address,
    patience: Duration,
    wake: Option<&Arc<Notify>>,
) -> RedisResult<MultiplexedConnection> {
    let unreachable = |text: String| RedisError::from(io::Error::new(io::ErrorKind::NotConnected, text));
    let stream = door.knock(address).await.map_err(|error| unreachable(format!("{address}: {error}")))?;
    let stream = BoundedStream { stream, left: MOST_BYTES };
    let mut login = login(door.login());
    let mut config = AsyncConnectionConfig::new().set_response_timeout(Some(patience));
    if let Some(wake) = wake {
        let wake = Arc::clone(wake);
        login = login.set_protocol(ProtocolVersion::RESP3);
        config = config.set_push_sender(move |push: PushInfo| {
            // What the message says does not matter: it is a reason to look.
            if matches!(push.kind, PushKind::Message | PushKind::Disconnection) {
                wake.notify_one();
            }
            Ok::<(), redis::aio::SendError>(())
        });
    }
    let greeting = MultiplexedConnection::new_with_config(&login, stream, config);
    let (connection, driver) = timeout(door.timeout().max(patience), greeting)
        .await
        .map_err(|_| unreachable(format!("{address}: the server does not answer")))??;
    // It ends with the connection.
    tokio::spawn(driver);
    Ok(connection)
}

fn login(login: &Login) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default().set_db(login.database.into()).set_skip_set_lib_name();
    if let Some(user) = &login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &login.password {
        info = info.set_password(password);
    }
    info
}

impl Session {
    async fn listening(mut self, wake: Option<&Arc<Notify>>) -> Result<Session, SteeringError> {
        if wake.is_some() {
            let news = self.keys.news();
            match self.connection.subscribe(news).await.map_err(SteeringError::from) {
                // A user who may not listen still finds by looking.
                Ok(()) | Err(SteeringError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self)
    }

    /// What is published at the moment, in brief.
    pub(super) async fn head(&mut self) -> Result<Option<Head>, SteeringError> {
        let key = self.keys.head();
        let mut asked = pipe();
        asked.cmd("GETRANGE").arg(&key).arg(0).arg(LARGEST_HEAD);
        let (bytes,): (Vec<u8>,) = self.read(&asked, &[&key]).await?;
        Head::read(key, &bytes)
    }

    /// What is published at the moment, all of it or without the text of the rules.
    pub(super) async fn contents(&mut self, with_text: bool) -> Result<Option<Contents>, SteeringError> {
        let mut asked = pipe();
        asked.atomic();
        self.read_contents(asked, with_text).await
    }

    /// The same, without the text, and a watch on it: a transaction that follows comes to nothing if it has changed.
    pub(super) async fn watched_contents(&mut self) -> Result<Option<Contents>, SteeringError> {
        let watch = cmd("WATCH").arg(self.keys.head()).arg(self.keys.modes()).to_owned();
        watch.exec_async(&mut self.connection).await?;
        self.read_contents(pipe(), false).await
    }

    async fn read_contents(&mut self, mut asked: Pipeline, with_text: bool) -> Result<Option<Contents>, SteeringError> {
        let (head_key, modes_key, rules_key) = (self.keys.head(), self.keys.modes(), self.keys.rules());
        asked.cmd("GETRANGE").arg(&head_key).arg(0).arg(LARGEST_HEAD);
        asked.cmd("GETRANGE").arg(&modes_key).arg(0).arg(LARGEST_MODES);
        if with_text {
            asked.cmd("GETRANGE").arg(&rules_key).arg(0).arg(LARGEST_RULES);
        }
        let mut parts: Vec<Vec<u8>> = self.read(&asked, &[&head_key, &modes_key, &rules_key]).await?;
        let text = if with_text { parts.pop() } else { None };
        let (modes, head) = (parts.pop().unwrap_or_default(), parts.pop().unwrap_or_default());
        let Some(head) = Head::read(head_key, &head)? else { return Ok(None) };
        let text = text.map(|text| read_text(&rules_key, text, LARGEST_RULES)).transpose()?;
        Ok(Some(Contents { head, text, modes: PublishedModes::read(&modes_key, &modes)? }))
    }

    /// What time it is where the server is.
    pub(super) async fn time(&mut self) -> Result<Timestamp, SteeringError> {
        let (secs, micros): (u64, u64) = cmd("TIME").query_async(&mut self.connection).await?;
        Ok(Timestamp::from_micros(secs.saturating_mul(1_000_000).saturating_add(micros)))
    }

    /// Reads something: one key with each command. What is of another type than ours was not written by us.
    pub(super) async fn read<T: FromRedisValue>(
        &mut self,
        asked: &Pipeline,
        keys: &[&str],
    ) -> Result<T, SteeringError> {
        let error = match asked.query_async(&mut self.connection).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let errors = error.clone().into_server_errors().unwrap_or_default();
        match errors.first() {
            Some((place, first)) if first.code() == "WRONGTYPE" => {
                let key = keys.get(*place).copied().unwrap_or_default();
                Err(SteeringError::unreadable(key.to_owned(), "it is not a string"))
            }
            Some(_) | None => Err(error.into()),
        }
    }
}
