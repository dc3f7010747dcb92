//! Load with one request in flight on each of several connections.
//!
//! `redis-benchmark` registers each socket with the kernel again for every command, so that at this depth its own core
//! is saturated before that of the server. Here each socket is registered once, and a response costs one read and one
//! write.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use tidegate_bench::machine::{pin_to_core, process_cpu_time};
use tidegate_bench::report::{Report, Row};
use tidegate_bench::sample::median;

use crate::serving::Server;

/// The number of keys.
pub const KEYS: u32 = 100_000;
/// Number of distinct requests that are prepared.
const QUESTIONS: u32 = 20_000;
const A_TURN: Duration = Duration::from_millis(200);
/// Turns are short, because the machine's speed varies from one second to the next.
const TURNS: usize = 40;
/// The time allowed for the last answers.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The result of one turn.
#[derive(Clone, Copy)]
struct Turn {
    answers_a_second: f64,
    /// Microseconds of the server's processor time per response.
    cost: f64,
    /// Processor use of the server and of the load during the turn. Values near 1 mean saturation.
    server: f64,
    load: f64,
}

/// Whether a response is complete. Panics if it is invalid.
pub type IsWhole = fn(&[u8]) -> bool;

/// Connections to one server, and the requests for it.
pub struct Load {
    name: &'static str,
    server: u32,
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    questions: Vec<Vec<u8>>,
    is_whole: IsWhole,
    next: usize,
}

struct Connection {
    stream: TcpStream,
    came: Vec<u8>,
    is_waiting: bool,
}

/// Runs these loads in turns, and compares the first one with each of the others. The comparison of rates with the
/// second one gets the id.
pub fn compare(report: &mut Report, id: &str, headline: &str, unit: &str, mut loads: Vec<Load>) {
    let turns = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            pin_to_core(1);
            let mut turns = vec![Vec::new(); loads.len()];
            for _ in 0..TURNS {
                for (turns, load) in turns.iter_mut().zip(&mut loads) {
                    turns.push(load.turn());
                }
            }
            turns
        });
        load.join().expect("the load runs to its end")
    });
    let middle = |turns: &[Turn], of: fn(&Turn) -> f64| median(turns.iter().map(of).collect());
    let rows = |row: &dyn Fn(&str, f64, f64) -> Row, of: fn(&Turn) -> f64| -> Vec<Row> {
        let peers = loads.iter().zip(&turns).skip(1);
        peers.map(|(peer, theirs)| row(peer.name, middle(&turns[0], of), middle(theirs, of))).collect()
    };
    let ours = loads[0].name;
    let rate = |peer: &str, mine, theirs| Row::larger_is_better(ours, mine, peer, theirs, unit);
    let mut rates = rows(&rate, |turn| turn.answers_a_second);
    rates[0].id = Some(id.to_owned());
    report.section(headline, rates);
    for (load, turns) in loads.iter().zip(&turns) {
        let (server, client) = (middle(turns, |turn| turn.server), middle(turns, |turn| turn.load));
        println!(
            "  {}: the server ran {:.0} % of the time, the load {:.0} %",
            load.name,
            server * 100.0,
            client * 100.0
        );
    }
    let cost = |peer: &str, mine, theirs| Row::smaller_is_better(ours, mine, peer, theirs, "us");
    report.section(&format!("{headline}: the server's processor time for one"), rows(&cost, |turn| turn.cost));
}

impl Load {
    /// A load on `server` with requests made by `question` from a key.
    pub fn new(
        name: &'static str,
        server: &Server,
        connections: usize,
        question: impl Fn(u32) -> Vec<u8>,
        is_whole: IsWhole,
    ) -> Load {
        let poll = Poll::new().expect("epoll");
        let open = |number| Connection::open(server.address, &poll, Token(number));
        let connections: Vec<_> = (0..connections).map(open).collect();
        // The stride is coprime with the number of keys, so that keys are scattered and none repeats.
        let questions = (0..QUESTIONS).map(|number| question(number * 70_001 % KEYS)).collect();
        let events = Events::with_capacity(connections.len());
        Load { name, server: server.process(), poll, events, connections, questions, is_whole, next: 0 }
    }

    /// Keeps one request in flight on each connection for the duration of a turn.
    fn turn(&mut self) -> Turn {
        let (server, load) = (process_cpu_time(self.server), process_cpu_time(std::process::id()));
        let began = Instant::now();
        for (connection, question) in self.connections.iter_mut().zip(&self.questions) {
            connection.ask(question);
        }
        let mut answered = 0_u64;
        while began.elapsed() < A_TURN {
            answered += self.hear(true);
        }
        let within = began.elapsed();
        let answers_a_second = answered as f64 / within.as_secs_f64();
        while self.connections.iter().any(|connection| connection.is_waiting) {
            assert!(began.elapsed() < A_TURN + TIMEOUT, "the server does not answer");
            answered += self.hear(false);
        }
        let server = process_cpu_time(self.server) - server;
        let load = process_cpu_time(std::process::id()) - load;
        Turn {
            answers_a_second,
            cost: server.as_secs_f64() * 1e6 / answered as f64,
            server: server.as_secs_f64() / within.as_secs_f64(),
            load: load.as_secs_f64() / within.as_secs_f64(),
        }
    }

    /// Handles the responses that have arrived, and sends further requests if `again`. Returns the number of responses.
    fn hear(&mut self, again: bool) -> u64 {
        self.poll.poll(&mut self.events, Some(TIMEOUT)).expect("epoll");
        let mut answered = 0;
        for event in &self.events {
            let connection = &mut self.connections[event.token().0];
            if connection.has_answer(self.is_whole) {
                answered += 1;
                if again {
                    self.next = (self.next + 1) % self.questions.len();
                    connection.ask(&self.questions[self.next]);
                }
            }
        }
        answered
    }
}

impl Connection {
    fn open(server: SocketAddr, poll: &Poll, token: Token) -> Connection {
        let stream = std::net::TcpStream::connect(server).expect("a server that listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_nonblocking(true).expect("a socket");
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, token, Interest::READABLE).expect("epoll");
        Connection { stream, came: Vec::with_capacity(1_024), is_waiting: false }
    }

    fn ask(&mut self, question: &[u8]) {
        let written = self.stream.write(question).expect("a server that reads");
        assert_eq!(written, question.len(), "a socket has room for one question");
        self.is_waiting = true;
    }

    /// Reads the available data. Returns whether it completes a response.
    fn has_answer(&mut self, is_whole: IsWhole) -> bool {
        let mut bytes = [0; 1_024];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the server has closed"),
            // A short read means that the socket is drained, so there will be another event for more data.
            Ok(read) if read < bytes.len() => self.came.extend_from_slice(&bytes[..read]),
            Ok(_) => panic!("an answer is shorter than this"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        }
        let is_whole = is_whole(&self.came);
        if is_whole {
            assert!(self.is_waiting, "an answer that nobody asked for");
            self.came.clear();
            self.is_waiting = false;
        }
        is_whole
    }
}
