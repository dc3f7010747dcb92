//! A network in virtual time between the nodes of a fleet and one server.
//!
//! Messages take one to four milliseconds, and arrive on a connection in order. After a lost message, a connection delivers
//! nothing more, like TCP until it times out.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate_redis::link::Dialer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ScriptedServer;

/// The state of the path between a node and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PathState {
    #[default]
    Open,
    /// Nothing arrives until the path is open again.
    Held,
    /// Answers do not arrive until the path is open again.
    AnswersHeld,
    /// Messages to the server are lost.
    CallsLost,
    /// Messages to the node are lost.
    AnswersLost,
    /// Connections break, and new ones cannot be made.
    Cut,
}

/// The network. Clones share it.
#[derive(Clone)]
pub(crate) struct SimulatedNetwork {
    state: Arc<Mutex<State>>,
}

struct State {
    /// In milliseconds.
    now: u64,
    paths: Vec<PathState>,
    /// The number of crashes of each node.
    crashes: Vec<u64>,
    connections: Vec<NodeConnection>,
    is_server_up: bool,
    dice: fastrand::Rng,
}

/// A connection of a node.
struct NodeConnection {
    node: usize,
    to_server: Lane,
    to_node: Lane,
    /// Bytes of commands that the server has not answered yet.
    received: Vec<u8>,
    /// Bytes that the node can read.
    readable: VecDeque<u8>,
    reader: Option<Waker>,
    is_closed: bool,
}

/// Messages in flight in one direction, each with its arrival time.
#[derive(Default)]
struct Lane {
    sent: VecDeque<(u64, Vec<u8>)>,
    has_lost: bool,
}

impl Lane {
    fn arrived(&mut self, now: u64) -> Option<Vec<u8>> {
        let is_due = self.sent.front().is_some_and(|(at, _)| *at <= now);
        if is_due { self.sent.pop_front().map(|(_, message)| message) } else { None }
    }
}

impl SimulatedNetwork {
    /// A network with open paths. The seed determines the delays of messages.
    pub(crate) fn new(nodes: usize, seed: u64) -> SimulatedNetwork {
        let dice = fastrand::Rng::with_seed(seed);
        let paths = vec![PathState::Open; nodes];
        let crashes = vec![0; nodes];
        let state = State { now: 0, paths, crashes, connections: Vec::new(), is_server_up: true, dice };
        SimulatedNetwork { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a node to the server, until it crashes.
    pub(crate) fn dialer(&self, node: usize) -> Dialer {
        let (network, crashes) = (self.clone(), self.state().crashes[node]);
        Dialer::new(move |_| std::future::ready(network.connect(node, crashes)))
    }

    fn connect(&self, node: usize, crashes: u64) -> io::Result<NodeStream> {
        let mut state = self.state();
        if !state.is_server_up || state.paths[node] == PathState::Cut || state.crashes[node] != crashes {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        state.connections.push(NodeConnection {
            node,
            to_server: Lane::default(),
            to_node: Lane::default(),
            received: Vec::new(),
            readable: VecDeque::new(),
            reader: None,
            is_closed: false,
        });
        Ok(NodeStream { network: self.clone(), connection: state.connections.len() - 1 })
    }

    /// Advances by a millisecond: messages arrive, and the server answers.
    pub(crate) fn tick(&self, server: &mut ScriptedServer) {
        let mut state = self.state();
        state.now += 1;
        for number in 0..state.connections.len() {
            state.deliver(number, server);
        }
    }
}

#[allow(dead_code, reason = "only simulations disturb the network")]
impl SimulatedNetwork {
    pub(crate) fn set_path(&self, node: usize, path: PathState) {
        let mut state = self.state();
        state.paths[node] = path;
        if path == PathState::Cut {
            state.close(|connection| connection.node == node);
        }
    }

    /// Crashes the node's process and closes its connections. Messages that it has sent still arrive.
    pub(crate) fn crash(&self, node: usize) {
        let mut state = self.state();
        state.crashes[node] += 1;
        state.close(|connection| connection.node == node);
    }

    /// Stops or starts the server. All connections break when it stops.
    pub(crate) fn set_server(&self, is_up: bool) {
        let mut state = self.state();
        state.is_server_up = is_up;
        if !is_up {
            for connection in &mut state.connections {
                connection.to_server.sent.clear();
            }
            state.close(|_| true);
        }
    }
}

impl State {
    fn deliver(&mut self, number: usize, server: &mut ScriptedServer) {
        let State { now, paths, connections, .. } = self;
        let connection = &mut connections[number];
        if paths[connection.node] == PathState::Held {
            return;
        }
        while let Some(message) = connection.to_server.arrived(*now) {
            connection.received.extend_from_slice(&message);
        }
        let answers = server.answer(&mut connection.received);
        if !answers.is_empty() {
            self.send_to_node(number, answers);
        }
        let connection = &mut self.connections[number];
        if self.paths[connection.node] == PathState::AnswersHeld {
            return;
        }
        let readable = connection.readable.len();
        while let Some(message) = connection.to_node.arrived(self.now) {
            connection.readable.extend(message);
        }
        if connection.readable.len() > readable {
            connection.wake();
        }
    }

    fn send_to_node(&mut self, number: usize, message: Vec<u8>) {
        let at = self.arrival();
        let connection = &mut self.connections[number];
        let is_lost = self.paths[connection.node] == PathState::AnswersLost;
        connection.to_node.send(at, message, is_lost);
    }

    fn send_to_server(&mut self, number: usize, message: Vec<u8>) {
        let at = self.arrival();
        let connection = &mut self.connections[number];
        let is_lost = self.paths[connection.node] == PathState::CallsLost;
        connection.to_server.send(at, message, is_lost);
    }

    fn arrival(&mut self) -> u64 {
        self.now + self.dice.u64(1..=4)
    }

    fn close(&mut self, which: impl Fn(&NodeConnection) -> bool) {
        for connection in self.connections.iter_mut().filter(|connection| which(connection)) {
            connection.is_closed = true;
            connection.to_node.sent.clear();
            connection.wake();
        }
    }
}

impl Lane {
    fn send(&mut self, at: u64, message: Vec<u8>, is_lost: bool) {
        self.has_lost |= is_lost;
        if !self.has_lost {
            let after = self.sent.back().map_or(0, |(last, _)| *last);
            self.sent.push_back((at.max(after), message));
        }
    }
}

impl NodeConnection {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// The node's end of a connection.
struct NodeStream {
    network: SimulatedNetwork,
    connection: usize,
}

impl AsyncRead for NodeStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.network.state();
        let connection = &mut state.connections[self.connection];
        if connection.is_closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if connection.readable.is_empty() {
            connection.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = connection.readable.len().min(buffer.remaining());
        let bytes: Vec<u8> = connection.readable.drain(..count).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.network.state();
        if state.connections[self.connection].is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        state.send_to_server(self.connection, bytes.to_vec());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for NodeStream {
    fn drop(&mut self) {
        self.network.state().connections[self.connection].is_closed = true;
    }
}
