//! The script that every call runs: its text and its SHA-1.
//!
//! The link relies on this contract: `EVALSHA sha n KEYS… now BODIES…` runs one request for each body, on the number of
//! keys stated at the beginning of the body. The reply is an array with one item for each request: a string, or an error if
//! this request did nothing. Without bodies the script does nothing, and the reply is an empty array.

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tidegate_core::Clock;

use super::resp;

#[derive(Clone)]
pub(super) struct Script {
    text: Arc<str>,
    sha: Arc<str>,
    /// `None` for the server's clock.
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

    /// Adds the command that loads the script.
    pub(super) fn load(&self, out: &mut Vec<u8>) {
        resp::command(out, &[b"SCRIPT", b"LOAD", self.text.as_bytes()]);
    }

    /// Adds a call that does nothing. Whatever delays other calls also delays it.
    pub(super) fn probe(&self, out: &mut Vec<u8>) {
        self.begin(out, 0, 0);
        self.now(out);
    }

    /// Begins a call. The keys must follow, then the time, then the bodies.
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

/// The name of a script in Redis: its SHA-1 in hexadecimal digits.
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
