//! Real nodes in front of one Redis, each with a client that asks it all the time.
#![allow(unreachable_pub, reason = "shared by the tests of leases")]
#![expect(clippy::disallowed_methods, reason = "real programs, in real time")]

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_test_support::redis::Admission;

use crate::support::{Server, until};

const TOKEN: &str = "an-operators-token";
/// The time between two requests of a client: all nodes of a fleet together want several times as much as the limit allows.
pub const TOO_MUCH: Duration = Duration::from_millis(4);
/// The same for demand that is worth a lease, and far below the limit.
pub const LITTLE: Duration = Duration::from_millis(10);
/// A node returns tokens that nobody has used for this time.
const IDLE: Duration = Duration::from_millis(250);

/// The requests of a node's client, and their outcomes.
#[derive(Default)]
struct Load {
    /// The microseconds between two requests. None are made if it is zero.
    pause: AtomicU64,
    is_done: AtomicBool,
    admitted: AtomicU64,
    denied: AtomicU64,
    /// Requests without an answer, which may have been admitted.
    unanswered: AtomicU64,
}

/// A node, and a client that asks it all the time.
pub struct Node {
    pub server: Server,
    load: Arc<Load>,
    client: Option<JoinHandle<Vec<Admission>>>,
}

impl Node {
    /// Starts a node whose client makes no requests yet.
    pub fn start(url: &str, rules: &str, more: &[&str]) -> Node {
        let args = [&["--rules", "rules.yaml", "--redis", url, "--log-level", "error"], more].concat();
        let server = Server::start_with(&[("rules.yaml", rules)], &args, &[("TIDEGATE_ADMIN_TOKEN", TOKEN)]);
        let (load, client) = (Arc::<Load>::default(), Client::of(&server));
        let of_client = Arc::clone(&load);
        let client = Some(std::thread::spawn(move || client.ask_all_the_time(&of_client)));
        Node { server, load, client }
    }

    /// The client makes a request after each such pause from now on, or none if it is zero.
    pub fn wants(&self, pause: Duration) {
        self.load.pause.store(u64::try_from(pause.as_micros()).unwrap(), Ordering::Relaxed);
    }

    /// A number of the tier in the live data of the node, if it answers.
    pub fn of_tier(&self, name: &str) -> Option<u64> {
        let url = format!("http://{}/v1/view", self.server.listener("Admin"));
        let mut view = agent().get(url).header("Authorization", format!("Bearer {TOKEN}")).call().ok()?;
        let view: Value = serde_json::from_str(&view.body_mut().read_to_string().ok()?).ok()?;
        view["store"]["tier"][name].as_u64()
    }

    /// Requests that leases decided, if the node answers.
    pub fn by_lease(&self) -> Option<u64> {
        self.of_tier("by_lease")
    }

    pub fn admitted(&self) -> u64 {
        self.load.admitted.load(Ordering::Relaxed)
    }

    pub fn denied(&self) -> u64 {
        self.load.denied.load(Ordering::Relaxed)
    }

    pub fn unanswered(&self) -> u64 {
        self.load.unanswered.load(Ordering::Relaxed)
    }

    /// The remainder of the limit in Redis and at this node.
    pub fn remaining(&self) -> u64 {
        let url = format!("http://{}/v1/keys/peek", self.server.listener("Admin"));
        let headers = [("content-type", "application/json"), ("Authorization", &format!("Bearer {TOKEN}"))];
        // A busy machine may keep Redis from answering in time.
        until("an answer of Redis", || {
            let peeked = self.server.post_to(&url, &headers, r#"{"rule":"all"}"#).good();
            let limit = &peeked["limits"][0];
            (limit["by_store"] == true).then(|| limit["remaining"].as_u64().unwrap())
        })
    }

    /// Has the node hold tokens of the limit, and its client make no more requests. Returns their number, while there is time to end
    /// or suspend the node before it returns them.
    pub fn holds_tokens(&self) -> u64 {
        until("tokens that a node has just used", || {
            self.wants(LITTLE);
            until("tokens", || self.of_tier("cost_held").filter(|held| *held >= 10));
            self.wants(Duration::ZERO);
            let last_request = Instant::now();
            let held = self.of_tier("cost_held")?;
            (held >= 5 && last_request.elapsed() < IDLE / 3).then_some(held)
        })
    }

    /// Ends the client, and returns the admissions.
    pub fn end(&mut self) -> Vec<Admission> {
        self.load.is_done.store(true, Ordering::Relaxed);
        self.client.take().map_or_else(Vec::new, |client| client.join().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.load.is_done.store(true, Ordering::Relaxed);
    }
}

/// A client of one node.
pub struct Client {
    url: String,
    agent: ureq::Agent,
}

impl Client {
    pub fn of(server: &Server) -> Client {
        Client { url: server.url("/v1/check"), agent: agent() }
    }

    /// Whether a request was admitted. `None` without an answer: it may have been, unless the connection was refused.
    pub fn ask(&self) -> Option<bool> {
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        let text = match request.send("{}") {
            Ok(mut response) => response.body_mut().read_to_string().unwrap_or_default(),
            Err(ureq::Error::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => return Some(false),
            Err(_) => return None,
        };
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        answer["allowed"].as_bool()
    }

    /// Asks until the load is done. Requests that may have been admitted do not count.
    fn ask_all_the_time(&self, load: &Load) -> Vec<Admission> {
        let mut admissions = Vec::new();
        while !load.is_done.load(Ordering::Relaxed) {
            let pause = Duration::from_micros(load.pause.load(Ordering::Relaxed));
            if !pause.is_zero() {
                let asked = Instant::now();
                match self.ask() {
                    Some(true) => {
                        admissions.push(Admission { asked, answered: Instant::now() });
                        load.admitted.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(false) => {
                        load.denied.fetch_add(1, Ordering::Relaxed);
                    }
                    None => {
                        load.unanswered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            std::thread::sleep(pause.max(Duration::from_millis(1)));
        }
        admissions
    }
}

pub fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(1))).build().into()
}
