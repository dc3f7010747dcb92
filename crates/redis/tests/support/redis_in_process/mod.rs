//! A Redis server in the process of a test, and a simulated network in front of it.
//!
//! [`ScriptedServer`] runs scripts in the Lua version of Redis, on data in memory, with a clock passed by the test. It
//! supports the commands used by Tidegate's script and link. `tests/store/differential.rs` compares it with a real server.

mod dataset;
mod interpreter;
mod network;
mod protocol;
mod struct_library;

pub(crate) use self::dataset::Dataset;
#[allow(unused_imports, reason = "only simulations disturb the network")]
pub(crate) use self::network::{PathState, SimulatedNetwork};

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use mlua::Function;
use tidegate_core::Clock;

use self::interpreter::Interpreter;
use self::protocol::{ServerReply, take_command};

/// A server that answers immediately.
pub(crate) struct ScriptedServer {
    dataset: Rc<RefCell<Dataset>>,
    interpreter: Interpreter,
    /// The loaded scripts by their SHA-1.
    scripts: HashMap<String, Function>,
    clock: Arc<dyn Clock>,
    run_id: u64,
    /// A part of the script's text, and what is run instead.
    change: Option<(&'static str, &'static str)>,
    /// Number of script calls with at least one request.
    calls: u64,
}

impl ScriptedServer {
    /// An empty server. Its clock sets the time of scripts and expires keys.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> ScriptedServer {
        let dataset = Rc::new(RefCell::new(Dataset::default()));
        let interpreter = Interpreter::new(&dataset);
        ScriptedServer { dataset, interpreter, scripts: HashMap::new(), clock, run_id: 1, change: None, calls: 0 }
    }

    /// Answers all complete commands in `input`, and removes them.
    pub(crate) fn answer(&mut self, input: &mut Vec<u8>) -> Vec<u8> {
        let mut output = Vec::new();
        while let Some(command) = take_command(input) {
            self.run(&command).write(&mut output);
        }
        output
    }

    fn run(&mut self, words: &[Vec<u8>]) -> ServerReply {
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        match (name.as_str(), &words[1..]) {
            ("PING", []) => ServerReply::Status("PONG"),
            ("CLIENT", _) => ServerReply::Status("OK"),
            ("INFO", _) => ServerReply::Bulk(format!("# Server\r\nrun_id:{:040x}\r\n", self.run_id).into_bytes()),
            ("SCRIPT", [_, text]) => self.load(text),
            ("EVALSHA", [sha, count, rest @ ..]) => self.call(sha, count, rest),
            _ => ServerReply::Error(format!("ERR unknown command '{name}'")),
        }
    }

    fn load(&mut self, text: &[u8]) -> ServerReply {
        let text = String::from_utf8_lossy(text);
        let sha = redis::Script::new(&text).get_hash().to_owned();
        let text = match self.change {
            Some((from, to)) if text.contains(from) => text.replace(from, to),
            Some((from, _)) => panic!("the script does not contain {from:?}"),
            None => text.into_owned(),
        };
        self.scripts.insert(sha.clone(), self.interpreter.compile(&text));
        ServerReply::Bulk(sha.into_bytes())
    }

    fn call(&mut self, sha: &[u8], count: &[u8], rest: &[Vec<u8>]) -> ServerReply {
        let Some(script) = self.scripts.get(&*String::from_utf8_lossy(sha)) else {
            return ServerReply::Error("NOSCRIPT No matching script. Please use EVAL.".to_owned());
        };
        let count: usize = String::from_utf8_lossy(count).parse().unwrap();
        let (keys, arguments) = rest.split_at(count);
        self.calls += u64::from(count > 0);
        // Time does not advance while a script runs.
        self.dataset.borrow_mut().set_time(self.clock.now().as_micros());
        self.interpreter.call(script, keys, arguments)
    }
}

#[allow(dead_code, reason = "only simulations disturb the server")]
impl ScriptedServer {
    /// A copy of all data, for a replica.
    pub(crate) fn copy(&self) -> Dataset {
        self.dataset.borrow().clone()
    }

    /// Replaces the server by one with this data and no scripts.
    pub(crate) fn replace(&mut self, data: Dataset) {
        *self.dataset.borrow_mut() = data;
        self.scripts.clear();
        self.run_id += 1;
    }

    /// Changes the text of scripts that are loaded from now on, for tests that a disabled safety rule is detected.
    pub(crate) fn change_scripts(&mut self, from: &'static str, to: &'static str) {
        self.change = Some((from, to));
    }

    /// Removes all scripts.
    pub(crate) fn flush_scripts(&mut self) {
        self.scripts.clear();
    }

    /// The number of script calls with at least one request.
    pub(crate) const fn calls(&self) -> u64 {
        self.calls
    }
}
