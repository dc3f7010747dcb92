//! An admin listener, and a client.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tidegate::admin::{self, AdminState, Settings, Token};
use tidegate::engine::Engine;
use tidegate::listen;
use tidegate::metrics::Metrics;
use tidegate::serve::Listeners;
use tidegate::store::AnyStore;
use tidegate_core::{ManualClock, MemoryStore, Timestamp};
use tidegate_rules::{Limiter, Request, RuleSet};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

pub(crate) const TOKEN: &str = "an-operators-token";

pub(crate) const RULES: &str = "\
rules:
  - { id: login, key: address, limit: 2/day }
  - { id: per-key, key: api_key, limit: 100/day, mode: shadow }
";

/// A server with only an admin listener.
pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) state: AdminState,
    pub(crate) clock: ManualClock,
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    runtime: Option<Runtime>,
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with(|_| {})
    }

    pub(crate) fn of_files(files: &[PathBuf]) -> Server {
        Server::with(|settings| settings.rules = files.to_vec())
    }

    pub(crate) fn with(change: impl FnOnce(&mut Settings)) -> Server {
        Server::over(change, || MemoryStore::new().into())
    }

    pub(crate) fn over(change: impl FnOnce(&mut Settings), store: impl FnOnce() -> AnyStore) -> Server {
        Server::of_rules(RULES, change, store)
    }

    /// A server with these rules.
    pub(crate) fn ruled_by(rules: &str) -> Server {
        Server::of_rules(rules, |_| {}, || MemoryStore::new().into())
    }

    fn of_rules(rules: &str, change: impl FnOnce(&mut Settings), store: impl FnOnce() -> AnyStore) -> Server {
        let runtime = Runtime::new().unwrap();
        let inside = runtime.enter();
        let clock = ManualClock::at(Timestamp::from_secs(1_000));
        let rules = RuleSet::parse("rules.yaml", rules).unwrap().rules;
        let metrics = Metrics::with_clock(Arc::new(clock.clone()));
        let engine = Arc::new(Engine::with_metrics(Limiter::new(rules, store()), metrics));
        let stop = CancellationToken::new();
        let mut settings = Settings::new(Token::new(TOKEN).unwrap());
        settings.clock = Arc::new(clock.clone());
        settings.stop = stop.clone();
        settings.configuration =
            serde_json::json!([{ "name": "admin.token", "value": ["(hidden)"], "from": "default" }]);
        change(&mut settings);
        let state = AdminState::new(Arc::clone(&engine), settings);
        let router = admin::router(state.clone());
        let mut listeners = Listeners::new(Arc::clone(&engine), stop.clone());
        let at = listen::Settings::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let address = listeners
            .open(at, move |stream, peer, _, stop| admin::serve_connection(stream, peer, router.clone(), stop))
            .unwrap()
            .address();
        drop(inside);
        // The listeners close on `stop`, and the runtime ends.
        runtime.spawn(async move { listeners.closed().await });
        Server { engine, state, clock, address, stop, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sends a GET request with the token.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, Some(TOKEN), "")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, Some(TOKEN), body)
    }

    /// Requests metrics in the format that a scraper accepts.
    pub(crate) fn scrape(&self, accept: &str) -> Answer {
        self.send("GET", "/metrics", &[("Authorization", &format!("Bearer {TOKEN}")), ("Accept", accept)], "")
    }

    pub(crate) fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
        let token = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = token.iter().map(|token| ("Authorization", token.as_str())).collect();
        self.send(method, path, &headers, body)
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut request = http::Request::builder().method(method).uri(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = match body {
            "" => agent.run(request.body(()).unwrap()).unwrap(),
            body => {
                let request = request.header("Content-Type", "application/json");
                agent.run(request.body(body.to_owned()).unwrap()).unwrap()
            }
        };
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (kind, challenge) = (header("content-type").unwrap_or_default(), header("www-authenticate"));
        let status = response.status().as_u16();
        Answer { status, kind, challenge, text: response.body_mut().read_to_string().unwrap() }
    }

    /// Decides a request by the engine, `times` times.
    pub(crate) fn check(&self, request: &Request, times: usize) {
        for _ in 0..times {
            self.runtime.as_ref().unwrap().block_on(self.engine.check(request).into_future());
        }
    }

    /// Decides requests from one client's address by the engine.
    pub(crate) fn requests(&self, address: &str, number: usize) {
        let request = Request::new("GET", "/").address(address.parse().unwrap()).api_key("hunter2-hunter2");
        self.check(&request, number);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) challenge: Option<String>,
    pub(crate) text: String,
}

impl Answer {
    /// The JSON of a successful response.
    pub(crate) fn good(&self) -> Value {
        assert_eq!((self.status, self.kind.as_str()), (200, "application/json"), "{}", self.text);
        serde_json::from_str(&self.text).unwrap()
    }

    /// The JSON of a problem.
    pub(crate) fn problem(&self, status: u16) -> Value {
        assert_eq!((self.status, self.kind.as_str()), (status, "application/problem+json"), "{}", self.text);
        let problem: Value = serde_json::from_str(&self.text).unwrap();
        assert_eq!(problem["status"], status);
        problem
    }
}
