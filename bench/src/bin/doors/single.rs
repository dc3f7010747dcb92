//! Load of Redis commands, of which one is on its way on each of 50 connections.
//!
//! `redis-benchmark` tells the kernel anew what it waits for with each command, so that at this depth its own core is full
//! before that of the server is. Here each socket is registered once, and an answer costs a read and a write.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use memchr::memchr_iter;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use tidegate_bench::machine::process_cpu_time;

use crate::resp::KEY;
use crate::serving::Server;

const CONNECTIONS: usize = 50;
/// How many of the keys there are commands for.
const COMMANDS: u32 = 20_000;
/// Keys are 16 characters long, as `redis-benchmark` makes them, and there are as many.
const KEYS: u32 = 100_000;
const A_TURN: Duration = Duration::from_millis(500);
/// How long the answers to what was asked last may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What came of one turn.
#[derive(Clone, Copy)]
pub struct Turn {
    pub commands_a_second: f64,
    /// Microseconds of the server's processor time for each command.
    pub cost: f64,
    /// The parts of the turn in which the server and the load were running. What is near 1 was full.
    pub server: f64,
    pub load: f64,
}

/// Connections to one server, and what it is asked.
pub struct Load {
    server: u32,
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    commands: Vec<Vec<u8>>,
    next: usize,
}

struct Connection {
    stream: TcpStream,
    came: Vec<u8>,
    is_waiting: bool,
}

impl Load {
    /// Asks `server` with a command of these words, of which [`KEY`] stands for any of the keys.
    pub fn new(server: &Server, words: &[&str]) -> Load {
        let poll = Poll::new().expect("epoll");
        let connections = (0..CONNECTIONS).map(|number| Connection::open(server.address, &poll, Token(number)));
        let connections = connections.collect();
        // A stride that is prime to the number of keys meets them scattered, and none twice.
        let commands = (0..COMMANDS).map(|number| command(words, number * 70_001 % KEYS)).collect();
        let events = Events::with_capacity(CONNECTIONS);
        Load { server: server.process(), poll, events, connections, commands, next: 0 }
    }

    /// Keeps one command on its way on each connection for a while.
    pub fn turn(&mut self) -> Turn {
        let (server, load) = (process_cpu_time(self.server), process_cpu_time(std::process::id()));
        let began = Instant::now();
        for (connection, command) in self.connections.iter_mut().zip(&self.commands) {
            connection.ask(command);
        }
        let mut answered = 0_u64;
        while began.elapsed() < A_TURN {
            answered += self.hear(true);
        }
        let within = began.elapsed();
        let commands_a_second = answered as f64 / within.as_secs_f64();
        while self.connections.iter().any(|connection| connection.is_waiting) {
            assert!(began.elapsed() < A_TURN + PATIENCE, "the server does not answer");
            answered += self.hear(false);
        }
        let server = process_cpu_time(self.server) - server;
        let load = process_cpu_time(std::process::id()) - load;
        Turn {
            commands_a_second,
            cost: server.as_secs_f64() * 1e6 / answered as f64,
            server: server.as_secs_f64() / within.as_secs_f64(),
            load: load.as_secs_f64() / within.as_secs_f64(),
        }
    }

    /// Takes the answers that have come, and asks again if there is more to ask. Says how many they were.
    fn hear(&mut self, again: bool) -> u64 {
        self.poll.poll(&mut self.events, Some(PATIENCE)).expect("epoll");
        let mut answered = 0;
        for event in &self.events {
            let connection = &mut self.connections[event.token().0];
            if connection.has_answer() {
                answered += 1;
                if again {
                    self.next = (self.next + 1) % self.commands.len();
                    connection.ask(&self.commands[self.next]);
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

    fn ask(&mut self, command: &[u8]) {
        let written = self.stream.write(command).expect("a server that reads");
        assert_eq!(written, command.len(), "a socket has room for one command");
        self.is_waiting = true;
    }

    /// Reads what has come. Says whether that is the rest of an answer.
    fn has_answer(&mut self) -> bool {
        let mut bytes = [0; 1_024];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the server has closed"),
            // Less than there was room for is all that there was, so there will be another event for more.
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

fn command(words: &[&str], key: u32) -> Vec<u8> {
    let key = format!("key:{key:012}");
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        let word = if *word == KEY { &key } else { *word };
        command += &format!("${}\r\n{word}\r\n", word.len());
    }
    command.into_bytes()
}

/// Whether all of an answer has come: five whole numbers, or a text of one line, or nothing.
fn is_whole(came: &[u8]) -> bool {
    let lines = match came {
        [b'*', b'5', ..] => 6,
        [b'$', b'-', ..] => 1,
        [b'$', ..] => 2,
        _ => panic!("{}", String::from_utf8_lossy(came)),
    };
    memchr_iter(b'\n', came).count() == lines
}
