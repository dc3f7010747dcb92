//! Listeners: sockets that accept connections.
//!
//! A [`Listener`] accepts connections, up to a limit, and passes each to a protocol as a [`Stream`] with the peer's
//! address. The PROXY protocol and TLS, which precede that protocol, are handled here, with a timeout. On shutdown, a
//! listener accepts no more connections, and waits for open ones for a limited time.

mod address_share;
mod certificate_expiry;
mod connection_limit;
mod handover;
mod http2_flood;
mod http_connection;
mod http_version;
mod inbound_body;
mod lifetime_watch;
mod proxy;
mod request_count;
mod stream;
mod tls;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_http::TrustedProxies;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) use self::address_share::client_network;
use self::address_share::{AddressShares, Counted, ShareExceeded, usual_share};
use self::connection_limit::{ConnectionLimit, ConnectionPermit};
pub use self::handover::{HandedState, HandoverError, HandoverOffer, InheritedListeners, hand_over};
pub(crate) use self::http_connection::{
    Http2Limits, HttpConnection, Lifetime, MaxAge, detect_within, http1_builder, http2_builder,
};
pub(crate) use self::http_version::{HTTP2_PREFACE, HttpVersion, ReplayedStream};
pub(crate) use self::inbound_body::InboundBody;
pub(crate) use self::lifetime_watch::{LifetimeEvent, LifetimeWatch};
pub(crate) use self::request_count::RequestCount;
pub use self::stream::Stream;
pub use self::tls::{ListenerTls, Reloaded, TlsError, TlsFiles};
use crate::keepalive;
use crate::log_throttle::LogThrottle;

/// Maximum number of connections in the accept queue.
const BACKLOG: u32 = 4_096;
/// Pause when a connection cannot be accepted for lack of a resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Settings of a listener.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address. Port 0 picks a free port.
    pub address: SocketAddr,
    /// Maximum number of open connections. Further connections wait in the accept queue. `None` means no limit besides
    /// the system's limit on open files.
    pub most_connections: Option<usize>,
    /// Maximum number of connections of one client, which is an IPv4 address or an IPv6 /64. Further connections are
    /// closed immediately. `None` means a quarter of all connections, but at least 64 and at most half.
    pub connections_per_address: Option<usize>,
    /// Proxies, which are exempt from the limit per client because they carry connections of many clients.
    pub trusted: TrustedProxies,
    /// The time that open connections have to end after the server stops.
    pub grace: Duration,
    /// Timeout for the PROXY header and the TLS handshake.
    pub handshake_time: Duration,
    /// Maximum time that a peer may leave written data unread.
    pub write_time: Duration,
    /// Idle time after which TCP keepalive probes the peer; zero to disable it.
    pub keepalive_time: Duration,
    /// Certificates of the server and for clients; `None` for unencrypted connections.
    pub tls: Option<Arc<ListenerTls>>,
    /// Proxies that must send a PROXY header; connections from other addresses are closed. `None` disables the PROXY
    /// protocol.
    pub proxies: Option<TrustedProxies>,
}

impl Settings {
    /// Settings with this address, and defaults otherwise.
    #[must_use]
    pub const fn at(address: SocketAddr) -> Settings {
        Settings {
            address,
            most_connections: Some(10_000),
            connections_per_address: None,
            trusted: TrustedProxies::none(),
            grace: Duration::from_secs(10),
            handshake_time: Duration::from_secs(10),
            write_time: Duration::from_secs(30),
            keepalive_time: Duration::from_secs(60),
            tls: None,
            proxies: None,
        }
    }

    /// Maximum number of connections of this client; `None` for no limit.
    fn share_of(&self, address: IpAddr) -> Option<usize> {
        let share = || match (self.connections_per_address, self.most_connections) {
            (Some(most), _) => Some(most),
            (None, Some(all)) => Some(usual_share(all)),
            (None, None) => None,
        };
        if self.trusted.trusts(address) { None } else { share() }
    }
}

/// The listening address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}{}: {reason}{}", named(*setting), hint(*address, *setting, reason.kind()))]
pub struct ListenError {
    address: SocketAddr,
    /// Setting that contains the address.
    setting: Option<&'static str>,
    reason: io::Error,
}

impl ListenError {
    fn new(address: SocketAddr, reason: io::Error) -> ListenError {
        ListenError { address, setting: None, reason }
    }

    /// Sets the setting that contains the address.
    #[must_use]
    pub fn of_setting(self, setting: &'static str) -> ListenError {
        ListenError { setting: Some(setting), ..self }
    }
}

