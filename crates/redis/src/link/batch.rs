//! Batches: calls that are sent together.
//!
//! For a standalone server, a batch is one call of the script for any number of requests, which costs the server far less
//! than one call per request. In a cluster, the keys of one call must be in one slot, so a batch is one call per slot, all
//! sent at once.

use super::call::Call;
use super::resp;
use super::script::Script;

#[derive(Clone, Debug)]
pub(super) struct Composer {
    pub(super) script: Script,
    /// Whether calls of different slots must be sent separately.
    pub(super) by_slot: bool,
}

/// A command of a batch. Each command gets one reply.
#[derive(Debug)]
pub(super) enum BatchPart {
    /// Loads the script.
    Load,
    /// Announces that the next call is for a migrating slot.
    Asking,
    /// Runs these calls. The reply has one item for each.
    Calls(Vec<Call>),
}

impl Composer {
    /// Encodes the calls as commands. Passes each command and its end in `out` to `part`.
    pub(super) fn compose(&self, mut calls: Vec<Call>, out: &mut Vec<u8>, mut part: impl FnMut(BatchPart, usize)) {
        if !self.by_slot {
            self.call(&calls, out);
            part(BatchPart::Calls(calls), out.len());
            return;
        }
        calls.sort_by_key(|call| call.route);
        while let Some(first) = calls.first() {
            let route = first.route;
            let fits = |call: &Call| call.route == route && !route.alone;
            let together = 1 + calls[1..].iter().take_while(|call| fits(call)).count();
            let later = calls.split_off(together);
            if route.asking {
                resp::command(out, &[b"ASKING"]);
                part(BatchPart::Asking, out.len());
            }
            self.call(&calls, out);
            part(BatchPart::Calls(calls), out.len());
            calls = later;
        }
    }

    fn call(&self, calls: &[Call], out: &mut Vec<u8>) {
        let keys = calls.iter().map(|call| call.frame.keys.len()).sum();
        self.script.begin(out, keys, calls.len());
        for key in calls.iter().flat_map(|call| &call.frame.keys) {
            resp::word(out, key);
        }
        self.script.now(out);
        for call in calls {
            resp::word(out, &call.frame.body);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_core::{ManualClock, Timestamp};
    use tokio::time::Instant;

    use super::super::call::{CallDeadline, SlotRoute};
    use super::super::resp::{Bound, RespReply};
    use super::*;
    use crate::frame::Frame;

    fn call(slot: u16, moving: bool, key: &str) -> Call {
        let frame = Frame { keys: vec![key.into()], body: format!("body of {key}").into() };
        let deadline = CallDeadline::after(Duration::from_secs(1), Instant::now());
        Call::new(frame, SlotRoute { slot, asking: moving, alone: moving }, deadline).0
    }

    /// The commands as lists of words, and the number of calls in each.
    fn composed(by_slot: bool, calls: Vec<Call>) -> Vec<(String, usize)> {
        let script = Script::new("return {}", Some(Arc::new(ManualClock::at(Timestamp::from_micros(7)))));
        let (mut out, mut parts) = (Vec::new(), Vec::new());
        Composer { script: script.clone(), by_slot }.compose(calls, &mut out, |part, end| parts.push((part, end)));
        let mut begin = 0;
        let text = |(part, end): (BatchPart, usize)| {
            let (command, taken) = RespReply::read(&out[begin..], Bound::SMALL).unwrap().unwrap();
            begin += taken;
            assert_eq!(begin, end, "a part ends where its command does");
            let words = command.items().unwrap().iter().filter_map(RespReply::text);
            let words: Vec<_> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            let count = if let BatchPart::Calls(calls) = part { calls.len() } else { 0 };
            (words.join(" ").replace(redis::Script::new("return {}").get_hash(), "sha"), count)
        };
        parts.into_iter().map(text).collect()
    }

    #[test]
    fn a_standalone_server_gets_one_call_for_all() {
        let calls = vec![call(9, false, "a"), call(3, false, "b")];
        assert_eq!(composed(false, calls), [("EVALSHA sha 2 a b 7 body of a body of b".to_owned(), 2)]);
    }

    #[test]
    fn a_cluster_gets_one_call_for_each_slot() {
        let calls =
            vec![call(9, false, "a"), call(3, false, "b"), call(9, true, "c"), call(9, false, "d"), call(9, true, "e")];
        let expected = [
            ("EVALSHA sha 1 b 7 body of b", 1),
            ("EVALSHA sha 2 a d 7 body of a body of d", 2),
            ("ASKING", 0),
            ("EVALSHA sha 1 c 7 body of c", 1),
            ("ASKING", 0),
            ("EVALSHA sha 1 e 7 body of e", 1),
        ];
        assert_eq!(composed(true, calls), expected.map(|(text, calls)| (text.to_owned(), calls)));
    }
}
