//! A soak test: real servers under mixed load while their store, their upstreams and their clients fail, for any length
//! of time.
//!
//! Two servers share a Redis behind a sentinel and serve requests on four listeners, including a gateway; a third one
//! is a gateway with its state in memory. Meanwhile, the Redis is paused, killed and failed over, upstreams stop and
//! restart, listeners are flooded, and rules are reloaded every second.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::clients::{Http, Resp, flood, flood_http2, leave_in_the_middle};
use super::processes::{Redis, Server, Upstream, until};

/// The capacity of each key under the limits that are checked against a bound.
const CAPACITY: u64 = 5;
const PER_SECOND: u64 = 5;
const KEYS: u64 = 4;
const SLOTS: u64 = 1_000;
const HELD: u64 = 20;
/// Deadline of decisions by the store.
pub(crate) const DEADLINE: Duration = Duration::from_millis(20);

/// Rules of the two servers that share a store. `turn` changes the text each time.
fn shared_rules(turn: u64) -> String {
    format!(
        "rules:
  - {{ id: deny, match: {{ path: /deny }}, key: user, limit: {PER_SECOND}/s burst {CAPACITY}, on_store_failure: deny }}
  - {{ id: local, match: {{ path: /local }}, key: user, limit: {PER_SECOND}/s burst {CAPACITY}, on_store_failure: {{ local_percent: 50 }} }}
  - {{ id: allow, match: {{ path: /allow }}, key: user, limit: {PER_SECOND}/s burst {CAPACITY} }}
  - {{ id: through, match: {{ path: /through }}, key: address, limit: {PER_SECOND}/s burst {CAPACITY}, on_store_failure: deny }}
  - {{ id: held, match: {{ path: /held }}, limit: concurrent {HELD} ttl 5s, on_store_failure: deny }}
  - {{ id: turn, match: {{ path: /turn }}, limit: {}/s }}
",
        turn + 1
    )
}

fn gateway_rules(turn: u64) -> String {
    format!(
        "rules:
  - {{ id: slots, limit: concurrent {SLOTS} ttl 1min }}
  - {{ id: address, match: {{ path: / }}, key: address, limit: {PER_SECOND}/s burst {CAPACITY} }}
  - {{ id: turn, match: {{ path: /turn }}, limit: {}/s }}
",
        turn + 1
    )
}

/// The findings of a soak test.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) seconds: f64,
    pub(crate) questions: u64,
    pub(crate) admitted: u64,
    /// Requests without a response, or with an invalid one.
    pub(crate) unanswered: Vec<String>,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// The smallest number of reloads of any server.
    pub(crate) reloads: u64,
    /// The slowest decision, and the number of decisions later than their deadline plus the allowance.
    pub(crate) slowest: Duration,
    pub(crate) late: u64,
    /// By limit and key: the number of admissions, and their bound.
    pub(crate) bounds: Vec<(String, u64, u64)>,
    /// By server: bytes after a fifth of the time, bytes at the end, and the growth in bytes per hour in between.
    pub(crate) memory: Vec<(&'static str, u64, u64, f64)>,
    /// By limit: free slots at the end, and all slots.
    pub(crate) slots: Vec<(&'static str, u64, u64)>,
    /// Warnings and errors without a matching fault, and panics.
    pub(crate) unexpected: Vec<String>,
}

impl Findings {
    /// The highest fraction of its bound that any key has used.
    pub(crate) fn fullest(&self) -> f64 {
        self.bounds.iter().map(|(_, admitted, most)| *admitted as f64 / *most as f64).fold(0.0, f64::max)
    }

    /// The errors. None of them depends on the load of the machine.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let over = self.bounds.iter().filter(|(_, admitted, most)| admitted > most);
        let leaked = self.slots.iter().filter(|(_, free, all)| free != all);
        let mut wrong: Vec<String> = over.map(|(key, admitted, most)| format!("{key}: {admitted} of {most}")).collect();
        wrong.extend(leaked.map(|(limit, free, all)| format!("{limit}: {free} of {all} slots are free")));
        wrong.extend(self.unanswered.iter().cloned());
        wrong.extend(self.unexpected.iter().cloned());
        wrong
    }
}