/// Suggestion for an address that cannot be bound; empty if there is none.
fn hint(address: SocketAddr, setting: Option<&str>, reason: io::ErrorKind) -> String {
    let (ip, port) = (address.ip(), address.port());
    let (why, other) = match reason {
        io::ErrorKind::AddrInUse => {
            let next = SocketAddr::new(ip, port.checked_add(1).unwrap_or(1_024));
            ("another program listens there, perhaps another tidegate: stop it", next)
        }
        io::ErrorKind::PermissionDenied if port < 1_024 => {
            ("ports below 1024 take a privilege (CAP_NET_BIND_SERVICE): grant it", SocketAddr::new(ip, port + 8_000))
        }
        io::ErrorKind::AddrNotAvailable => {
            ("this machine does not have that address: use one of its own", SocketAddr::from(([0, 0, 0, 0], port)))
        }
        _ => return String::new(),
    };
    let Some(setting) = setting else { return format!("\n  = {why}, or choose another address") };
    let flag = setting.replace(['.', '_'], "-");
    format!("\n  = {why}, or choose another address: `--{flag} {other}`, or `{setting}` in the configuration file")
}

fn named(setting: Option<&str>) -> String {
    setting.map(|setting| format!(" (`{setting}`)")).unwrap_or_default()
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// Address of the socket's peer, or from a proxy's PROXY header.
    pub address: SocketAddr,
}

/// A socket that accepts connections.
pub struct Listener {
    socket: TcpListener,
    listening: Listening,
}

/// A listener's address and settings, which can change while it listens. Clones refer to the same listener.
#[derive(Clone, Debug)]
pub struct Listening {
    address: SocketAddr,
    settings: Arc<ArcSwap<Settings>>,
    limit: Arc<ConnectionLimit>,
    shares: Arc<AddressShares>,
}

impl Listening {
    /// The listening address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Maximum number of open connections.
    #[must_use]
    pub fn most_connections(&self) -> usize {
        self.limit.most()
    }

    /// Times that the limit was reached.
    #[must_use]
    pub fn times_full(&self) -> u64 {
        self.limit.times_full()
    }

    /// Expiry of the certificate, in seconds since the Unix epoch; `None` without TLS.
    #[must_use]
    pub fn certificate_expiry(&self) -> Option<u64> {
        self.settings.load().tls.as_ref()?.expiry()
    }

    /// Number of connections closed because of the limit per client.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.shares.refused()
    }

    /// Applies these settings to new connections. The address and open connections are unaffected, even above the new
    /// maximum.
    pub fn apply(&self, settings: Settings) {
        self.limit.resize(settings.most_connections.unwrap_or(usize::MAX));
        self.settings.store(Arc::new(settings));
    }
}

