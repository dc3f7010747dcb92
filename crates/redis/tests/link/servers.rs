//! Launching of servers: they start, fail on demand, and stop.

use std::time::Duration;

use tidegate_test_support::redis::{Break, Cluster, Flavour, Proxy, Sentinels, Server, TlsServer};
use tidegate_test_support::{eventually, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

#[test]
fn a_server_starts_again_on_its_port_and_has_forgotten_everything() {
    for flavour in Flavour::present() {
        let mut server = Server::start_as(flavour, "maxclients 100\n");
        assert_eq!(server.run::<Vec<String>>(&["CONFIG", "GET", "maxclients"])[1], "100");
        server.run::<()>(&["SET", "a", "1"]);
        server.restart();
        assert_eq!(server.run::<Option<String>>(&["GET", "a"]), None);
    }
}

#[test]
fn a_server_with_tls_starts() {
    let server = TlsServer::start();
    assert!(server.url().starts_with("rediss://"));
    assert_eq!(server.server.run::<String>(&["PING"]), "PONG");
}

#[test]
fn sentinels_replace_a_primary_that_was_killed() {
    let began = Instant::now();
    let mut set = Sentinels::start();
    println!("sentinels that agree: {:?}", began.elapsed());
    let (first, killed) = (set.primary(), Instant::now());
    set.servers[first].kill();
    until("another primary", || (set.primary() != first).then_some(()));
    println!("another primary: {:?}", killed.elapsed());
}

#[test]
fn a_cluster_becomes_whole() {
    let began = Instant::now();
    let cluster = Cluster::start();
    let took = began.elapsed();
    println!("a cluster that is whole: {took:?}");
    assert_eq!(cluster.nodes.len(), 6);
}

async fn ping(connection: &mut TcpStream) -> Option<Vec<u8>> {
    connection.write_all(b"PING\r\n").await.ok()?;
    let mut reply = vec![0; 64];
    let count = connection.read(&mut reply).await.ok().filter(|&count| count > 0)?;
    reply.truncate(count);
    Some(reply)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_breaks_what_it_is_told_to_break() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let address = format!("127.0.0.1:{}", proxy.port());
    let connect = async || TcpStream::connect(&address).await;
    let pings = || {
        let info: String = server.run(&["INFO", "commandstats"]);
        let line = info.lines().find(|line| line.starts_with("cmdstat_ping")).map(str::to_owned);
        line.and_then(|line| line.split(['=', ',']).nth(1)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let mut connection = connect().await.unwrap();
    assert_eq!(ping(&mut connection).await.as_deref(), Some(&b"+PONG\r\n"[..]));

    // The result for the client, and whether the server received the request.
    let cases = [
        (Break::BeforeRequest, None, 0),
        (Break::MidRequest, None, 0),
        (Break::BeforeReply, None, 1),
        (Break::MidReply, Some(&b"+PO"[..]), 1),
    ];
    for (breaks, gets, sees) in cases {
        let before = pings();
        let mut connection = connect().await.unwrap();
        proxy.once(breaks);
        assert_eq!(ping(&mut connection).await.as_deref(), gets, "{breaks:?}");
        assert!(proxy.is_idle());
        assert_eq!(ping(&mut connection).await, None, "{breaks:?}: it has hung up");
        assert_eq!(pings() - before, sees, "{breaks:?}");
    }

    proxy.set(Break::Delay(Duration::from_millis(50)));
    let began = Instant::now();
    assert!(ping(&mut connection).await.is_some());
    assert!(began.elapsed() >= Duration::from_millis(50));

    proxy.set(Break::BlackHole);
    assert!(timeout(Duration::from_millis(50), ping(&mut connection)).await.is_err());
    proxy.set(Break::Nothing);
    let mut reply = [0; 7];
    connection.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"+PONG\r\n", "what was held back comes through");

    proxy.set(Break::Refuse);
    eventually("connections that are hung up", async || ping(&mut connection).await.is_none().then_some(())).await;
    eventually("connections that are refused", async || connect().await.is_err().then_some(())).await;
    proxy.set(Break::Nothing);
    eventually("connections that are taken", async || ping(&mut connect().await.ok()?).await).await;
}
