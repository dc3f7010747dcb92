//! Connections that have changed to another protocol: WebSocket, mostly.

use std::sync::{Mutex, PoisonError};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tidegate_tower::Lasting;
use tokio::io::AsyncWriteExt;
use tokio_util::task::AbortOnDropHandle;

use super::line::Line;
use super::upstream::Lease;

/// The tunnels that requests on one connection have opened. They end with it.
#[derive(Default)]
pub(super) struct Tunnels(Mutex<Vec<AbortOnDropHandle<()>>>);

impl Tunnels {
    /// Passes on whatever either end says, until one of them has ended. `lasting` keeps until then what the request holds.
    pub(super) fn open(&self, client: OnUpgrade, line: Box<Line>, lease: Lease, lasting: Lasting) {
        let tunnel = tokio::spawn(async move {
            if let Err(error) = pass(client, line).await {
                tracing::debug!(%error, "an upgraded connection broke");
            }
            drop((lasting, lease));
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
    Io(#[from] std::io::Error),
}

async fn pass(client: OnUpgrade, line: Box<Line>) -> Result<(), TunnelError> {
    let (mut upstream, ahead) = line.upgraded().await;
    let mut client = TokioIo::new(client.await?);
    client.write_all(&ahead).await?;
    tokio::io::copy_bidirectional(&mut client, &mut upstream).await?;
    Ok(())
}
