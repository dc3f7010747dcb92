//! Upstream of the gateway that answers at once.

use std::net::{Ipv4Addr, SocketAddr};

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::BenchError;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

/// An upstream that closes on drop.
pub(super) struct BenchUpstream {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl BenchUpstream {
    pub(super) async fn open() -> Result<BenchUpstream, BenchError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        Ok(BenchUpstream { address, accepting })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for BenchUpstream {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers requests without a body until the connection ends.
async fn answer(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut request = Vec::with_capacity(1_024);
    while let Ok(1..) = stream.read_buf(&mut request).await {
        if memmem::find(&request, b"\r\n\r\n").is_none() {
            continue;
        }
        request.clear();
        if stream.write_all(ANSWER).await.is_err() {
            break;
        }
    }
}
