//! Pipelines: many commands at once get one write with all replies, in order.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tidegate::resp::{RespServer, Settings};
use tidegate_core::MemoryStore;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio_util::sync::CancellationToken;

use crate::resp::support::{Server, engine};

/// Counts the writes to it.
struct Counted {
    stream: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_pipeline_is_answered_with_one_write() {
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    let writes = Arc::new(AtomicUsize::new(0));
    let service = RespServer::new(Arc::new(engine(MemoryStore::new().into())), Settings::default());
    let stream = Counted { stream, writes: Arc::clone(&writes) };
    let serving = service.serve(stream, "127.0.0.1:1".parse().unwrap(), CancellationToken::new());
    let asking = async {
        for commands in [1, 16, 64, 500] {
            let pipeline =
                "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$4\r\n9999\r\n$1\r\n1\r\n$3\r\n999\r\n".repeat(commands - 1);
            client.write_all((pipeline + "ECHO done\r\n").as_bytes()).await.unwrap();
            let mut replies = Vec::new();
            while !replies.ends_with(b"$4\r\ndone\r\n") {
                client.read_buf(&mut replies).await.unwrap();
            }
            assert_eq!(replies.iter().filter(|byte| **byte == b'*').count(), commands - 1);
            assert_eq!(writes.swap(0, Ordering::Relaxed), 1, "{commands} commands");
        }
        drop(client);
    };
    tokio::join!(serving, asking);
}

#[test]
fn a_pipeline_of_the_rust_client_is_answered_in_order() {
    let server = Server::start();
    let mut client = server.client();
    let mut pipeline = redis::pipe();
    for number in 0..1_000 {
        pipeline.cmd("CL.THROTTLE").arg("k").arg(9).arg(1).arg(86_400);
        pipeline.cmd("ECHO").arg(number);
    }
    let answers: Vec<redis::Value> = pipeline.query(&mut client).unwrap();
    for (number, pair) in (0i64..).zip(answers.chunks(2)) {
        let throttled: Vec<i64> = redis::from_redis_value(pair[0].clone()).unwrap();
        assert_eq!(throttled[..3], [i64::from(number > 9), 10, (9 - number).max(0)]);
        assert_eq!(redis::from_redis_value::<i64>(pair[1].clone()).unwrap(), number);
    }
}

#[test]
fn commands_that_change_the_connection_take_effect_in_order() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.send("TG.RESET RULE api alice\r\nHELLO 3 SETNAME me\r\nCLIENT GETNAME\r\nTG.PEEK RULE api alice\r\nRESET\r\nCLIENT GETNAME\r\nQUIT\r\nPING\r\n");
    raw.expect(":0\r\n%7\r\n");
    let rest = raw.rest();
    assert!(rest.contains("$2\r\nme\r\n%11\r\n$7\r\nallowed\r\n#t\r\n"), "{rest}");
    assert!(rest.ends_with("+RESET\r\n$-1\r\n+OK\r\n"), "{rest}");
}

#[test]
fn requests_before_a_half_close_are_answered() {
    let server = Server::start();
    let mut raw = server.raw();
    raw.send("PING\r\n".repeat(1_000) + "*1\r\n$4\r\nPI");
    raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(raw.rest(), "+PONG\r\n".repeat(1_000));
}

#[test]
fn requests_before_a_stop_are_answered() {
    let server = Server::start();
    let mut raw = server.raw();
    assert_eq!(raw.ask("PING"), "+PONG");
    server.stop();
    assert_eq!(raw.rest(), "");
}

#[test]
fn a_pipeline_larger_than_any_buffer_is_answered_to_a_client_that_reads_last() {
    let server = Server::start();
    let mut raw = server.raw();
    let many = 40_000;
    raw.send("ECHO 0123456789\r\n".repeat(many));
    raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(raw.rest().len(), "$10\r\n0123456789\r\n".len() * many);
}
