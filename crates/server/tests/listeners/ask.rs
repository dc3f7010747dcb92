//! Sends a request to a listener or a tool.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::listeners::protocols::{Middleware, built, grpc, http2};
use crate::listeners::requests::{ROWS, Verdict, Written};
use crate::support::{Server, tidegate};

/// A listener or a tool that decides requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    Gateway,
    GatewayHttp2,
    ForwardAuth,
    Api,
    Envoy,
    EnvoyGrpc,
    Redis,
    Middleware,
    Explain,
    Replay,
    ReplayCombined,
}

impl Asker {
    pub(crate) const LISTENERS: [Asker; 8] = [
        Asker::Gateway,
        Asker::GatewayHttp2,
        Asker::ForwardAuth,
        Asker::Api,
        Asker::Envoy,
        Asker::EnvoyGrpc,
        Asker::Redis,
        Asker::Middleware,
    ];

    /// The verdict as it appears in the response: Envoy's protocol cannot express a refusal.
    pub(crate) fn sees(self, verdict: Verdict) -> Verdict {
        match (self, verdict) {
            (Asker::Envoy | Asker::EnvoyGrpc, Verdict::Refuse) => Verdict::Deny,
            _ => verdict,
        }
    }
}

pub(crate) struct Listeners {
    server: Server,
    middleware: Middleware,
}

impl Listeners {
    /// The middleware, and a server with all listeners, whose upstream answers every request with 204.
    pub(crate) fn start(rules: &str) -> Listeners {
        let upstream = format!("http://{}", upstream());
        let args = ["--rules", "rules.yaml", "--gateway", "127.0.0.1:0", "--upstream", &upstream];
        // Rules, and not path policies, should see the spellings.
        let paths = ["--gateway-paths", "as-is", "--auth-paths", "as-is"];
        let server = Server::start(&[("rules.yaml", rules)], &[&args[..], &paths].concat());
        Listeners { server, middleware: Middleware::new(rules) }
    }

    pub(crate) fn ask(&self, asker: Asker, row: usize, request: &Written) -> Verdict {
        let row = row.to_string();
        let name = format!("{asker:?}");
        let mut headers = vec![("User-Agent", row.as_str()), ("Referer", &name)];
        headers.extend(request.headers);
        match asker {
            Asker::Gateway => self.gateway(request, &headers),
            Asker::GatewayHttp2 => {
                status(http2(self.server.listener("Gateway"), built(request, &headers, Version::HTTP_2, ())))
            }
            Asker::ForwardAuth => self.forward_auth(request, &headers),
            Asker::Api => self.api(request, &headers),
            Asker::Envoy => self.envoy(request, &headers),
            Asker::EnvoyGrpc => grpc(self.server.listener("Envoy"), entries(request, &headers)),
            Asker::Redis => self.redis(request, &headers),
            Asker::Middleware => {
                status(self.middleware.ask(built(request, &headers, Version::HTTP_11, Full::<Bytes>::default())))
            }
            Asker::Explain | Asker::Replay | Asker::ReplayCombined => unreachable!("no listener"),
        }
    }

    fn gateway(&self, request: &Written, headers: &[(&str, &str)]) -> Verdict {
        let Written { method, target, host, .. } = request;
        status(send(self.server.listener("Gateway"), method, target, host, headers))
    }

    fn forward_auth(&self, request: &Written, headers: &[(&str, &str)]) -> Verdict {
        let mut all = vec![
            ("X-Forwarded-Method", request.method),
            ("X-Forwarded-Uri", request.target),
            ("X-Forwarded-Host", request.host),
        ];
        all.extend(headers);
        status(send(self.server.address, "GET", "/v1/auth", "localhost", &all))
    }

    fn api(&self, request: &Written, headers: &[(&str, &str)]) -> Verdict {
        let answer = self.server.check(&logged(request, headers).to_string());
        verdict(answer["allowed"].as_bool().unwrap(), answer["refused_by"].is_string())
    }

    fn envoy(&self, request: &Written, headers: &[(&str, &str)]) -> Verdict {
        let entries = entries(request, headers).into_iter();
        let entries: Vec<Value> = entries.map(|(key, value)| json!({ "key": key, "value": value })).collect();
        let body = json!({ "domain": "tidegate", "descriptors": [{ "entries": entries }] }).to_string();
        let url = format!("http://{}/json", self.server.listener("Envoy"));
        status(self.server.post_to(&url, &[("content-type", "application/json")], &body).status)
    }