/// Observations of the clients.
struct Tally {
    stop: AtomicBool,
    allowance: Duration,
    questions: AtomicU64,
    admitted: Mutex<BTreeMap<String, u64>>,
    slowest_micros: AtomicU64,
    late: AtomicU64,
    unanswered: Mutex<Vec<String>>,
}

impl Tally {
    /// Repeats `ask` until the end. `ask` returns the key of an admission, if any.
    fn repeat(
        self: &Arc<Self>,
        every: Duration,
        mut ask: impl FnMut(u64) -> Result<Option<String>, String> + Send + 'static,
    ) -> JoinHandle<()> {
        let tally = Arc::clone(self);
        std::thread::spawn(move || {
            for number in 0.. {
                if tally.stop.load(Ordering::Relaxed) {
                    return;
                }
                tally.questions.fetch_add(1, Ordering::Relaxed);
                match ask(number) {
                    Ok(Some(key)) => *tally.admitted.lock().unwrap().entry(key).or_default() += 1,
                    Ok(None) => {}
                    Err(problem) => tally.unanswered.lock().unwrap().push(problem),
                }
                std::thread::sleep(every);
            }
        })
    }

    fn time<T>(&self, ask: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = ask();
        let took = begun.elapsed();
        self.slowest_micros.fetch_max(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        if took > DEADLINE + self.allowance {
            self.late.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// Runs `program` for `lasts`, with a fault every `between`. Decisions later than their deadline plus `allowance` count
/// as late.
pub(crate) fn run(program: &Path, lasts: Duration, between: Duration, allowance: Duration) -> Findings {
    let folder = Folder::new();
    let rules = [folder.0.join("shared.yaml"), folder.0.join("gateway.yaml")];
    let write_rules = |turn: u64| {
        for (path, text) in rules.iter().zip([shared_rules(turn), gateway_rules(turn)]) {
            // Atomically, as an editor saves: a partial file would be reported as invalid.
            fs::write(path.with_extension("new"), text).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }
    };
    write_rules(0);
    let mut redis = Redis::start();
    let mut upstreams = [Upstream::start(&folder.0, "one"), Upstream::start(&folder.0, "two")];
    let sentinel = redis.sentinel_url();
    let shared = ["--rules", "shared.yaml", "--store-kind", "sentinel", "--store-redis-urls", &sentinel];
    let more = ["--store-redis-primary", Redis::primary_name(), "--store-redis-follow", "false"];
    let more = [&more[..], &["--resp-on-store-failure", "deny"]].concat();
    let route = format!("/ http://{} http://{}", upstreams[0].address, upstreams[1].address);
    let upstream = format!("http://{}", upstreams[0].address);
    let in_front = ["--gateway", "127.0.0.1:0", "--upstream", &upstream, "--trusted-proxies", "127.0.0.1"];
    let in_front = [&in_front[..], &["--gateway-routes", &route, "--auth-user-header", "X-User"]].concat();
    let shared = [&shared[..], &more, &in_front].concat();
    let servers = [
        Server::start(program, &folder.0, "first", &shared),
        Server::start(program, &folder.0, "second", &shared),
        Server::start(program, &folder.0, "gateway", &[&["--rules", "gateway.yaml"], &in_front[..]].concat()),
    ];

    let tally = Arc::new(Tally {
        stop: AtomicBool::new(false),
        allowance,
        questions: AtomicU64::new(0),
        admitted: Mutex::default(),
        slowest_micros: AtomicU64::new(0),
        late: AtomicU64::new(0),
        unanswered: Mutex::default(),
    });
    let begun = Instant::now();
    let mut clients = Vec::new();
    for server in &servers[..2] {
        clients.push(ask_http(&tally, server.listener("HTTP")));
        clients.push(ask_envoy(&tally, server.listener("Envoy")));
        clients.push(ask_redis(&tally, server.listener("Redis")));
        clients.push(reserve(&tally, server.listener("HTTP")));
        clients.push(pass_through(&tally, server.listener("Gateway"), "through"));
    }
    clients.push(pass_through(&tally, servers[2].listener("Gateway"), "gateway"));
    let gateway = servers[2].listener("Gateway");
    clients.push(tally.repeat(Duration::from_millis(100), move |_| {
        // The upstream may be unavailable at this time: the test is about the slot.
        let _ = leave_in_the_middle(gateway);
        Ok(None)
    }));

    let mut findings = Findings::default();
    let mut samples: Vec<(f64, [u64; 3])> = Vec::new();
    let (mut next_fault, mut turn) = (between, 0);
    while begun.elapsed() < lasts {
        let second = Instant::now();
        turn += 1;
        write_rules(turn);
        if begun.elapsed() >= next_fault {
            let fault = FAULTS[usize::try_from(findings.faults.values().sum::<u64>()).unwrap() % FAULTS.len()];
            if let Err(problem) = fault.strike(&mut redis, &mut upstreams, &servers) {
                tally.unanswered.lock().unwrap().push(problem);
            }
            *findings.faults.entry(fault.name()).or_default() += 1;
            next_fault = begun.elapsed() + between;
        }
        samples.push((begun.elapsed().as_secs_f64(), servers.each_ref().map(Server::resident)));
        std::thread::sleep(Duration::from_secs(1).saturating_sub(second.elapsed()));
    }
    tally.stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let seconds = begun.elapsed().as_secs_f64();

    findings.seconds = seconds;
    findings.reloads = servers.iter().map(|server| metric(server, "tidegate_rules_generation") - 1).min().unwrap_or(0);
    findings.questions = tally.questions.load(Ordering::Relaxed);
    findings.slowest = Duration::from_micros(tally.slowest_micros.load(Ordering::Relaxed));
    findings.late = tally.late.load(Ordering::Relaxed);
    findings.unanswered = std::mem::take(&mut *tally.unanswered.lock().unwrap());
    let outages: u64 = servers[..2].iter().map(|server| metric(server, "tidegate_store_outages_total")).sum();
    let promotions = redis.promotions();
    for (key, admitted) in &*tally.admitted.lock().unwrap() {
        findings.admitted += admitted;
        if let Some(most) = bound(key, seconds, promotions, outages) {
            findings.bounds.push((key.clone(), *admitted, most));
        }
    }
    let slots = [("held", &servers[0], "/held", HELD), ("slots", &servers[2], "/", SLOTS)];
    findings.slots = slots.map(|(limit, server, path, all)| (limit, free_slots(server, path, limit, all), all)).into();
    findings.memory = (0..3).map(|number| slope(servers[number].name, &samples, number)).collect();
    for server in servers {
        let name = server.name;
        let log = server.stop();
        findings.unexpected.extend(unexpected(&log).map(|line| format!("{name}: {line}")));
    }
    findings
}

/// Upper bound of a key's admissions. A promotion may lose what was not replicated yet, and both servers may decide for
/// a moment: at most two more capacities. A limit that is decided locally starts full at each outage of each server.
fn bound(key: &str, seconds: f64, promotions: u64, outages: u64) -> Option<u64> {
    let limit = CAPACITY + (PER_SECOND as f64 * seconds).ceil() as u64 + 1;
    match key.split(' ').next()? {
        "deny" | "through" => Some(limit + 2 * CAPACITY * promotions),
        // One more than the burst, as in redis-cell.
        "throttle" => Some(limit + 1 + 2 * (CAPACITY + 1) * promotions),
        "local" => Some(limit + 2 * CAPACITY * promotions + CAPACITY * outages),
        "gateway" => Some(limit),
        _ => None,
    }
}

fn allowed(body: &str) -> Result<bool, String> {
    let answer: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {body}"))?;
    answer["allowed"].as_bool().ok_or_else(|| body.to_owned())
}

fn ask_http(tally: &Arc<Tally>, address: SocketAddr) -> JoinHandle<()> {
    let (mut client, timed) = (Http::new(address), Arc::clone(tally));
    tally.repeat(Duration::from_millis(10), move |number| {
        let rule = ["deny", "local", "allow"][usize::try_from(number % 3).unwrap_or(0)];
        let user = number / 3 % KEYS;
        let body = format!(r#"{{"path":"/{rule}","user":"u{user}"}}"#);
        match timed.time(|| client.post("/v1/check", &body)) {
            Ok((200, answer)) => Ok(allowed(&answer)?.then(|| format!("{rule} u{user}"))),
            other => Err(format!("check: {other:?}")),
        }
    })
}

fn ask_envoy(tally: &Arc<Tally>, address: SocketAddr) -> JoinHandle<()> {
    let (mut client, timed) = (Http::new(address), Arc::clone(tally));
    tally.repeat(Duration::from_millis(20), move |number| {
        let user = number % KEYS;
        let entries = format!(r#"[{{"key":"path","value":"/deny"}},{{"key":"user","value":"u{user}"}}]"#);
        let body = format!(r#"{{"domain":"tidegate","descriptors":[{{"entries":{entries}}}]}}"#);
        match timed.time(|| client.post("/json", &body)) {
            Ok((200, _)) => Ok(Some(format!("deny u{user}"))),
            Ok((429, _)) => Ok(None),
            other => Err(format!("Envoy: {other:?}")),
        }
    })
}

fn ask_redis(tally: &Arc<Tally>, address: SocketAddr) -> JoinHandle<()> {
    let (mut client, timed) = (Resp::connect(address).unwrap(), Arc::clone(tally));
    tally.repeat(Duration::from_millis(20), move |number| {
        let key = format!("t{}", number % KEYS);
        match timed.time(|| client.ask(&format!("CL.THROTTLE {key} {CAPACITY} {PER_SECOND} 1"))) {
            Ok(reply) if reply.starts_with("*5\r\n:0\r\n") => Ok(Some(format!("throttle {key}"))),
            Ok(reply) if reply.starts_with("*5\r\n:1\r\n") => Ok(None),
            other => Err(format!("CL.THROTTLE: {other:?}")),
        }
    })
}

/// Reserves slots, and releases every second one; the others are released when their lease ends.
fn reserve(tally: &Arc<Tally>, address: SocketAddr) -> JoinHandle<()> {
    let mut client = Http::new(address);
    tally.repeat(Duration::from_millis(200), move |number| {
        let (status, answer) =
            client.post("/v1/reserve", r#"{"path":"/held"}"#).map_err(|error| format!("reserve: {error}"))?;
        let answer: Value = serde_json::from_str(&answer).map_err(|error| format!("{status} {error}: {answer}"))?;
        if let (Some(receipt), true) = (answer["receipt"].as_str(), number % 2 == 0) {
            let body = format!(r#"{{"receipt":"{receipt}"}}"#);
            let (status, answer) = client.post("/v1/release", &body).map_err(|error| format!("release: {error}"))?;
            // While the store is unavailable, the lease ends by itself.
            if ![200, 404, 503].contains(&status) {
                return Err(format!("release: {status} {answer}"));
            }
        }
        Ok(None)
    })
}

/// Sends requests to a gateway under `rule`, which limits by address.
fn pass_through(tally: &Arc<Tally>, address: SocketAddr, rule: &'static str) -> JoinHandle<()> {
    let mut client = Http::new(address);
    let path = if rule == "through" { "/through" } else { "/" };
    tally.repeat(Duration::from_millis(10), move |number| {
        let key = number % KEYS;
        match client.get(path, &format!("X-Forwarded-For: 203.0.113.{key}\r\n")) {
            Ok((200, _)) => Ok(Some(format!("{rule} {key}"))),
            // Denied, or the upstreams or the store are unavailable at this time.
            Ok((429 | 502 | 503 | 504, _)) => Ok(None),
            other => Err(format!("gateway: {other:?}")),
        }
    })
}

#[derive(Clone, Copy)]
enum Fault {
    PausedStore,
    DeadUpstream,
    Connections,
    KilledStore,
    Http2,
    FailedOver,
    Redis,
}

const FAULTS: [Fault; 7] = [
    Fault::PausedStore,
    Fault::DeadUpstream,
    Fault::Connections,
    Fault::KilledStore,
    Fault::Http2,
    Fault::FailedOver,
    Fault::Redis,
];

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Fault::PausedStore => "store paused",
            Fault::DeadUpstream => "upstream restarted",
            Fault::Connections => "flood of connections",
            Fault::KilledStore => "store killed",
            Fault::Http2 => "flood of HTTP/2 frames",
            Fault::FailedOver => "store failed over",
            Fault::Redis => "flood of Redis commands",
        }
    }

    /// Causes the fault. An unfinished recovery is an error.
    fn strike(self, redis: &mut Redis, upstreams: &mut [Upstream; 2], servers: &[Server; 3]) -> Result<(), String> {
        let listeners = |name: &str| servers.iter().map(|server| server.listener(name)).collect::<Vec<_>>();
        match self {
            Fault::PausedStore => redis.pause_primary(),
            Fault::KilledStore => redis.kill_primary(),
            Fault::FailedOver => redis.fail_over(),
            Fault::DeadUpstream => upstreams.iter_mut().for_each(Upstream::restart),
            Fault::Connections => {
                for name in ["HTTP", "Envoy", "Redis"] {
                    listeners(name).into_iter().for_each(|address| flood(address, 100, b""));
                }
                flood(servers[2].listener("Gateway"), 100, b"GET / HTTP/1.1\r\n");
            }
            Fault::Http2 => {
                for address in ["HTTP", "Envoy", "Gateway"].iter().flat_map(|name| listeners(name)) {
                    flood_http2(address).map_err(|error| format!("a flood of HTTP/2 frames goes on: {error}"))?;
                }
            }
            Fault::Redis => {
                let commands = [&b"PING\r\n".repeat(500)[..], b"*3\r\n$5\r\nhello\r\n$999999999\r\n"].concat();
                listeners("Redis").into_iter().for_each(|address| flood(address, 20, &commands));
            }
        }
        Ok(())
    }
}

fn metric(server: &Server, name: &str) -> u64 {
    let (_, metrics) = Http::new(server.listener("Admin")).get("/metrics", "").unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

/// The number of free slots once all leases have ended.
fn free_slots(server: &Server, path: &str, limit: &str, all: u64) -> u64 {
    let mut free = 0;
    let mut client = Http::new(server.listener("HTTP"));
    let give_up = Instant::now() + Duration::from_secs(40);
    until(limit, || {
        let (_, answer) = client.post("/v1/peek", &format!(r#"{{"path":"{path}"}}"#)).ok()?;
        let answer: Value = serde_json::from_str(&answer).ok()?;
        let shown = answer["limits"].as_array()?.iter().find(|shown| shown["id"] == limit)?;
        free = shown["remaining"].as_u64()?;
        (free == all || Instant::now() > give_up).then_some(())
    });
    free
}

/// Memory after the warm-up, memory at the end, and the slope of the regression line through the samples in between.
fn slope(name: &'static str, samples: &[(f64, [u64; 3])], number: usize) -> (&'static str, u64, u64, f64) {
    let warm: Vec<(f64, f64)> =
        samples.iter().skip(samples.len() / 5).map(|(at, bytes)| (*at, bytes[number] as f64)).collect();
    let mean = |values: &dyn Fn(&(f64, f64)) -> f64| warm.iter().map(values).sum::<f64>() / warm.len() as f64;
    let (time, bytes) = (mean(&|sample| sample.0), mean(&|sample| sample.1));
    let rise: f64 = warm.iter().map(|sample| (sample.0 - time) * (sample.1 - bytes)).sum();
    let run: f64 = warm.iter().map(|sample| (sample.0 - time).powi(2)).sum();
    let ends = (warm.first(), warm.last());
    let at = |sample: Option<&(f64, f64)>| sample.map_or(0, |sample| sample.1 as u64);
    (name, at(ends.0), at(ends.1), 3_600.0 * rise / run.max(1.0))
}

/// Warnings that faults cause.
const EXPLAINED: [&str; 9] = [
    "the store is unavailable",
    "breaker opens",
    "not settled; its slots come back",
    "upstream failed",
    "an upstream is unhealthy",
    "log lines were",
    "connection limit of the listener reached",
    "grace period ended: closing busy connections",
    "the charges of an unserved request were not refunded",
];

fn unexpected(log: &str) -> impl Iterator<Item = &str> {
    let is_grave = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ") || line.contains("panicked");
    log.lines().filter(is_grave).filter(|line| !EXPLAINED.iter().any(|known| line.contains(known)))
}

/// A folder that is removed with the soak test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = std::env::temp_dir().join(format!("tidegate-soak-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
