//! A session with the server that stores what is published.

use std::time::Duration;

use tidegate_core::Timestamp;
use tokio::time::timeout;

use super::control::FleetControl;
use super::error::FleetError;
use super::keys::FleetKeys;
use super::published::{
    Head, LARGEST_HEAD, LARGEST_MODES, LARGEST_RULES, Published, PublishedModes, PublishedRules, read_text,
};
use crate::link::{
    Address, Announcements, Bound, Commands, ErrorCode, Redirection, RespReply, ServerError, Session, Unreachable,
};

/// Maximum number of a cluster's redirections that are followed.
const MOST_REDIRECTIONS: usize = 3;

/// A session for several exchanges. It is dropped at the first failure.
pub(super) struct FleetSession {
    session: Session,
    pub(super) keys: FleetKeys,
    timeout: Duration,
}

/// The values that belong to a head. Contains the text of the rules if it was requested.
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

impl FleetControl {
    /// Opens a session with the server that stores what is published. With announcements, [`FleetSession::announced`]
    /// returns when a change is announced, if the server permits subscriptions.
    pub(super) async fn connect(&self, announcements: Announcements) -> Result<FleetSession, FleetError> {
        let mut last = FleetError::unreachable("no server is known");
        for address in self.endpoint.addresses().await? {
            match self.connect_from(address, announcements).await {
                Ok(session) => return Ok(session),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Opens a session with one server.
    pub(super) async fn connect_to(&self, address: &Address) -> Result<FleetSession, FleetError> {
        let (session, _) = self.open(address, Announcements::Unwanted).await?;
        Ok(FleetSession { session, keys: self.keys.clone(), timeout: self.timeout })
    }

    async fn connect_from(&self, first: Address, wanted: Announcements) -> Result<FleetSession, FleetError> {
        let mut address = first;
        for _ in 0..MOST_REDIRECTIONS {
            let (session, announcements) = self.open(&address, wanted).await?;
            let mut session = FleetSession { session, keys: self.keys.clone(), timeout: self.timeout };
            let probe = Commands::new().with(&[b"STRLEN", session.keys.head().as_bytes()], Bound::string(0));
            match session.values(&probe, |_| Some(())).await? {
                Err((_, fault)) if fault.code == ErrorCode::Moved => {
                    let Some(Redirection::Moved(to)) = fault.redirection(address.host()) else {
                        return Err(FleetError::unreachable(format_args!("no address: {fault}")));
                    };
                    address = to;
                }
                // The server can be used even if the key has another type.
                Err((_, fault)) if fault.code != ErrorCode::WrongType => return Err(fault.into()),
                Ok(_) | Err(_) => {
                    if announcements == Announcements::Wanted {
                        session.subscribe().await?;
                    }
                    return Ok(session);
                }
            }
        }
        Err(FleetError::unreachable("the cluster redirects from node to node"))
    }

    async fn open(&self, address: &Address, wanted: Announcements) -> Result<(Session, Announcements), FleetError> {
        let mut announcements = wanted;
        loop {
            match self.endpoint.open(address, announcements, self.timeout).await {
                Ok(session) => return Ok((session, announcements)),
                // A server, or a proxy before it, may not support version 3 of the protocol. In that case, polling is
                // enough.
                Err(Unreachable::Refused(fault))
                    if announcements == Announcements::Wanted && fault.code == ErrorCode::Other =>
                {
                    announcements = Announcements::Unwanted;
                }
                Err(Unreachable::Refused(fault)) => return Err(fault.into()),
                Err(error) => return Err(FleetError::unreachable(format_args!("{address}: {error}"))),
            }
        }
    }
}

/// A refused command: its index among the commands, and the server's error.
type RefusedCommand = (usize, ServerError);

impl FleetSession {
    async fn subscribe(&mut self) -> Result<(), FleetError> {
        let channel = self.keys.news();
        let subscribed = timeout(self.timeout, self.session.subscribe(channel.as_bytes())).await;
        match subscribed.unwrap_or(Err(Unreachable::Silent(self.timeout))) {
            // A user without permission to subscribe finds changes by polling.
            Ok(()) | Err(Unreachable::Refused(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until a change is announced or the connection ends.
    pub(super) async fn announced(&mut self) {
        self.session.announced().await;
    }

    async fn exchange<T>(
        &mut self,
        commands: &Commands,
        read: impl FnOnce(&[RespReply<'_>]) -> T,
    ) -> Result<T, FleetError> {
        let answered = timeout(self.timeout, self.session.exchange(commands, read)).await;
        Ok(answered.unwrap_or(Err(Unreachable::Silent(self.timeout)))?)
    }

    /// Sends commands and parses each reply with `read`, which returns `None` for a reply of the wrong type.
    pub(super) async fn values<T>(
        &mut self,
        commands: &Commands,
        read: fn(&RespReply<'_>) -> Option<T>,
    ) -> Result<Result<Vec<T>, RefusedCommand>, FleetError> {
        self.exchange(commands, |replies| values(replies, read)).await?
    }

    /// Like [`FleetSession::values`], in one transaction; `None` if a watched key has changed.
    async fn transaction<T>(
        &mut self,
        commands: Commands,
        read: fn(&RespReply<'_>) -> Option<T>,
    ) -> Result<Result<Option<Vec<T>>, RefusedCommand>, FleetError> {
        self.exchange(&commands.in_transaction(), |replies| {
            let Some((result, queued)) = replies.split_last() else { return Err(malformed()) };
            // Commands are counted from 0 after the reply to MULTI, which is the first.
            if let Some((place, fault)) = first_fault(queued) {
                return Ok(Err((place.saturating_sub(1), fault)));
            }
            match result {
                RespReply::Nil => Ok(Ok(None)),
                RespReply::Error(text) => Ok(Err((queued.len(), ServerError::of(text)))),
                other => {
                    let items = other.items().filter(|items| items.len() + 1 == queued.len()).ok_or_else(malformed)?;
                    Ok(values(items, read)?.map(Some))
                }
            }
        })
        .await?
    }

    /// Writes in one transaction. Returns `false` and writes nothing if a watched key has changed.
    pub(super) async fn write(&mut self, commands: Commands) -> Result<bool, FleetError> {
        let written = self.transaction(commands, |_| Some(())).await?;
        Ok(written.map_err(|(_, fault)| fault)?.is_some())
    }

    /// The published head.
    pub(super) async fn head(&mut self) -> Result<Option<Head>, FleetError> {
        let key = self.keys.head();
        let bytes = self.string(&key, LARGEST_HEAD).await?;
        Head::read(key, &bytes)
    }

    /// Everything that is published, at one instant, with or without the text of the rules.
    pub(super) async fn contents(&mut self, with_text: bool) -> Result<Option<Contents>, FleetError> {
        let (commands, keys) = self.contents_commands(with_text);
        let parts = self.transaction(commands, string).await?;
        let parts = parts.map_err(|refused| unreadable(refused, &keys))?;
        self.read_contents(parts.unwrap_or_default(), with_text)
    }

    /// The contents without the text. Also watches them: a following transaction writes nothing if they have changed.
    pub(super) async fn watched_contents(&mut self) -> Result<Option<Contents>, FleetError> {
        let (head, modes) = (self.keys.head(), self.keys.modes());
        let watch = Commands::new().with(&[b"WATCH", head.as_bytes(), modes.as_bytes()], Bound::string(0));
        self.values(&watch, |_| Some(())).await?.map_err(|(_, fault)| fault)?;
        let (commands, keys) = self.contents_commands(false);
        let parts = self.values(&commands, string).await?.map_err(|refused| unreadable(refused, &keys))?;
        self.read_contents(parts, false)
    }

    /// The commands that read the contents, one for each of the keys.
    fn contents_commands(&self, with_text: bool) -> (Commands, Vec<String>) {
        let mut parts = vec![(self.keys.head(), LARGEST_HEAD), (self.keys.modes(), LARGEST_MODES)];
        if with_text {
            parts.push((self.keys.rules(), LARGEST_RULES));
        }
        let mut commands = Commands::new();
        for (key, most) in &parts {
            get_range(&mut commands, key, *most);
        }
        (commands, parts.into_iter().map(|(key, _)| key).collect())
    }

    fn read_contents(&self, mut parts: Vec<Vec<u8>>, with_text: bool) -> Result<Option<Contents>, FleetError> {
        let text = if with_text { parts.pop() } else { None };
        let (modes, head) = (parts.pop().unwrap_or_default(), parts.pop().unwrap_or_default());
        let Some(head) = Head::read(self.keys.head(), &head)? else { return Ok(None) };
        let text = text.map(|text| read_text(&self.keys.rules(), text, LARGEST_RULES)).transpose()?;
        Ok(Some(Contents { head, text, modes: PublishedModes::read(&self.keys.modes(), &modes)? }))
    }

    /// The string under a key: up to `most` bytes plus one, so that a longer string can be detected.
    pub(super) async fn string(&mut self, key: &str, most: usize) -> Result<Vec<u8>, FleetError> {
        let mut commands = Commands::new();
        get_range(&mut commands, key, most);
        let parts = self.values(&commands, string).await?;
        let mut parts = parts.map_err(|refused| unreadable(refused, &[key.to_owned()]))?;
        Ok(parts.pop().unwrap_or_default())
    }

    /// The server's clock.
    pub(super) async fn time(&mut self) -> Result<Timestamp, FleetError> {
        let commands = Commands::new().with(&[b"TIME"], Bound::SMALL);
        let mut times = self.values(&commands, time).await?.map_err(|(_, fault)| fault)?;
        times.pop().ok_or_else(malformed)
    }
}

/// Adds a command that reads a string: up to `most` bytes plus one, so that a longer string can be detected.
pub(super) fn get_range(commands: &mut Commands, key: &str, most: usize) {
    commands.add(&[b"GETRANGE", key.as_bytes(), b"0", most.to_string().as_bytes()], Bound::string(most + 1));
}

pub(super) fn string(reply: &RespReply<'_>) -> Option<Vec<u8>> {
    reply.text().map(<[u8]>::to_vec)
}

/// Parses seconds and microseconds from two strings.
fn time(reply: &RespReply<'_>) -> Option<Timestamp> {
    let number = |reply: &RespReply<'_>| std::str::from_utf8(reply.text()?).ok()?.parse::<u64>().ok();
    let [seconds, micros] = reply.items()? else { return None };
    let seconds = number(seconds)?.saturating_mul(1_000_000);
    Some(Timestamp::from_micros(seconds.saturating_add(number(micros)?)))
}

fn values<T>(
    replies: &[RespReply<'_>],
    read: fn(&RespReply<'_>) -> Option<T>,
) -> Result<Result<Vec<T>, RefusedCommand>, FleetError> {
    if let Some(refused) = first_fault(replies) {
        return Ok(Err(refused));
    }
    replies.iter().map(read).collect::<Option<Vec<T>>>().map(Ok).ok_or_else(malformed)
}

fn first_fault(replies: &[RespReply<'_>]) -> Option<RefusedCommand> {
    replies.iter().enumerate().find_map(|(place, reply)| match reply {
        RespReply::Error(text) => Some((place, ServerError::of(text))),
        _ => None,
    })
}

fn malformed() -> FleetError {
    Unreachable::Malformed.into()
}

/// The error of a command that reads a key. A value of another type was not written by Tidegate.
fn unreadable((place, fault): RefusedCommand, keys: &[String]) -> FleetError {
    match keys.get(place) {
        Some(key) if fault.code == ErrorCode::WrongType => FleetError::unreadable(key.clone(), "it is not a string"),
        _ => fault.into(),
    }
}
