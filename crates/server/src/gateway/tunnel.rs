//! Tunnels: connections after an upgrade to another protocol, usually WebSocket.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tidegate_tower::UpgradeHold;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::upstream::UpstreamPermit;
use super::upstream_conn::UpstreamConn;

/// The time for which the other direction may continue after one side has finished.
const HALF_CLOSED_TIME: Duration = Duration::from_secs(2);

/// Tunnels opened by requests on one connection. They end with the connection.
#[derive(Default)]
pub(super) struct Tunnels(Mutex<Vec<AbortOnDropHandle<()>>>);

impl Tunnels {
    /// Copies in both directions until one side ends, or both are idle for `idle_time`. The request holds its
    /// permit and its slots until then.
    pub(super) fn open(
        &self,
        client: OnUpgrade,
        conn: Box<UpstreamConn>,
        idle_time: Duration,
        held: (UpstreamPermit, Option<UpgradeHold>),
    ) {
        let tunnel = tokio::spawn(async move {
            if let Err(error) = forward(client, conn, idle_time).await {
                tracing::debug!(%error, "an upgraded connection broke");
            }
            drop(held);
        });
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|tunnel| !tunnel.is_finished());
        open.push(AbortOnDropHandle::new(tunnel));
    }

    /// Waits until all tunnels have ended.
    pub(super) async fn ended(&self) {
        loop {
            let next = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(tunnel) = next else { return };
            let _ = tunnel.await;
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum TunnelError {
    #[error(transparent)]
    Upgrade(#[from] hyper::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("idle for {0:?}")]
    Idle(Duration),
}

async fn forward(client: OnUpgrade, conn: Box<UpstreamConn>, idle_time: Duration) -> Result<(), TunnelError> {
    let Some((upstream, ahead)) = conn.upgraded().await else { return Ok(()) };
    let mut client = TokioIo::new(client.await?);
    client.write_all(&ahead).await?;
    let (client_reader, client_writer) = tokio::io::split(client);
    let (upstream_reader, upstream_writer) = tokio::io::split(upstream);
    let activity = Activity::new();
    let mut up = pin!(copy(WatchedReader { reader: client_reader, activity: &activity }, upstream_writer));
    let mut down = pin!(copy(WatchedReader { reader: upstream_reader, activity: &activity }, client_writer));
    tokio::select! {
        () = activity.idle(idle_time) => return Err(TunnelError::Idle(idle_time)),
        ended = &mut up => {
            ended?;
            let _ = tokio::time::timeout(HALF_CLOSED_TIME, down).await;
        }
        ended = &mut down => {
            ended?;
            let _ = tokio::time::timeout(HALF_CLOSED_TIME, up).await;
        }
    }
    Ok(())
}

/// Copies from one side to the other, including the end of the stream.
async fn copy(mut reader: impl AsyncRead + Unpin, mut writer: impl AsyncWrite + Unpin) -> io::Result<()> {
    tokio::io::copy(&mut reader, &mut writer).await?;
    writer.shutdown().await
}

/// Time of the last activity.
struct Activity {
    begun: Instant,
    /// Milliseconds since `begun`.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Activity {
        Activity { begun: Instant::now(), last: AtomicU64::new(0) }
    }

    fn note(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Returns once there has been no activity for `time`.
    async fn idle(&self, time: Duration) {
        loop {
            let silent = self.begun.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)));
            match time.checked_sub(silent) {
                Some(left) if !left.is_zero() => sleep(left).await,
                _ => return,
            }
        }
    }
}

/// One side of a tunnel, whose reads count as activity.
struct WatchedReader<'a, R> {
    reader: R,
    activity: &'a Activity,
}

impl<R: AsyncRead + Unpin> AsyncRead for WatchedReader<'_, R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.reader).poll_read(cx, buf))?;
        self.activity.note();
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_is_idle_when_nothing_has_passed_for_long_enough() {
        let (begun, activity) = (Instant::now(), Activity::new());
        let talk = async {
            for _ in 0..3 {
                sleep(Duration::from_secs(7)).await;
                activity.note();
            }
        };
        tokio::join!(talk, activity.idle(Duration::from_secs(10)));
        assert_eq!(begun.elapsed(), Duration::from_secs(31));
    }
}