impl Listener {
    /// Starts listening. Connections wait until [`Listener::serve`] accepts them.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn bind(settings: Settings) -> Result<Listener, ListenError> {
        let bind = || {
            let address = settings.address;
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Lets a restarted server bind while connections of the previous one are in TIME_WAIT.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let socket = socket.listen(BACKLOG)?;
            Ok((socket.local_addr()?, socket))
        };
        match bind() {
            Ok((address, socket)) => Ok(Listener::at(socket, address, settings)),
            Err(reason) => Err(ListenError::new(settings.address, reason)),
        }
    }

    fn at(socket: TcpListener, address: SocketAddr, settings: Settings) -> Listener {
        let limit = Arc::new(ConnectionLimit::new(settings.most_connections.unwrap_or(usize::MAX)));
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        Listener { socket, listening: Listening { address, settings, limit, shares: Arc::default() } }
    }

    /// Listens on a socket that another process has opened.
    ///
    /// # Errors
    /// If the socket cannot be used.
    pub fn adopt(socket: std::net::TcpListener, settings: Settings) -> Result<Listener, ListenError> {
        let adopt = || {
            socket.set_nonblocking(true)?;
            let socket = TcpListener::from_std(socket)?;
            Ok((socket.local_addr()?, socket))
        };
        match adopt() {
            Ok((address, socket)) => Ok(Listener::at(socket, address, settings)),
            Err(reason) => Err(ListenError::new(settings.address, reason)),
        }
    }

    /// Duplicates the socket, so that another process can listen on it too.
    ///
    /// # Errors
    /// If the system rejects it.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// The listener's address and settings.
    #[must_use]
    pub fn listening(&self) -> Listening {
        self.listening.clone()
    }

    /// Passes every connection to `serve_connection`, until `stop`. Returns once all have ended or the grace period is
    /// over, and then cuts the remaining ones. `serve_connection` should watch `stop` too, and close idle connections.
    pub async fn serve<F>(
        self,
        stop: CancellationToken,
        serve_connection: impl Fn(Stream, PeerAddress) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Listener { socket, listening: Listening { settings, limit, shares, .. } } = self;
        let (serve_connection, shares) =
            (Arc::new(serve_connection), Arc::new(ConnectionShares { shares, log: LogThrottle::default() }));
        let mut open = JoinSet::new();
        loop {
            let (stream, address, permit) = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = open.join_next() => continue,
                next = accept(&socket, &limit) => next,
            };
            let (settings, serve_connection, stop) =
                (settings.load_full(), Arc::clone(&serve_connection), stop.clone());
            // With the PROXY protocol, the client is known only after the header.
            let counted = match &settings.proxies {
                None => shares.count(address, &settings),
                Some(_) => Ok(None),
            };
            let Ok(counted) = counted else { continue };
            let shares = Arc::clone(&shares);
            keepalive::set_with_timeout(&stream, settings.keepalive_time, settings.write_time);
            open.spawn(async move {
                let greeted = tokio::select! {
                    biased;
                    greeted = greet(stream, address, &settings, &shares) => greeted,
                    () = stop.cancelled() => return,
                };
                match greeted {
                    Ok((stream, peer, behind_proxy)) => {
                        serve_connection(stream, peer).await;
                        drop(behind_proxy);
                    }
                    Err(error) => tracing::debug!(%address, %error, "connection failed before its protocol was known"),
                }
                drop((counted, permit));
            });
        }
        // Refuses new connections, instead of leaving them in the queue unanswered.
        drop(socket);
        let ended = async { while open.join_next().await.is_some() {} };
        let in_time = tokio::time::timeout(settings.load().grace, ended).await.is_ok();
        if !in_time {
            tracing::warn!(connections = open.len(), "grace period ended: closing busy connections");
            open.shutdown().await;
        }
    }
}

/// Limits the connections of each client, and logs when a limit is reached.
struct ConnectionShares {
    shares: Arc<AddressShares>,
    log: LogThrottle,
}

impl ConnectionShares {
    /// Counts a connection, unless its client is exempt.
    fn count(&self, client: SocketAddr, settings: &Settings) -> Result<Option<Counted>, ShareExceeded> {
        let Some(most) = settings.share_of(client.ip()) else { return Ok(None) };
        let counted = self.shares.enter(client.ip(), most);
        if let Err(ShareExceeded { address, open }) = &counted
            && let Some(suppressed) = self.log.pass()
        {
            tracing::warn!(
                %address,
                open,
                suppressed,
                listener = %settings.address,
                "connection limit of an address reached: further connections are closed"
            );
        }
        counted.map(Some)
    }
}

/// Reads the PROXY header and performs the TLS handshake. A connection through a proxy is counted for the client in the
/// header.
async fn greet(
    mut stream: TcpStream,
    address: SocketAddr,
    settings: &Settings,
    shares: &ConnectionShares,
) -> io::Result<(Stream, PeerAddress, Option<Counted>)> {
    if settings.proxies.is_none() && settings.tls.is_none() {
        return Ok((Stream::plain(stream, settings.write_time), PeerAddress { address }, None));
    }
    let greeting = async {
        let (mut peer, mut counted) = (PeerAddress { address }, None);
        if let Some(proxies) = &settings.proxies {
            if !proxies.trusts(address.ip()) {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not one of the trusted proxies"));
            }
            if let Some(source) = proxy::read(&mut stream).await? {
                peer.address = source;
            }
            counted = shares.count(peer.address, settings).map_err(io::Error::other)?;
        }
        let stream = match &settings.tls {
            Some(tls) => Stream::tls(tls.accept(stream).await?, settings.write_time),
            None => Stream::plain(stream, settings.write_time),
        };
        Ok((stream, peer, counted))
    };
    // Boxed, to keep its state out of the task's future, which lives as long as the connection.
    Box::pin(tokio::time::timeout(settings.handshake_time, greeting)).await?
}

/// Accepts the next connection, once the limit allows it.
async fn accept(socket: &TcpListener, limit: &Arc<ConnectionLimit>) -> (TcpStream, SocketAddr, ConnectionPermit) {
    loop {
        let permit = limit.acquire().await;
        match socket.accept().await {
            Ok((stream, address)) => {
                // Responses are written in one piece, so waiting for more data (Nagle's algorithm) gains nothing.
                let _ = stream.set_nodelay(true);
                return (stream, address, permit);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted at present");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the error concerns only the connection being accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
