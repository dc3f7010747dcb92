//! Connections that have changed to another protocol: WebSocket, mostly.

use std::io;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tidegate_tower::UpgradeHold;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::task::AbortOnDropHandle;

use super::line::Line;
use super::upstream::Lease;

/// How long one end may go on after the other has said all that it has to say.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The tunnels that requests on one connection have opened. They end with it.
#[derive(Default)]
pub(super) struct Tunnels(Mutex<Vec<AbortOnDropHandle<()>>>);

impl Tunnels {
    /// Passes on whatever either end says, until one of them has ended. Until then the request keeps what it holds.
    pub(super) fn open(&self, client: OnUpgrade, line: Box<Line>, lease: Lease, hold: Option<UpgradeHold>) {
        let tunnel = tokio::spawn(async move {
            if let Err(error) = pass(client, line).await {
                tracing::debug!(%error, "an upgraded connection broke");
            }
            drop((hold, lease));
        });
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|tunnel| !tunnel.is_finished());
        open.push(AbortOnDropHandle::new(tunnel));
    }

    /// Waits until all of them have ended.
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
}

async fn pass(client: OnUpgrade, line: Box<Line>) -> Result<(), TunnelError> {
    let Some((upstream, ahead)) = line.upgraded().await else { return Ok(()) };
    let mut client = TokioIo::new(client.await?);
    client.write_all(&ahead).await?;
    let (client_says, client_hears) = tokio::io::split(client);
    let (upstream_says, upstream_hears) = tokio::io::split(upstream);
    let (mut up, mut down) = (pin!(copy(client_says, upstream_hears)), pin!(copy(upstream_says, client_hears)));
    tokio::select! {
        ended = &mut up => {
            ended?;
            let _ = tokio::time::timeout(LAST_WORDS, down).await;
        }
        ended = &mut down => {
            ended?;
            let _ = tokio::time::timeout(LAST_WORDS, up).await;
        }
    }
    Ok(())
}

/// Passes on what one end says, and that it has nothing more to say.
async fn copy(mut says: impl AsyncRead + Unpin, mut hears: impl AsyncWrite + Unpin) -> io::Result<()> {
    tokio::io::copy(&mut says, &mut hears).await?;
    hears.shutdown().await
}
