//! The script that every call runs, as the link sees it: a text with a fingerprint.
//!
//! What the link relies on: `EVALSHA sha n KEYS… now BODIES…` runs the requests whose bodies are given, each on as many of
//! the keys as its body begins with, and answers with an array that has one item for each: a string, or an error that
//! says that this one request did nothing. Without bodies it does nothing, and answers with an empty array.

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tidegate_core::Clock;

use super::resp;

#[derive(Clone)]
pub(super) struct Script {
    text: Arc<str>,
    sha: Arc<str>,
    /// `None` is the server's own.
    clock: Option<Arc<dyn Clock>>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").field(&self.sha).finish()
    }
}

impl Script {
    pub(super) fn new(text: &str, clock: Option<Arc<dyn Clock>>) -> Script {
        Script { text: text.into(), sha: fingerprint(text).into(), clock }
    }

    /// Adds the command that makes the script known to a server.
    pub(super) fn load(&self, out: &mut Vec<u8>) {
        resp::command(out, &[b"SCRIPT", b"LOAD", self.text.as_bytes()]);
    }

    /// Adds a call that does nothing, and that whatever holds up other calls holds up too.
    pub(super) fn probe(&self, out: &mut Vec<u8>) {
        self.begin(out, 0, 0);
        self.now(out);
    }

    /// Begins a call. The keys come next, then the time, then the bodies.
    pub(super) fn begin(&self, out: &mut Vec<u8>, keys: usize, bodies: usize) {
        resp::begin(out, 4 + keys + bodies);
        resp::word(out, b"EVALSHA");
        resp::word(out, self.sha.as_bytes());
        resp::number(out, keys);
    }

    /// Adds the time.
    pub(super) fn now(&self, out: &mut Vec<u8>) {
        match &self.clock {
            None => resp::word(out, b""),
            Some(clock) => resp::word(out, clock.now().as_micros().to_string().as_bytes()),
        }
    }
}

/// The name under which Redis knows a script: its SHA-1 in hexadecimal digits.
fn fingerprint(text: &str) -> String {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    hash.as_ref().iter().fold(String::with_capacity(40), |mut digits, byte| {
        use fmt::Write;
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_the_one_of_the_client_library() {
        for text in ["", "return {}", "-- ü\nreturn 1"] {
            assert_eq!(fingerprint(text), redis::Script::new(text).get_hash());
        }
    }
}
