//! Sockets for doors.
//!
//! A [`Listener`] accepts connections for one door, no more at once than it may, and gives each to the door as a
//! [`Stream`] with the address that it came from. What comes before the door's own protocol, the PROXY protocol and TLS, is
//! dealt with here, in bounded time. When the server is told to stop it accepts no more, and waits for a bounded time until
//! those that are open have ended.

mod handover;
mod proxy;
mod room;
mod stream;
mod tls;
mod vigil;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_http::TrustedProxies;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::handover::{Estate, HandoverError, Inheritance, hand_over};
use self::room::{Place, Room};
pub use self::stream::Stream;
pub use self::tls::{Tls, TlsError, TlsFiles};
pub(crate) use self::vigil::{Sign, Vigil};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4_096;
/// When no connection can be accepted for lack of something that others may give back.
const BREATHER: Duration = Duration::from_millis(50);

/// How a door listens.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where. Port 0 is any that is free.
    pub address: SocketAddr,
    /// The most connections that are open at once. Further ones wait, unaccepted, until one of them ends. `None` leaves it to
    /// the system, which lets a process have so many files and no more.
    pub most_connections: Option<usize>,
    /// How long connections that are open may take to end once the server stops.
    pub grace: Duration,
    /// How long a connection may take until the door's own protocol begins.
    pub handshake_time: Duration,
    /// How long the other end may leave what is written to it unread.
    pub write_time: Duration,
    /// The certificates to show and to ask for; `None` if connections are not encrypted.
    pub tls: Option<Arc<Tls>>,
    /// The proxies that begin connections with a PROXY header; those of others are closed. `None` if nobody does.
    pub proxies: Option<TrustedProxies>,
}

impl Settings {
    /// Listens at `address`, with the defaults for the rest.
    #[must_use]
    pub const fn at(address: SocketAddr) -> Settings {
        Settings {
            address,
            most_connections: Some(10_000),
            grace: Duration::from_secs(10),
            handshake_time: Duration::from_secs(10),
            write_time: Duration::from_secs(30),
            tls: None,
            proxies: None,
        }
    }
}

/// A door cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}: {reason}")]
pub struct ListenError {
    address: SocketAddr,
    reason: io::Error,
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where the connection comes from, or, where proxies say it, whom it really comes from.
    pub address: SocketAddr,
}

/// A socket that accepts connections for one door.
pub struct Listener {
    socket: TcpListener,
    listening: Listening,
}

/// A door that listens: where, and how, which may change while it does. A clone is the same.
#[derive(Clone, Debug)]
pub struct Listening {
    address: SocketAddr,
    settings: Arc<ArcSwap<Settings>>,
    room: Arc<Room>,
}

impl Listening {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Treats connections that come from now on as `settings` say. The address stays what it is, and so does what is open
    /// already, even if there are more of them than there may be now.
    pub fn apply(&self, settings: Settings) {
        self.room.resize(settings.most_connections.unwrap_or(usize::MAX));
        self.settings.store(Arc::new(settings));
    }
}

impl Listener {
    /// Listens from now on; connections wait until [`Listener::serve`] takes them.
    ///
    /// # Errors
    /// If the address cannot be had.
    pub fn bind(settings: Settings) -> Result<Listener, ListenError> {
        let bind = || {
            let address = settings.address;
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // So that a server that is started again need not wait for the connections of the one before.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let socket = socket.listen(BACKLOG)?;
            Ok((socket.local_addr()?, socket))
        };
        match bind() {
            Ok((address, socket)) => Ok(Listener::at(socket, address, settings)),
            Err(reason) => Err(ListenError { address: settings.address, reason }),
        }
    }

    fn at(socket: TcpListener, address: SocketAddr, settings: Settings) -> Listener {
        let room = Arc::new(Room::new(settings.most_connections.unwrap_or(usize::MAX)));
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        Listener { socket, listening: Listening { address, settings, room } }
    }

    /// Listens at a socket that somebody else has opened.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn adopt(socket: std::net::TcpListener, settings: Settings) -> Result<Listener, ListenError> {
        let adopt = || {
            socket.set_nonblocking(true)?;
            let socket = TcpListener::from_std(socket)?;
            Ok((socket.local_addr()?, socket))
        };
        match adopt() {
            Ok((address, socket)) => Ok(Listener::at(socket, address, settings)),
            Err(reason) => Err(ListenError { address: settings.address, reason }),
        }
    }

    /// The socket, for somebody else to listen at it too.
    ///
    /// # Errors
    /// If the system does not let it.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Where it listens, and how.
    #[must_use]
    pub fn listening(&self) -> Listening {
        self.listening.clone()
    }

    /// Gives every connection to `door`, until `stop`. Returns when all of them have ended or the grace is over; those
    /// that are open then are cut. A door should watch `stop` too, and end what is idle.
    pub async fn serve<F>(self, stop: CancellationToken, door: impl Fn(Stream, Peer) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Listener { socket, listening: Listening { settings, room, .. } } = self;
        let door = Arc::new(door);
        let mut open = JoinSet::new();
        loop {
            let (stream, address, place) = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = open.join_next() => continue,
                next = accept(&socket, &room) => next,
            };
            let (settings, door, stop) = (settings.load_full(), Arc::clone(&door), stop.clone());
            open.spawn(async move {
                let greeted = tokio::select! {
                    biased;
                    greeted = greet(stream, address, &settings) => greeted,
                    () = stop.cancelled() => return,
                };
                match greeted {
                    Ok((stream, peer)) => door(stream, peer).await,
                    Err(error) => tracing::debug!(%address, %error, "a connection did not get as far as the door"),
                }
                drop(place);
            });
        }
        // Whoever connects from now on is refused, rather than left to wait for an answer.
        drop(socket);
        let ended = async { while open.join_next().await.is_some() {} };
        let in_time = tokio::time::timeout(settings.load().grace, ended).await.is_ok();
        if !in_time {
            tracing::warn!(connections = open.len(), "connections were still busy when the grace was over: cut");
            open.shutdown().await;
        }
    }
}

/// What comes before the door's own protocol.
async fn greet(mut stream: TcpStream, address: SocketAddr, settings: &Settings) -> io::Result<(Stream, Peer)> {
    if settings.proxies.is_none() && settings.tls.is_none() {
        return Ok((Stream::plain(stream, settings.write_time), Peer { address }));
    }
    let greeting = async {
        let mut peer = Peer { address };
        if let Some(proxies) = &settings.proxies {
            if !proxies.trusts(address.ip()) {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not one of the trusted proxies"));
            }
            if let Some(source) = proxy::read(&mut stream).await? {
                peer.address = source;
            }
        }
        let stream = match &settings.tls {
            Some(tls) => Stream::tls(tls.accept(stream).await?, settings.write_time),
            None => Stream::plain(stream, settings.write_time),
        };
        Ok((stream, peer))
    };
    // In a box that is gone when it is done: the task keeps room for all that it ever waits for.
    Box::pin(tokio::time::timeout(settings.handshake_time, greeting)).await?
}

/// The next connection, once there is room for it.
async fn accept(socket: &TcpListener, room: &Arc<Room>) -> (TcpStream, SocketAddr, Place) {
    loop {
        let place = room.enter().await;
        match socket.accept().await {
            Ok((stream, address)) => {
                // Answers are written whole: there is nothing to wait for.
                let _ = stream.set_nodelay(true);
                return (stream, address, place);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted for the moment");
                tokio::time::sleep(BREATHER).await;
            }
        }
    }
}

/// Whether only the connection that was to be accepted is at fault.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
