//! Listeners: number of connections, and shutdown.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::engine::Engine;
use tidegate::listen::{PeerAddress, Settings, Stream};
use tidegate::serve::Listeners;
use tidegate_core::MemoryStore;
use tidegate_rules::{Limiter, RuleSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

fn settings() -> Settings {
    let at = Settings::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    Settings { connections_per_address: Some(usize::MAX), ..at }
}

fn listeners(stop: &CancellationToken) -> Listeners {
    let engine = Engine::new(Limiter::new(RuleSet::default(), MemoryStore::new().into()));
    Listeners::new(Arc::new(engine), stop.clone())
}

async fn echo(stream: Stream, _: PeerAddress, _: Arc<Engine>, _: CancellationToken) {
    let (mut read, mut write) = split(stream);
    let _ = copy(&mut read, &mut write).await;
}

async fn says(stream: &mut TcpStream, word: &[u8; 4]) {
    stream.write_all(word).await.unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, word);
}

#[tokio::test]
async fn requests_in_flight_end_before_the_listener_closes() {
    let stop = CancellationToken::new();
    let mut listeners = listeners(&stop);
    let address = listeners.open(settings(), echo).unwrap().address();
    let mut open = TcpStream::connect(address).await.unwrap();
    says(&mut open, b"ping").await;

    stop.cancel();
    let closed = tokio::spawn(async move { listeners.closed().await });
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    says(&mut open, b"pong").await;
    assert!(!closed.is_finished());
    drop(open);
    closed.await.unwrap();
}

#[tokio::test]
async fn connections_are_cut_off_after_the_grace_period() {
    let stop = CancellationToken::new();
    let mut listeners = listeners(&stop);
    let address = listeners.open(Settings { grace: Duration::from_millis(10), ..settings() }, echo).unwrap().address();
    let mut open = TcpStream::connect(address).await.unwrap();
    says(&mut open, b"ping").await;
    stop.cancel();
    listeners.closed().await;
    assert!(matches!(open.read(&mut [0; 1]).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn no_more_connections_are_taken_than_there_is_room_for() {
    let stop = CancellationToken::new();
    let mut listeners = listeners(&stop);
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let serve = move |stream, peer, engine, stop| {
        count.fetch_add(1, Ordering::SeqCst);
        echo(stream, peer, engine, stop)
    };
    let address = listeners.open(Settings { most_connections: Some(2), ..settings() }, serve).unwrap().address();
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        says(&mut stream, b"ping").await;
        open.push(stream);
    }
    // The kernel accepts the third connection, which the server serves once another one ends.
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(b"late").await.unwrap();
    says(&mut open[0], b"ping").await;
    assert_eq!(taken.load(Ordering::SeqCst), 2);
    open.pop();
    let mut back = [0; 4];
    third.read_exact(&mut back).await.unwrap();
    assert_eq!((&back, taken.load(Ordering::SeqCst)), (b"late", 3));
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let stop = CancellationToken::new();
    let mut listeners = listeners(&stop);
    let address = listeners.open(settings(), echo).unwrap().address();
    let error = listeners.open(Settings::at(address), echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen at {address}: ")), "{error}");
}
