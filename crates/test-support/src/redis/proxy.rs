//! A proxy between client and server that injects faults.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Maximum number of bytes of a flood, so that a failing test does not exhaust memory.
pub const FLOOD: usize = 256 * 1024 * 1024;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// No fault: everything is passed on.
    Nothing,
    /// Closes the connection when a request arrives, without passing it to the server.
    BeforeRequest,
    /// Passes half of a request on and closes the connection.
    MidRequest,
    /// Passes a request on, waits for the reply, and closes the connection.
    BeforeReply,
    /// Passes half of a reply on and closes the connection.
    MidReply,
    /// Delays every reply.
    Delay(Duration),
    /// Sends these bytes instead of a reply, followed by zeros until the client closes the connection or [`FLOOD`] bytes
    /// were sent.
    Flood(&'static [u8]),
    /// Passes nothing on, but keeps connections open. Bytes received meanwhile are passed on afterwards.
    BlackHole,
    /// Closes all connections and refuses new ones.
    Refuse,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    breaks: Break,
    /// Whether the fault is injected only once.
    once: bool,
}

/// A proxy in front of one port, which stops when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    orders: watch::Sender<Order>,
    largest_flood: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy on a free port in front of `port`.
    ///
    /// # Panics
    /// Panics if no port is free.
    pub async fn start(port: u16) -> Proxy {
        let (orders, _) = watch::channel(Order { breaks: Break::Nothing, once: false });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port for a proxy");
        let address = listener.local_addr().expect("a proxy's address");
        let largest_flood = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(accept(listener, address, port, orders.clone(), largest_flood.clone()));
        Proxy { address, orders, largest_flood, task }
    }

    /// `redis://127.0.0.1:port`, with the port of the proxy.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The port of the proxy.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// Injects this fault from now on.
    pub fn set(&self, breaks: Break) {
        self.orders.send_replace(Order { breaks, once: false });
    }

    /// Injects this fault once.
    pub fn once(&self, breaks: Break) {
        self.orders.send_replace(Order { breaks, once: true });
    }

    /// The largest number of bytes of a flood that a client has read.
    #[must_use]
    pub fn largest_flood(&self) -> usize {
        self.largest_flood.load(Ordering::Relaxed)
    }

    /// Whether no fault is being injected, or the fault to be injected once already was.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.orders.borrow().breaks == Break::Nothing
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    port: u16,
    orders: watch::Sender<Order>,
    largest_flood: Arc<AtomicUsize>,
) {
    let mut listener = Some(listener);
    let mut news = orders.subscribe();
    let mut connections = tokio::task::JoinSet::new();
    loop {
        if news.borrow_and_update().breaks == Break::Refuse {
            listener = None;
            connections.abort_all();
            if news.changed().await.is_err() {
                return;
            }
            continue;
        }
        if listener.is_none() {
            listener = Some(listen_again(address).expect("the proxy's port once more"));
        }
        let Some(open) = &listener else { continue };
        tokio::select! {
            accepted = open.accept() => {
                let Ok((client, _)) = accepted else { continue };
                connections.spawn(carry(client, port, orders.clone(), largest_flood.clone()));
            }
            changed = news.changed() => if changed.is_err() { return },
        }
        while connections.try_join_next().is_some() {}
    }
}

fn listen_again(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1_024)
}

/// Relays one connection until either side, or an order, ends it.
async fn carry(client: TcpStream, port: u16, orders: watch::Sender<Order>, largest_flood: Arc<AtomicUsize>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        _ = requests(from_client, to_server, orders.clone()) => {}
        _ = replies(from_server, to_client, orders, &largest_flood) => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, orders: watch::Sender<Order>) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        match order(&orders, &[Break::BeforeRequest, Break::MidRequest]).await {
            Break::BeforeRequest => return Ok(()),
            Break::MidRequest => return to.write_all(&buffer[..count / 2]).await,
            _ => to.write_all(&buffer[..count]).await?,
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    orders: watch::Sender<Order>,
    largest_flood: &AtomicUsize,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let breaks = order(&orders, &[Break::BeforeReply, Break::MidReply]).await;
        match breaks {
            Break::BeforeReply => return Ok(()),
            Break::MidReply => return to.write_all(&buffer[..count / 2]).await,
            Break::Flood(first) => {
                let mut sent = first.len();
                to.write_all(first).await?;
                while sent < FLOOD {
                    sent += to.write(&[0; 64 * 1024]).await?;
                    largest_flood.fetch_max(sent, Ordering::Relaxed);
                }
                return Ok(());
            }
            Break::Delay(by) => {
                tokio::time::sleep(by).await;
                to.write_all(&buffer[..count]).await?;
            }
            _ => to.write_all(&buffer[..count]).await?,
        }
    }
}

/// The action on the bytes just received. An order that applies once, and is one of `mine`, is completed by this.
async fn order(orders: &watch::Sender<Order>, mine: &[Break]) -> Break {
    let mut news = orders.subscribe();
    let Ok(order) = news.wait_for(|order| order.breaks != Break::BlackHole).await.map(|order| *order) else {
        return Break::Nothing;
    };
    if order.once && mine.contains(&order.breaks) {
        orders.send_replace(Order { breaks: Break::Nothing, once: false });
    }
    order.breaks
}
