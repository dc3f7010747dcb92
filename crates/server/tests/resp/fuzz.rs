//! Fuzz target: any input is handled without a panic, in bounded time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use tidegate::resp::{RequestBounds, RespServer, Settings};
use tidegate_core::MemoryStore;
use tidegate_test_support::fuzz::{target, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::resp::support::engine;

const WORDS: [&str; 30] = [
    "*1\r\n",
    "*2\r\n",
    "*5\r\n",
    "$4\r\nPING\r\n",
    "$11\r\nCL.THROTTLE\r\n",
    "$1\r\nk\r\n",
    "$1\r\n1\r\n",
    "$2\r\n30\r\n",
    "$1\r\n0\r\n",
    "$2\r\n-1\r\n",
    "PING\r\n",
    "CL.THROTTLE k 1 1 60\r\n",
    "TG.CHECK path /api/x user alice\r\n",
    "TG.CHECK",
    " path",
    " /chat",
    " cost",
    " 7",
    " user",
    " alice",
    "\r\n",
    "TG.PEEK RULE api alice\r\n",
    "TG.RESET RULE api alice\r\n",
    "TG.SETTLE AQEA 1\r\n",
    "HELLO 3\r\n",
    "RESET\r\n",
    "COMMAND DOCS\r\n",
    "CLIENT INFO\r\n",
    "INFO\r\n",
    "\"\\x00\" ",
];

struct Stage {
    runtime: Runtime,
    service: RespServer,
}

impl Stage {
    fn new() -> Stage {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let settings =
            Settings { bounds: RequestBounds { words: 16, bytes: 256 }, most_unsent: 4_096, ..Settings::default() };
        let service =
            runtime.block_on(async { RespServer::new(Arc::new(engine(MemoryStore::new().into())), settings) });
        Stage { runtime, service }
    }

    /// Sends bytes, and reads all replies.
    fn send(&self, bytes: &[u8]) {
        let (client, stream) = tokio::io::duplex(1_024);
        let serving = self.service.serve(stream, "127.0.0.1:1".parse().unwrap(), CancellationToken::new());
        let asking = async {
            let (mut reads, mut writes) = tokio::io::split(client);
            let mut replies = Vec::new();
            let write = async {
                // The connection may be closed before everything is sent.
                let _ = writes.write_all(bytes).await;
                let _ = writes.shutdown().await;
            };
            let (_, read) = tokio::join!(write, reads.read_to_end(&mut replies));
            assert!(read.is_ok());
            assert!(replies.is_empty() || replies.ends_with(b"\r\n"), "{}", replies.escape_ascii());
        };
        self.runtime.block_on(async { tokio::join!(serving, asking) });
    }
}

#[test]
fn any_bytes_are_handled() {
    let stage = AssertUnwindSafe(Stage::new());
    let send = |bytes: &[u8]| (&stage as &AssertUnwindSafe<Stage>).send(bytes);
    target!("resp-connection").for_each(|bytes: &[u8]| send(&text(bytes, &WORDS)));
}
