//! Signals of the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that the process handles.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user2: Signal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalAction {
    Stop,
    Reload,
    /// Another process is to take over.
    Succeed,
}

impl Signals {
    /// Handles signals from now on: they no longer end the process by themselves.
    ///
    /// # Errors
    /// If the system rejects the handlers.
    pub fn receive() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    pub(super) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalAction::Stop,
            _ = self.interrupt.recv() => SignalAction::Stop,
            _ = self.hangup.recv() => SignalAction::Reload,
            _ = self.user2.recv() => SignalAction::Succeed,
        }
    }

    /// Waits for SIGTERM or SIGINT.
    pub async fn stop(&mut self) {
        while self.next().await != SignalAction::Stop {}
    }
}