    fn redis(&self, request: &Written, headers: &[(&str, &str)]) -> Verdict {
        let client = redis::Client::open(format!("redis://{}/", self.server.listener("Redis"))).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(60)).unwrap();
        let mut command = redis::cmd("TG.CHECK");
        command.arg(&["method", request.method, "path", request.target, "host", request.host]);
        for (name, value) in headers {
            command.arg(&["header", name, value]);
        }
        let answer: std::collections::HashMap<String, redis::Value> = command.query(&mut connection).unwrap();
        let is_allowed: bool = redis::from_redis_value_ref(&answer["allowed"]).unwrap();
        verdict(is_allowed, answer["refused_by"] != redis::Value::Nil)
    }

    /// The verdicts that follow from the keys that `tidegate explain` shows.
    pub(crate) fn explained(&self) -> Vec<Verdict> {
        let rows = ROWS.iter().enumerate();
        rows.map(|(number, row)| {
            if row.unknown_to.contains(&Asker::Explain) {
                return row.verdict;
            }
            let (plain, awkward) = (self.explain(number, &row.plain), self.explain(number, &row.awkward));
            assert_eq!(plain["outcome"], "matched", "row {number}: {plain}");
            match awkward["outcome"].as_str().unwrap() {
                "matched" if awkward["key"] == plain["key"] => Verdict::Deny,
                "repeated" => Verdict::Refuse,
                _ => Verdict::Allow,
            }
        })
        .collect()
    }

    fn explain(&self, row: usize, request: &Written) -> Value {
        let mut command = tidegate(self.server.folder.path());
        command.args(["explain", "rules.yaml", "--format", "json"]);
        command.args(["--request", &format!("{} {}", request.method, request.target), "--host", request.host]);
        for (name, value) in
            [("User-Agent", row.to_string().as_str()), ("Referer", "explain")].iter().chain(request.headers)
        {
            command.args(["--header", &format!("{name}: {value}")]);
        }
        let explained = output(&mut command);
        let id = format!("row{row}");
        explained["rules"].as_array().unwrap().iter().find(|rule| rule["id"] == *id).unwrap().clone()
    }

    /// The verdicts of `tidegate replay` on a log of all cases.
    pub(crate) fn replayed(&self) -> Vec<Verdict> {
        let mut log = String::new();
        for (number, row) in ROWS.iter().enumerate() {
            for (second, request) in [(0, &row.plain), (1, &row.awkward)] {
                let row = number.to_string();
                let mut headers = vec![("User-Agent", row.as_str()), ("Referer", "replay")];
                headers.extend(request.headers);
                let mut line = logged(request, &headers);
                line["time"] = format!("2026-11-17T09:{:02}:{second:02}Z", number % 60).into();
                log.push_str(&format!("{line}\n"));
            }
        }
        self.replay("log.jsonl", &log)
    }

    /// The same, on a log in the combined format, which has neither hosts nor other headers.
    pub(crate) fn replayed_from_combined(&self) -> Vec<Verdict> {
        let mut log = String::new();
        for (number, row) in ROWS.iter().enumerate() {
            for (second, Written { method, target, .. }) in [(0, &row.plain), (1, &row.awkward)] {
                log.push_str(&format!(
                    "203.0.113.7 - - [17/Nov/2026:09:{:02}:{second:02} +0000] \"{method} {target} HTTP/1.1\" 200 2 \
                     \"replay\" \"{number}\"\n",
                    number % 60
                ));
            }
        }
        self.replay("access.log", &log)
    }

    fn replay(&self, file: &str, log: &str) -> Vec<Verdict> {
        std::fs::write(self.server.path(file), log).unwrap();
        let mut command = tidegate(self.server.folder.path());
        let report = output(command.args(["replay", "--rules", "rules.yaml", "--format", "json", file]));
        let outcome = &report["outcome"];
        let has = |list: &Value, is: &dyn Fn(&Value) -> bool| list.as_array().unwrap().iter().any(is);
        (0..ROWS.len())
            .map(|number| {
                let id = format!("row{number}");
                if has(&outcome["refused"], &|refused| refused[0] == *id) {
                    return Verdict::Refuse;
                }
                let is_denied = |limit: &Value| limit["id"] == *id && limit["denied"] == 1;
                if has(&outcome["limits"], &is_denied) { Verdict::Deny } else { Verdict::Allow }
            })
            .collect()
    }
}

/// A request as the entries of a descriptor.
fn entries(request: &Written, headers: &[(&str, &str)]) -> Vec<(String, String)> {
    let stated = [("method", request.method), ("path", request.target), ("host", request.host)];
    let stated = stated.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let named = headers.iter().map(|(name, value)| (format!("header:{name}"), (*value).to_owned()));
    stated.into_iter().chain(named).collect()
}

/// A request as the HTTP API and logs of JSON lines have it.
fn logged(request: &Written, headers: &[(&str, &str)]) -> Value {
    let mut lines = serde_json::Map::new();
    for (name, value) in headers {
        let values = lines.entry(*name).or_insert_with(|| json!([]));
        values.as_array_mut().unwrap().push((*value).into());
    }
    json!({ "method": request.method, "path": request.target, "host": request.host, "headers": lines })
}

fn output(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn verdict(is_allowed: bool, is_refused: bool) -> Verdict {
    match (is_allowed, is_refused) {
        (true, _) => Verdict::Allow,
        (false, true) => Verdict::Refuse,
        (false, false) => Verdict::Deny,
    }
}

fn status(status: u16) -> Verdict {
    match status {
        200 | 204 => Verdict::Allow,
        429 => Verdict::Deny,
        400 => Verdict::Refuse,
        other => panic!("status {other}"),
    }
}

/// Sends a request byte by byte as given. Returns the status.
fn send(to: SocketAddr, method: &str, target: &str, host: &str, headers: &[(&str, &str)]) -> u16 {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
        .write_all(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}Connection: close\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap_or_else(|| panic!("{method} {target}: {answer:?}"));
    status.parse().unwrap()
}

/// An upstream that answers each request with 204 and closes the connection.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (mut head, mut bytes) = (Vec::new(), [0; 4_096]);
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read(&mut bytes) {
                        Ok(read @ 1..) => head.extend_from_slice(&bytes[..read]),
                        _ => return,
                    }
                }
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
            });
        }
    });
    address
}
