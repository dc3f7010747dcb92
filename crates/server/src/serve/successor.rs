//! Successor: the program, started again to take over from this process.

use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Starts successors, one at a time.
#[derive(Debug, Default)]
pub(super) struct SuccessorStarter {
    is_running: Arc<AtomicBool>,
}

impl SuccessorStarter {
    /// Starts the program with the arguments of this process. If it does not take over, this process continues. Both are logged.
    ///
    /// Process 1, such as the server of a container, starts none: all processes end with it.
    pub(super) fn start(&self) {
        if std::process::id() == 1 {
            tracing::error!("process 1 cannot be replaced: no successor is started");
            return;
        }
        if self.is_running.swap(true, Ordering::SeqCst) {
            tracing::warn!("a successor is still running: no other is started");
            return;
        }
        let is_running = Arc::clone(&self.is_running);
        let mut child = match spawn() {
            Ok(child) => child,
            Err(error) => {
                is_running.store(false, Ordering::SeqCst);
                tracing::error!(%error, "a successor cannot be started");
                return;
            }
        };
        tracing::info!(pid = child.id(), "a successor was started");
        // Reaps the child. The thread ends with this process if the successor outlives it.
        std::thread::spawn(move || {
            let ended = child.wait();
            is_running.store(false, Ordering::SeqCst);
            match ended {
                Ok(status) => tracing::error!(%status, "the successor has ended"),
                Err(error) => tracing::error!(%error, "the successor cannot be watched"),
            }
        });
    }
}

fn spawn() -> io::Result<std::process::Child> {
    let mut arguments = std::env::args_os();
    // By name instead of `current_exe`: an upgrade has replaced the file that this process runs.
    let program = arguments.next().ok_or(io::ErrorKind::NotFound)?;
    Command::new(program).args(arguments).stdin(Stdio::null()).spawn()
}
