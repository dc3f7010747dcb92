//! Signals of the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that the process handles.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalAction {
    Stop,
    Reload,
}

impl Signals {
    /// Receives signals from now on: they no longer end the process by themselves.
    ///
    /// # Errors
    /// If the system does not let it.
    pub fn receive() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(super) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hangup.recv() => SignalAction::Reload,
        }
    }

    /// Waits for a signal to stop.
    pub async fn stop(&mut self) {
        while self.next().await != SignalAction::Stop {}
    }
}
