//! What a process is told from outside.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a process may be told from outside.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
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

    pub(super) async fn next(&mut self) -> Told {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
            _ = self.hangup.recv() => Told::Reload,
        }
    }

    /// Waits until the process is told to stop.
    pub async fn stop(&mut self) {
        while self.next().await != Told::Stop {}
    }
}
