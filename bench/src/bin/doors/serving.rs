//! Servers in separate processes, on the first core.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tidegate::api;
use tidegate::engine::Engine;
use tidegate::listen::{self, Listener};
use tidegate::resp::{RespServer, Settings};
use tidegate_core::MemoryStore;
use tidegate_rules::{Limiter, RuleSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

const RESP: &str = "serve-resp";
const HTTP: &str = "serve-http";
const AXUM: &str = "serve-axum";
const ECHO: &str = "serve-echo";

/// Whether this process was started as a server.
pub fn is_asked_for() -> bool {
    std::env::args().nth(1).is_some_and(|argument| [RESP, HTTP, AXUM, ECHO].contains(&argument.as_str()))
}

/// Serves until killed, in the server's own runtime. This includes the peer.
pub fn serve() {
    tidegate::serve::runtime().expect("a runtime").block_on(async {
        match std::env::args().nth(1).as_deref() {
            Some(RESP) => serve_resp().await,
            Some(HTTP) => serve_http().await,
            Some(AXUM) => serve_axum().await,
            _ => serve_echo().await,
        }
    });
}

async fn serve_resp() {
    let engine = Engine::new(Limiter::new(RuleSet::default(), MemoryStore::new().into()));
    let server = Arc::new(RespServer::new(Arc::new(engine), Settings::default()));
    let listener = Listener::bind(listen::Settings::at(any_port())).expect("a port");
    println!("{}", listener.listening().address());
    let stop = CancellationToken::new();
    let serve = move |stream, peer: listen::PeerAddress| {
        let server = Arc::clone(&server);
        async move { server.serve(stream, peer.address, CancellationToken::new()).await }
    };
    // As in the server: not on the thread that blocks on the runtime.
    let _ = tokio::spawn(listener.serve(stop, serve)).await;
}

async fn serve_http() {
    let limit = std::env::args().nth(2).expect("a limit");
    let rules = RuleSet::parse("bench.yaml", &format!("rules: [{{ id: api, key: user, limit: {limit} }}]"));
    let engine = Engine::new(Limiter::new(rules.expect("rules").rules, MemoryStore::new().into()));
    let stop = CancellationToken::new();
    let server = Arc::new(api::ApiServer::new(Arc::new(engine), api::Settings::default(), None, None, stop.clone()));
    let listener = Listener::bind(listen::Settings::at(any_port())).expect("a port");
    println!("{}", listener.listening().address());
    let serve = move |stream, peer| {
        let server = Arc::clone(&server);
        async move { server.serve(stream, peer, CancellationToken::new()).await }
    };
    let _ = tokio::spawn(listener.serve(stop, serve)).await;
}

/// A server that answers the same requests without parsing them.
async fn serve_axum() {
    let listener = tokio::net::TcpListener::bind(any_port()).await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    let router = axum::Router::new().route("/v1/check", axum::routing::post(async || "ok"));
    let listener = axum::serve::ListenerExt::tap_io(listener, |stream: &mut tokio::net::TcpStream| {
        let _ = stream.set_nodelay(true);
    });
    let _ = tokio::spawn(async move { axum::serve(listener, router).await }).await;
}

/// Echoes all data, to measure a bare round trip.
async fn serve_echo() {
    let listener = tokio::net::TcpListener::bind(any_port()).await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    let accepting = async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                let mut bytes = vec![0; 4_096];
                while let Ok(came @ 1..) = stream.read(&mut bytes).await {
                    if stream.write_all(&bytes[..came]).await.is_err() {
                        break;
                    }
                }
            });
        }
    };
    let _ = tokio::spawn(accepting).await;
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A server that stops on drop.
pub struct Server {
    process: Child,
    pub address: SocketAddr,
}

impl Server {
    /// Tidegate's Redis listener.
    pub fn resp() -> Server {
        Server::ourselves(&[RESP])
    }

    /// Tidegate's HTTP listener, with one rule per user.
    pub fn http(limit: &str) -> Server {
        Server::ourselves(&[HTTP, limit])
    }

    /// An axum handler.
    pub fn axum() -> Server {
        Server::ourselves(&[AXUM])
    }

    /// A server that only echoes.
    pub fn echo() -> Server {
        Server::ourselves(&[ECHO])
    }

    /// Process id of the server.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    fn ourselves(what: &[&str]) -> Server {
        let program = std::env::current_exe().expect("this program");
        let mut process = pinned(program).args(what).stdout(Stdio::piped()).spawn().expect("taskset is installed");
        let stdout = process.stdout.take().expect("its output");
        let line = BufReader::new(stdout).lines().next().expect("a line").expect("text");
        Server { process, address: line.parse().expect("an address") }
    }

    /// Redis without persistence.
    pub fn redis() -> Server {
        Server::peer("redis-server", |port| {
            vec!["--port".into(), port, "--bind".into(), "127.0.0.1".into(), "--save".into(), String::new()]
        })
    }

    /// Any server that takes its port as an argument.
    pub fn peer(program: impl AsRef<std::ffi::OsStr>, arguments: impl Fn(String) -> Vec<String>) -> Server {
        let port = TcpListener::bind(any_port()).and_then(|free| free.local_addr()).expect("a free port").port();
        let process = pinned(program)
            .args(arguments(port.to_string()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the peer is installed");
        let server = Server { process, address: SocketAddr::from(([127, 0, 0, 1], port)) };
        for _ in 0..1_000 {
            if TcpStream::connect(server.address).is_ok() {
                return server;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the peer does not listen");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pinned(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program);
    command
}
