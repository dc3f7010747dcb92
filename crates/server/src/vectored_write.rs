//! Vectored writes of small messages.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

/// Most messages with a short body fit into this many bytes.
const FEW: usize = 1_024;

/// Writes the pieces in order. Copying a few bytes into one buffer is cheaper than a vectored system call.
#[inline]
pub(crate) fn poll_write_pieces(
    stream: &mut TcpStream,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let stream = Pin::new(stream);
    if let [only] = pieces {
        return stream.poll_write(cx, only);
    }
    let mut all = SmallVec::<[u8; FEW]>::new();
    for piece in pieces {
        if all.len() + piece.len() > FEW {
            return stream.poll_write_vectored(cx, pieces);
        }
        all.extend_from_slice(piece);
    }
    stream.poll_write(cx, &all)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn pieces_come_whole_and_in_their_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut from = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut to, _) = listener.accept().await.unwrap();
        let long = vec![b'x'; FEW];
        for pieces in [&[&b"alone"[..]][..], &[b"head ", b"", b"body"], &[b"head ", &long], &[&long, b"y"]] {
            let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let expected = pieces.concat();
            let written = poll_fn(|cx| poll_write_pieces(&mut from, cx, &slices)).await.unwrap();
            assert_eq!(written, expected.len(), "there is room for little");
            let mut came = vec![0; written];
            to.read_exact(&mut came).await.unwrap();
            assert_eq!(came, expected);
        }
    }
}
