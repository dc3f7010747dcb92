//! Detects that a server was replaced by another one, which may lack recent changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of times that a server of a link was replaced by another one. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerGeneration {
    replaced: Arc<AtomicU64>,
}

impl ServerGeneration {
    pub(super) fn get(&self) -> u64 {
        self.replaced.load(Ordering::Acquire)
    }

    /// Records a replacement. Must be called before anything is sent to the new server.
    pub(super) fn raise(&self) {
        self.replaced.fetch_add(1, Ordering::AcqRel);
    }
}

/// The id that a server process draws when it starts. `None` if the server does not return it.
pub(super) type RunId = Option<Box<[u8]>>;

/// The run id in the reply to `INFO server`.
pub(super) fn run_id(info: &[u8]) -> RunId {
    let id = |line| <[u8]>::strip_prefix(line, b"run_id:").map(<[u8]>::trim_ascii);
    info.split(|&byte| byte == b'\n').find_map(id).filter(|id| !id.is_empty()).map(Box::from)
}

/// The server process of the last connection.
#[derive(Debug, Default)]
pub(super) struct LastServer {
    run_id: Option<RunId>,
}

impl LastServer {
    /// Records a new connection. Returns whether it may lead to a different server than the last one.
    pub(super) fn is_another(&mut self, run_id: RunId) -> bool {
        let is_same = run_id.is_some() && self.run_id.as_ref() == Some(&run_id);
        let is_first = self.run_id.replace(run_id).is_none();
        !is_first && !is_same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RunId {
        Some(text.as_bytes().into())
    }

    #[test]
    fn the_run_id_is_one_line_of_many() {
        assert_eq!(run_id(b"# Server\r\nredis_version:7.0.15\r\nrun_id:4f2a\r\ntcp_port:6379\r\n"), id("4f2a"));
        assert_eq!(run_id(b"# Server\r\nrun_id:\r\n"), None);
        assert_eq!(run_id(b"OK"), None);
    }

    #[test]
    fn a_server_that_does_not_tell_who_it_is_may_always_be_another() {
        let mut last = LastServer::default();
        let connections = [
            (id("a"), false),
            (id("a"), false),
            (id("b"), true),
            (id("b"), false),
            (None, true),
            (None, true),
            (id("b"), true),
            (id("b"), false),
        ];
        for (number, (run_id, is_another)) in connections.into_iter().enumerate() {
            assert_eq!(last.is_another(run_id), is_another, "connection {number}");
        }
        assert!(!LastServer::default().is_another(None), "the first server replaces none");
    }
}
